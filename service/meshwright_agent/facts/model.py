"""Facts of a host as plain values, of the wire's types where those say the same. The probe sends them as JSON.

A field is None where its source gave no value; what failed is listed in `problems`. Sizes are in bytes, temperatures in
degrees Celsius, indices as the driver counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from meshwright.wire.devices import DeviceProcess, Holder, Mig

ComputeMode = Literal["default", "exclusive_process", "prohibited"]
FabricState = Literal["not_supported", "not_started", "in_progress", "completed"]
ProblemKind = Literal[
    "driver_down", "unreadable", "no_library", "refused", "unanswered", "fabric", "no_instances", "no_tpu_driver"
]
"""The driver serves no card · NVML tells of none, which may only be hidden from this process · nvidia-ml-py is not
installed · NVML gives no handle for a card · one question failed · the NVLink fabric is not well · a card in MIG mode
has no instances · no driver has a TPU."""


IDLE_BYTES: Final = 32 * 2**20
"""A GPU with less memory in use is idle: nobody has a context on it. A bare one was seen to take 107 MiB on 34
multiprocessors (RTX 4060 Ti) and 555 on 188 (RTX PRO 6000): some 3 MiB each beside 8, which makes about 50 on the 14 of
the smallest MIG instance. Of an idle card or instance drivers report 4 to 7 MiB, what they reserve left out.
Source: ggml-org/llama.cpp#23604; nvmlMemory_v2_t of the NVML API reference; tests/recorded."""


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
        unlisted_pids: of `processes`, those whose numbers the driver reports and this container's list of processes
            does not have, so that they may be anybody.
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
    mig: Mig | None = None
    fabric: FabricFacts | None = None
    processes: tuple[DeviceProcess, ...] | None = None
    health: GpuHealth | None = None
    pci: PciHealth | None = None
    unlisted_pids: tuple[int, ...] = ()

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
    processes: tuple[DeviceProcess, ...] | None = None
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

    holders: tuple[Holder, ...] | None = None


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
    holders: tuple[Holder, ...] | None = ()
    kernel_log: KernelLog | None = None
    kfd: KfdFacts | None = None


_HOST: TypeAdapter[HostFacts] = TypeAdapter(HostFacts)


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


@dataclass(frozen=True)
class GpuHealth:
    """What NVML says of one card.

    Attributes:
        error: the driver's own word that the card is lost, or must be reset; None: it said neither.
        recovery: what the driver wants done: "GPU reset", …; "" for nothing; None: it does not say.
        temperature_celsius: of the chip; `slowdown_` and `shutdown_celsius` are this card's own limits.
        margin_celsius: how far it is from the limit that its clocks are kept by; `slowdown_` and
            `shutdown_margin_celsius` are the margins, mostly below 0, at which the hardware slows it down and off.
        slowdowns: why the clocks are held down; None: it does not say.
        power_limit_watts: the most that it may draw now, of all limits; `power_default_watts` is as it was delivered.
        uncorrectable_count: ECC errors that could not be corrected, since the driver was loaded or the card reset.
        uncorrectable_lifetime_count: the same since the card was made.
        remap_pending: a memory row will be remapped at the next reset.
        remap_failed: a row could not be remapped: there is no spare left.
        retirement_pending: likewise of memory pages, on cards before Ampere.
        pcie_width, pcie_generation: of the link as it is now; `most_` is what card and slot can.
        performance_state: 0 is the fastest, which a card at work takes.
        is_computing: a process computes on it.
        nvlinks_active: NVLinks that are up; None: it has none, or could not say.
        nvlink_errors: counter → errors of all active links since the driver was loaded.
        answers: required question (`nvml_questions`) → "answered", "absent" (the card has no such thing), or the name
            of the error instead of an answer. A question that was not asked is not there.
    """

    error: str | None = None
    recovery: str | None = None
    temperature_celsius: int | None = None
    slowdown_celsius: int | None = None
    shutdown_celsius: int | None = None
    margin_celsius: int | None = None
    slowdown_margin_celsius: int | None = None
    shutdown_margin_celsius: int | None = None
    slowdowns: tuple[str, ...] | None = None
    power_limit_watts: float | None = None
    power_default_watts: float | None = None
    uncorrectable_count: int | None = None
    uncorrectable_lifetime_count: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retirement_pending: bool | None = None
    pcie_width: int | None = None
    pcie_most_width: int | None = None
    pcie_generation: int | None = None
    pcie_most_generation: int | None = None
    performance_state: int | None = None
    is_computing: bool = False
    nvlinks_active: int | None = None
    nvlink_errors: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PciHealth:
    """What sysfs says of one PCI function.

    Attributes:
        width: lanes of the link as it is now; `most_width` is what the device and its slot both can.
        fatal_count, nonfatal_count: uncorrectable errors that the kernel's AER driver has counted since boot.
    """

    width: int | None = None
    most_width: int | None = None
    fatal_count: int | None = None
    nonfatal_count: int | None = None


@dataclass(frozen=True)
class Xid:
    """One XID: a line of the kernel log.

    Attributes:
        pci_bus_id: of the card, as sysfs writes it.
        sequence: the record's number in the kernel log, which counts from boot.
        age_s: how long ago it was written.
        text: what the driver says after the number, without process id and name.
    """

    code: int
    pci_bus_id: str
    sequence: int
    age_s: float = 0.0
    text: str = ""
    pid: int | None = None
    process: str | None = None


@dataclass(frozen=True)
class SXid:
    """One SXID line of the kernel log: what the driver of an NVSwitch says. Fields as of `Xid`.

    Attributes:
        is_fatal: the driver's own word.
        link: the NVLink of the switch that it is about; None: none, or all.
    """

    code: int
    pci_bus_id: str
    sequence: int
    is_fatal: bool
    age_s: float = 0.0
    text: str = ""
    link: int | None = None


@dataclass(frozen=True)
class CardFailure:
    """A line of the kernel log by which NVIDIA's driver says without an XID that a card cannot be used.

    Other fields as of `Xid`.

    Attributes:
        pci_bus_id: None: the line does not name the card.
    """

    code: Literal["fallen_off_the_bus", "init_failed"]
    pci_bus_id: str | None
    sequence: int
    age_s: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class KernelLog:
    """What was read of the kernel log.

    Attributes:
        xids, sxids, failures: those after the record that was asked for, oldest first.
        last_sequence: of the newest record that was looked at; None: there was none.
        error: why it could not be read; None: it was.
        is_wanted: false: it was not to be read.
        lost_count: records after the one that was asked for that the log had overwritten before they were read.
    """

    xids: tuple[Xid, ...] = ()
    last_sequence: int | None = None
    error: str | None = None
    sxids: tuple[SXid, ...] = ()
    lost_count: int = 0
    failures: tuple[CardFailure, ...] = ()
    is_wanted: bool = True
