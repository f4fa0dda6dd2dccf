"""Devices: one host's topology (devices, links, granules) and the facts around it, each with its evidence.

Unknown is null, never 0. Indices in links are positions in `devices`. Independent of drivers and jax.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, cast

from pydantic import FailFast, Field

from meshwright.wire.base import Basis, DeviceRef, Evidence, Notice, Reply, RequestPart
from meshwright.wire.leases import Lease

Platform = Literal["cpu", "gpu", "tpu"]
_PLATFORMS: Final = {"cuda": "gpu", "rocm": "gpu"}
"""JAX's platform names that the wire calls otherwise."""

WorkerState = Literal["stopped", "starting", "ready", "busy", "stopping", "backoff", "failed"]
GranuleKind = Literal["host", "slice"]
"""What is joined inside by a fast network: a TPU slice, or a host of GPUs or CPUs."""


HoldersUnknown = Literal["driver_timeout", "no_permission"]
"""Why the processes on the devices are unknown: the driver did not answer in time · it answered, and the agent may not
look into all processes."""


def parse_platform(name: str) -> Platform:
    """Returns cpu, gpu or tpu for JAX's name of a platform; any other name as it is."""
    return cast(Platform, _PLATFORMS.get(name, name))


class Memory(Reply):
    """A device's memory, seen with the device; `basis` is how the bytes in use are known, else the capacity."""

    basis: Basis
    capacity_bytes: int | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = Field(default=None, description="what JAX's allocator may take, where it says so")


class DeviceProcess(Reply):
    """A process that holds devices."""

    pid: int
    name: str | None = None
    command: str | None = None
    used_bytes: int | None = Field(default=None, description="device memory of that process, where the driver says so")
    own: bool = Field(default=False, description="true for a process of the agent")
    job: str | None = Field(
        default=None, description='what it belongs to, where seen: "slurm 4711", else "pod UID", else "container ID"'
    )
    devices: tuple[str, ...] = Field(default=(), description="uuids or device files, in the reply to a release")


class Mig(Reply):
    """The part of a GPU that a MIG instance is."""

    parent_uuid: str
    profile: str | None = None


class Device(DeviceRef, Evidence):
    """One device that JAX can put on a mesh (or would, were it free)."""

    platform: Platform
    kind: str = Field(description='product name: "NVIDIA H100 80GB HBM3", "TPU v5 lite", "cpu"')
    numa_node: int | None = None
    virtual: bool = Field(default=False, description="a virtual CPU device, made by jax_num_cpu_devices")
    compute_capability: str | None = None
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None = None
    mig: Mig | None = None
    memory: Memory | None = None
    jax_id: int | None = Field(
        default=None,
        description="`jax.Device.id` in the agent's worker, known as `software` is; other processes count otherwise; "
        "null: not seen yet",
    )
    processes: tuple[DeviceProcess, ...] | None = Field(
        default=None, description="who holds it; null: the holders are unknown"
    )
    lease: Lease | None = Field(default=None, description="who has reserved it; null: no lease")
    attributes: dict[str, str | int | bool] = Field(
        default_factory=dict, description="names as Kubernetes' DRA drivers use them: productName, architecture, …"
    )

    @property
    def component(self) -> str:
        """The name of its health component."""
        return f"device:{self.uuid or self.pci_bus_id or self.local_index}"


class Link(Reply):
    """What joins two devices, named as `nvidia-smi topo -m` does (NV18, PIX, PXB, PHB, NODE, SYS), or ICI, or HOST.

    Seen with the devices.
    """

    basis: Basis
    a: int
    b: int
    kind: str = Field(pattern=r"^[ -~]{1,32}$")
    bandwidth_bytes_per_s: float | None = Field(
        default=None, ge=1, description="one way; null, and not 0, where it is not known"
    )


class Granule(Reply):
    """Devices that are joined by a fast network."""

    ordinal: int
    kind: GranuleKind
    name: str
    device_count: int
    shape: tuple[int, ...] | None = Field(default=None, description="of a TPU slice, in chips: x, y, z")
    wrap: tuple[bool, ...] | None = Field(default=None, description="which of these dimensions close to rings")
    twisted: bool = Field(default=False, description="a twisted torus: the rings of short dimensions are offset")
    domain: str | None = Field(
        default=None, description="the NVLink domain that this host belongs to, where it spans hosts (GB200 NVL72)"
    )
    device_kind: str | None = Field(
        default=None, description="in a plan: as JAX calls its devices; null: of several kinds"
    )
    device_memory_bytes: int | None = Field(
        default=None, description="in a plan: of its device with the least; null: not known"
    )


class NumaNode(Reply):
    """One NUMA node, seen with `host`."""

    node: int
    cpus: str = Field(description='as the kernel lists them: "0-15,32-47"')


class Cpu(Reply):
    """The host's processors and memory, seen with `host`."""

    model: str | None = None
    architecture: str | None = None
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    usable_threads: int | None = Field(default=None, description="of the affinity mask and the cgroup's quota")
    memory_bytes: int | None = None
    available_bytes: int | None = None


class Host(Evidence):
    """The machine."""

    name: str
    boot_id: str | None = None
    kernel: str | None = None
    operating_system: str | None = None
    container: str | None = Field(default=None, description='"docker", "kubernetes", …; null: none seen')


class Nic(Reply):
    """One port of a network adapter with RDMA (InfiniBand, RoCE, EFA), seen with `host`."""

    name: str = Field(description='adapter and port, as NCCL_IB_HCA takes them: "mlx5_0:1"')
    pci_bus_id: str
    device_indices: tuple[int, ...] = Field(
        default=(), description="the closest of `devices` below its PCIe root; empty: none is, or not known"
    )
    link_layer: str | None = Field(default=None, description='"InfiniBand"; "Ethernet": RoCE')
    state: str | None = Field(default=None, description='"ACTIVE", "INIT", "DOWN", …, as the kernel says')
    physical_state: str | None = Field(default=None, description='"LinkUp", "Polling", "Disabled", …')
    rate_bytes_per_s: float | None = Field(default=None, description="one way; null: not up, or not known")
    net_device: str | None = Field(default=None, description="its interface, where the agent sees it")
    counters: dict[str, int] = Field(
        default_factory=dict, description="errors and congestion so far, by the kernel's names: link_downed, …"
    )
    attributes: dict[str, str] = Field(default_factory=dict, description="hca_type, fw_ver, board_id, node_guid")


class Software(Evidence):
    """Versions that matter to a job. Of jax: what the worker runs."""

    agent: str
    jax: str | None = None
    jaxlib: str | None = None
    libtpu: str | None = None
    driver: str | None = None
    cuda_driver: str | None = Field(default=None, description="the CUDA version that the driver supports")


class Worker(Reply):
    """The process that owns JAX on this host."""

    state: WorkerState
    generation: int
    pid: int | None = None
    since: datetime
    last_error: str | None = None


class MeasuredNetwork(Evidence):
    """The network between this host and others, as its last preflight measured it."""

    bytes_per_s: float = Field(
        description="a device's share, each way at once, while all devices send; the median over the host's partners"
    )
    run_id: str


class Devices(Reply):
    """`GET /devices`: this host as a topology."""

    host: Host
    cpu: Cpu
    numa_nodes: tuple[NumaNode, ...]
    software: Software
    platform: Platform
    worker: Worker
    granules: Annotated[tuple[Granule, ...], FailFast()]
    devices: Annotated[tuple[Device, ...], FailFast()]
    links: Annotated[tuple[Link, ...], FailFast()]
    nics: tuple[Nic, ...] = ()
    network: MeasuredNetwork | None = Field(
        default=None, description="between hosts; null: no preflight has measured it, or the hosts share faster links"
    )
    warnings: tuple[Notice, ...] = ()


class ReleaseRequest(RequestPart):
    """`POST /devices/release`: nothing to choose, since all devices are given back or none."""


class Release(Reply):
    """`POST /devices/release`: what became of it."""

    released: bool = Field(description="true: no process of the agent holds a device any more")
    worker_killed: bool = Field(description="true: the worker did not go by itself and was killed")
    cancelled_runs: tuple[str, ...] = ()
    holders: tuple[DeviceProcess, ...] | None = Field(
        default=(), description="who still holds a device; null: see `holders_unknown`"
    )
    holders_unknown: HoldersUnknown | None = Field(default=None, description="why `holders` is null")


class Environment(Reply):
    """`GET /environment`."""

    memory_fraction: float
    variables: dict[str, str] = Field(description="as `export` lines for a shell with `format=text`")


class TargetChip(Reply):
    """A chip that targets may name."""

    chip: str = Field(description='as targets are written: "v5p", "h100", "cpu"')
    name: str = Field(description='"TPU v5p", "H100 SXM"')
    aliases: tuple[str, ...]
    platform: Platform
    kind: str = Field(description="what `jax.Device.device_kind` says, in a plan's topology")
    devices_per_chip: int = Field(description="JAX devices")
    device_memory_bytes: int | None = Field(
        default=None,
        description="of one device: of a GPU as its driver reports it, of a TPU as published; null: not known",
    )
    shapes: str | None = Field(default=None, description="of a TPU: which slices there are, in words")
    source: str


class TargetSystem(Reply):
    """A form of host of GPUs or CPUs, or a TPU slice that has a name; a chip's `shapes` may allow further slices."""

    target: str = Field(description='how a plan asks for it: "h100:8", "v5p:4x4x28"')
    names: tuple[str, ...] = Field(default=(), description="of a slice, which work too: v5p-896")
    chip: str
    device_count: int = Field(description="JAX devices")
    host_count: int = 1
    links: dict[str, int] = Field(
        default_factory=dict, description='of a host: kind → pairs of devices so joined: {"NV18": 28}'
    )
    domain_device_count: int | None = Field(
        default=None, description="devices of the NVLink domain that such hosts share; null: none spans hosts"
    )
    text: str = Field(description="what it is, in words; of a slice which of x, y, z close to rings")
    source: str


class Targets(Reply):
    """`GET /targets`: what is known, by platform and generation."""

    chips: tuple[TargetChip, ...]
    systems: tuple[TargetSystem, ...] = Field(description="of each chip from the least to the largest")
