"""Devices: one host's topology (devices, links, granules) and the facts around it, each with its evidence.

Unknown is null, never 0. Indices in links are positions in `devices`. Independent of drivers and jax.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, cast

from pydantic import FailFast, Field

from meshwright.wire.base import Evidence, Notice, Reply, RequestPart

Platform = Literal["cpu", "gpu", "tpu"]
_PLATFORMS: Final = {"cuda": "gpu", "rocm": "gpu"}
"""JAX's platform names that the wire calls otherwise."""

WorkerState = Literal["stopped", "starting", "ready", "busy", "stopping", "backoff", "failed"]
GranuleKind = Literal["host", "slice"]
"""What is joined inside by a fast network: a TPU slice, or a host of GPUs or CPUs."""


HoldersUnknown = Literal["driver_timeout", "no_permission"]
"""Why the processes on the devices are unknown: the driver did not answer in time · it answered, and the agent may not
look into all processes."""

LINK_COUNT_MAX: Final = 1024
"""Parallel links of one pair of devices: far more than any has, so that their rates stay finite."""


def parse_platform(name: str) -> Platform:
    """Returns cpu, gpu or tpu for JAX's name of a platform; any other name as it is."""
    return cast(Platform, _PLATFORMS.get(name, name))


class Memory(Evidence):
    """A device's memory."""

    capacity_bytes: int | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = Field(default=None, description="what JAX's allocator may take, where it says so")


class DeviceProcess(Reply):
    """A process that holds devices."""

    pid: int
    name: str | None = None
    command: str | None = None
    used_bytes: int | None = Field(default=None, description="device memory of that process, where the driver says so")
    own: bool = Field(default=False, description="true for the agent's own worker")
    container: str | None = Field(default=None, description="id of the container that it runs in, where seen")
    pod_uid: str | None = Field(default=None, description="uid of its Kubernetes pod, where seen")
    job: str | None = Field(default=None, description='its batch job, where seen: "slurm 4711"')
    devices: tuple[str, ...] = Field(default=(), description="uuids or device files, in the reply to a release")


class JaxView(Evidence):
    """What only JAX says of the device: as `jax.devices()` shows it in the agent's worker."""

    id: int = Field(description="jax.Device.id in the worker; other processes number differently")
    local_hardware_id: int | None = None
    memory_stats: dict[str, int] | None = None
    generation: int = Field(description="which worker, counted from 1, saw this; 0: one before the agent's restart")


class Mig(Reply):
    """The part of a GPU that a MIG instance is."""

    parent_uuid: str
    profile: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


class DeviceLease(Reply):
    """The lease that covers a device."""

    id: str
    purpose: str
    owner: str = ""
    preemptible: bool = False
    expires_in_s: float | None = Field(
        default=None, ge=0, description="seconds left when this was written (refreshed once a second)"
    )


class Device(Evidence):
    """One device that JAX can put on a mesh (or would, were it free).

    Identity, strongest first: `uuid` (GPU, MIG) · `slice_index`, `coords`, `core_on_chip` (TPU);
    `granule`, `position`.
    """

    host: str
    local_index: int = Field(description="0, 1, … on this host: what `devices` in a request names")
    granule: int = Field(default=0, description="ordinal of the granule (slice, or host) that it belongs to")
    position: int = Field(description="its place in the granule's canonical order")
    platform: Platform
    kind: str = Field(description='product name: "NVIDIA H100 80GB HBM3", "TPU v5 lite", "cpu"')
    uuid: str | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    coords: tuple[int, ...] | None = None
    core_on_chip: int | None = None
    slice_index: int | None = None
    process_index: int | None = None
    virtual: bool = Field(default=False, description="a virtual CPU device, made by jax_num_cpu_devices")
    compute_capability: str | None = None
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None = None
    mig: Mig | None = None
    memory: Memory | None = None
    jax: JaxView | None = Field(default=None, description="null while no worker has looked")
    processes: tuple[DeviceProcess, ...] | None = Field(default=None, description="who holds it; null: could not look")
    lease: DeviceLease | None = Field(default=None, description="who has reserved it; null: no lease")
    attributes: dict[str, str | int | bool] = Field(
        default_factory=dict, description="names as Kubernetes' DRA drivers use them: productName, architecture, …"
    )


class Link(Evidence):
    """What joins two devices, named as `nvidia-smi topo -m` does (NV18, PIX, PXB, PHB, NODE, SYS), or ICI, or HOST."""

    a: int
    b: int
    kind: str = Field(pattern=r"^[ -~]{1,32}$")
    count: int | None = Field(default=None, ge=1, le=LINK_COUNT_MAX, description="parallel links, e.g. 18 for NV18")
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
    used_positions: tuple[int, ...] | None = Field(
        default=None, description="in a plan: those of its devices; null where devices are left out"
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
    memory_bytes: int | None = None
    distances: tuple[int, ...] | None = Field(
        default=None, description="to each node of the host, as the kernel says: 10 is its own memory, 20 twice as far"
    )


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


class Software(Evidence):
    """Versions that matter to a job. Of jax: what the worker runs."""

    agent: str
    python: str
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
    warnings: tuple[Notice, ...] = ()


class ReleaseRequest(RequestPart):
    """`POST /devices/release`: nothing to choose, since all devices are given back or none."""


class Release(Reply):
    """`POST /devices/release`: what became of it."""

    released: bool = Field(description="true: no process of the agent holds a device any more")
    duration_s: float
    worker_killed: bool = Field(description="true: the worker did not go by itself and was killed")
    cancelled_runs: tuple[str, ...] = ()
    holders: tuple[DeviceProcess, ...] | None = Field(
        default=(), description="who still holds a device; null: see `holders_unknown`"
    )
    holders_unknown: HoldersUnknown | None = Field(default=None, description="why `holders` is null")
    worker: Worker


class Environment(Reply):
    """`GET /environment`."""

    memory_strategy: str
    memory_fraction: float
    variables: dict[str, str]
    exports: tuple[str, ...] = Field(description="the same as `export NAME=value` lines, quoted for a shell")
    warnings: tuple[Notice, ...] = ()


class TargetHost(Reply):
    """A form of host: how many devices, and what joins them."""

    target: str = Field(description='how a plan asks for one: "h100:8"')
    device_count: int
    links: dict[str, int] = Field(description='kind → pairs of devices so joined: {"NV18": 28}')
    domain_device_count: int | None = Field(
        default=None, description="devices of the NVLink domain that such hosts share; null: none spans hosts"
    )
    text: str = Field(description="what it is, in words")
    source: str


class TargetSlice(Reply):
    """A TPU slice that has a name. Its chip's `shapes` may allow more than those that have one."""

    name: str
    aliases: tuple[str, ...]
    chip: str
    target: str = Field(description='how a plan asks for it: "v5p:4x4x28"; its name works too')
    shape: tuple[int, ...] = Field(description="in chips, as the generation writes it: x, y or x, y, z")
    wrap: tuple[bool, ...] = Field(description="which of x, y, z close to rings")
    can_twist: bool = Field(description="whether `_twisted` may stand behind the target")
    chip_count: int
    device_count: int = Field(description="JAX devices")
    host_count: int
    host_shape: tuple[int, ...] = Field(description="chips of one host in x, y, z")


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
    hosts: tuple[TargetHost, ...] = Field(default=(), description="of a GPU or CPU: the hosts there are")
    source: str


class Targets(Reply):
    """`GET /targets`: what is known, by platform and generation."""

    grammar: str = Field(description="how a target is written")
    chips: tuple[TargetChip, ...]
    slices: tuple[TargetSlice, ...]
