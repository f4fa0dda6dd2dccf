"""What was read of a host, as plain values that travel from the probe to the agent as JSON.

Rule: a field is what a source said, or None where it said nothing; what failed is named in `problems`. Knows
neither how anything is read nor what replies look like. Sizes in bytes, indices as the driver counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from meshwright_agent.facts.health import GpuHealth, KernelLog, PciHealth

ComputeMode = Literal["default", "exclusive_process", "prohibited"]
FabricState = Literal["not_supported", "not_started", "in_progress", "completed"]
ProblemKind = Literal[
    "driver_down", "unreadable", "no_library", "refused", "unanswered", "fabric", "no_instances", "no_tpu_driver"
]
"""The driver serves no card · NVML tells of none, which may only be hidden from this process · nvidia-ml-py is not
installed · NVML gives no handle for a card · one question failed · the NVLink fabric is not well · a card in MIG mode
has no instances · no driver has a TPU."""


@dataclass(frozen=True)
class Problem:
    """Something that should have been readable and was not. `text`: a sentence."""

    kind: ProblemKind
    text: str


@dataclass(frozen=True)
class RefusedCard:
    """An NVIDIA card that is here and that the driver gives nobody a handle for.

    Attributes:
        pci_bus_id: None: NVML counts it, and which one it is cannot be told.
        index: as NVML counts; None: it does not.
        reason: why, as far as the driver says.
    """

    pci_bus_id: str | None
    index: int | None
    reason: str


@dataclass(frozen=True)
class MachineFacts:
    """The machine and its operating system. `container`: "kubernetes", "docker", …; None: none was seen."""

    name: str
    boot_id: str | None = None
    kernel: str | None = None
    operating_system: str | None = None
    container: str | None = None


@dataclass(frozen=True)
class CpuFacts:
    """Processors and memory.

    Attributes:
        usable_threads: what affinity mask and cgroup quota leave this process, whole threads, rounded down: 0
            is less than one.
        memory_bytes: of the machine.
        memory_limit_bytes: of this process's cgroup; None: there is no limit.
        available_bytes: what can be had without swapping, within the limit.
    """

    model: str | None = None
    architecture: str | None = None
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    usable_threads: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    available_bytes: int | None = None


@dataclass(frozen=True)
class NumaFacts:
    """One NUMA node.

    Attributes:
        cpus: as the kernel lists them: "0-15,32-47"; "" for memory alone.
        distances: to each node, by number, 10 being itself; None: the kernel does not say.
    """

    node: int
    cpus: str
    memory_bytes: int | None = None
    distances: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ProcessFacts:
    """A process that holds a device. `own`: of this agent. `command`: program and script, no arguments.

    `container`, `pod_uid` and `job` ("slurm 4711") are where it belongs, as its cgroup says. `elsewhere`: the driver
    tells a number that this container's list of processes does not have, so that it may be anybody.
    """

    pid: int
    name: str | None = None
    command: str | None = None
    used_bytes: int | None = None
    own: bool = False
    container: str | None = None
    pod_uid: str | None = None
    job: str | None = None
    elsewhere: bool = False


@dataclass(frozen=True)
class HolderFacts:
    """A process and what it holds: uuids of GPUs, or device files; the other fields as of `ProcessFacts`."""

    pid: int
    name: str | None = None
    command: str | None = None
    devices: tuple[str, ...] = ()
    own: bool = False
    container: str | None = None
    pod_uid: str | None = None
    job: str | None = None

    @classmethod
    def of(cls, process: ProcessFacts, devices: Iterable[str]) -> HolderFacts:
        """Returns a process with what it holds."""
        return cls(
            process.pid,
            process.name,
            process.command,
            tuple(sorted(devices)),
            process.own,
            process.container,
            process.pod_uid,
            process.job,
        )


@dataclass(frozen=True)
class MigFacts:
    """The part of a GPU that a MIG instance is. `profile`: "3g.20gb"."""

    parent_uuid: str
    profile: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@dataclass(frozen=True)
class FabricFacts:
    """A card's registration with the fabric that NVLink switches make.

    Attributes:
        error: why a completed registration failed; None: it did not.
        cluster_uuid: None where the fabric is one box, which NVML calls a uuid of zeros.
        faults: what the driver's health mask says is wrong.
    """

    state: FabricState
    error: str | None = None
    cluster_uuid: str | None = None
    clique_id: int | None = None
    faults: tuple[str, ...] = ()

    @property
    def is_down(self) -> bool:
        """True for a fabric that is there and does not work."""
        return self.state in {"not_started", "in_progress"} or self.error is not None

    @property
    def domain(self) -> str | None:
        """The NVLink domain, "<cluster uuid>.<clique id>", as NVIDIA's label nvidia.com/gpu.clique; None: no such."""
        if self.state != "completed" or self.error is not None or self.cluster_uuid is None:
            return None
        return f"{self.cluster_uuid}.{self.clique_id}"


@dataclass(frozen=True)
class GpuFacts:
    """One GPU that can be computed on: a whole card, or a MIG instance of one.

    Attributes:
        index: of the card, as nvidia-smi counts; the instances of a card share it.
        minor: of the card's file: 3 of /dev/nvidia3, which need not be its index.
        pci_bus_id: as sysfs writes it: "0000:1b:00.0".
        compute_capability: "9.0".
        fabric: None where the driver knows none, and for MIG instances, which have no NVLink.
        health: of the card; its MIG instances share it.
        pci: what sysfs says of the card.
    """

    index: int
    kind: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    compute_mode: ComputeMode | None = None
    minor: int | None = None
    mig: MigFacts | None = None
    fabric: FabricFacts | None = None
    processes: tuple[ProcessFacts, ...] | None = None
    health: GpuHealth | None = None
    pci: PciHealth | None = None

    @property
    def key(self) -> str:
        """The strongest name that it has; stays the same between reads."""
        card = self.pci_bus_id or f"gpu {self.index}"
        part = f"/{self.mig.gpu_instance_id}/{self.mig.compute_instance_id}" if self.mig else ""
        return self.uuid or f"{card}{part}"


@dataclass(frozen=True)
class GpuLink:
    """What joins two GPUs, by their keys; `kind` as in nvidia-smi's matrix: NV18, PIX, PXB, PHB, NODE, SYS.

    `bandwidth_bytes_per_s`: data one way, all `count` links together, where the driver tells a link's speed.
    """

    a: str
    b: str
    kind: str
    count: int | None = None
    bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True)
class TpuFacts:
    """One TPU on the PCI bus: a chip, or on generations that show them apart, half of one.

    Attributes:
        kind: as JAX names it, "TPU v5 lite"; None where the PCI id is not known or means several.
        device_file: "/dev/accel0", "/dev/vfio/3".
        processes: who has the device file open; None: could not look.
        has_file: the device file is there; None: it has none.
        pci: what sysfs says of it.
    """

    pci_bus_id: str
    kind: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    device_file: str | None = None
    processes: tuple[ProcessFacts, ...] | None = None
    has_file: bool | None = None
    pci: PciHealth | None = None

    @property
    def key(self) -> str:
        """Its PCI address."""
        return self.pci_bus_id


@dataclass(frozen=True)
class SliceFacts:
    """What the environment says of the TPU slice that this host belongs to. Shapes in chips, [x, y, z].

    Attributes:
        topology: of the whole slice.
        chips_per_host: of each host.
        hosts: how the hosts stand, in hosts.
        wrap: which dimensions of the slice close to rings.
        twisted: the slice is a twisted torus; None: not told.
    """

    name: str | None = None
    accelerator_type: str | None = None
    topology: tuple[int, ...] | None = None
    chips_per_host: tuple[int, ...] | None = None
    hosts: tuple[int, ...] | None = None
    wrap: tuple[bool, ...] | None = None
    twisted: bool | None = None
    host_count: int | None = None


@dataclass(frozen=True)
class DriverFacts:
    """NVIDIA's driver, and the CUDA version that it supports."""

    version: str | None = None
    cuda_version: str | None = None


@dataclass(frozen=True)
class KfdFacts:
    """AMD's compute driver, by its device file. `holders`: who has it open; None: could not look, and found nobody."""

    holders: tuple[HolderFacts, ...] | None = None


@dataclass(frozen=True)
class HostFacts:
    """Everything that one look at a host found.

    Attributes:
        gpus: in NVML's order, which is that of PCI addresses; instances of a card by their slots.
        tpus: in the order of PCI addresses.
        environment: variables that decide what JAX will see here, as the probe (and so the worker) has them.
        problems: what should have been readable and was not.
        refused: cards that are here and that nobody can use.
        holders: who computes on a device now; None: could not look everywhere, and found nobody.
        kernel_log: None: no NVIDIA card is here that it could tell of.
        kfd: who has AMD's GPUs; None: its driver is not here.
    """

    machine: MachineFacts
    cpu: CpuFacts
    numa_nodes: tuple[NumaFacts, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    links: tuple[GpuLink, ...] = ()
    tpus: tuple[TpuFacts, ...] = ()
    slice: SliceFacts = SliceFacts()
    driver: DriverFacts = DriverFacts()
    environment: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    refused: tuple[RefusedCard, ...] = ()
    holders: tuple[HolderFacts, ...] | None = ()
    kernel_log: KernelLog | None = None
    kfd: KfdFacts | None = None


_HOST: TypeAdapter[HostFacts] = TypeAdapter(HostFacts)
_HOLDERS: TypeAdapter[tuple[HolderFacts, ...] | None] = TypeAdapter(tuple[HolderFacts, ...] | None)


def build_json(facts: HostFacts) -> dict[str, Any]:
    """Returns the facts as JSON values, which `parse_host_facts` takes back."""
    document: dict[str, Any] = _HOST.dump_python(facts, mode="json")
    return document


def parse_host_facts(document: Mapping[str, Any]) -> HostFacts:
    """Returns the facts that `build_json` wrote.

    Raises:
        pydantic.ValidationError: the document is no such thing.
    """
    return _HOST.validate_python(document)


def build_holders_json(holders: tuple[HolderFacts, ...] | None) -> list[dict[str, Any]] | None:
    """Returns holders as JSON values; None stays None: could not look."""
    document: list[dict[str, Any]] | None = _HOLDERS.dump_python(holders, mode="json")
    return document
