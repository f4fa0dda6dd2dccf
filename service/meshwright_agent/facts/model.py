"""Facts of a host as plain values, with wire types where they have the same meaning. The probe sends them as JSON.

A field is None if its source did not return a value. Failures are listed in `problems`. Sizes are in bytes,
temperatures in degrees Celsius, indices as the driver counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from meshwright.wire.devices import DeviceProcess, Mig

ComputeMode = Literal["default", "exclusive_process", "prohibited"]
FabricState = Literal["not_supported", "not_started", "in_progress", "completed"]
ProblemKind = Literal[
    "driver_down", "unreadable", "no_library", "refused", "unanswered", "fabric_down", "fabric_starting", "fabric",
    "no_instances", "no_tpu_driver"
]  # fmt: skip
"""The driver does not serve any card · NVML does not list a card, which may be hidden from this process · nvidia-ml-py
is not installed · NVML does not return a handle for a card · one NVML call failed · the NVLink fabric does not work ·
it is not ready yet · it has a fault · a card in MIG mode does not have instances · a TPU does not have a driver."""


IDLE_BYTES: Final = 32 * 2**20
"""A GPU with less memory in use is idle: no process has a context on it. A bare context took 107 MiB on 34
multiprocessors (RTX 4060 Ti) and 555 MiB on 188 (RTX PRO 6000). That is 8 MiB plus about 3 MiB per multiprocessor, or
about 50 MiB on the 14 of the smallest MIG instance. For an idle card or instance drivers report 4 to 7 MiB, without
reserved memory. Source: ggml-org/llama.cpp#23604; nvmlMemory_v2_t of the NVML API reference; tests/recorded."""


@dataclass(frozen=True)
class SourceProblem:
    """A source that should be readable and was not. `text`: a sentence.

    `cards`: addresses of cards on the bus that are not listed because of it; None: an unknown address.
    """

    kind: ProblemKind
    text: str
    cards: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class RefusedCard:
    """An NVIDIA card on this host for which the driver does not return a handle.

    Attributes:
        pci_bus_id: None: NVML counts the card, but its address is not known.
        index: NVML index; None: NVML does not count the card.
    """

    pci_bus_id: str | None
    index: int | None
    reason: str


@dataclass(frozen=True)
class MachineFacts:
    """The machine and its operating system. `container`: "kubernetes", "docker", …; None: not detected."""

    name: str
    boot_id: str | None = None
    kernel: str | None = None
    operating_system: str | None = None
    container: str | None = None


@dataclass(frozen=True)
class CpuFacts:
    """Processors and memory.

    Attributes:
        usable_threads: whole threads that affinity mask and cgroup quota allow this process, rounded down. 0 means less
            than one.
        memory_limit_bytes: limit of this process's cgroup; None: unlimited.
        available_bytes: memory available without swapping, within the limit.
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
        cpus: the kernel's list: "0-15,32-47"; "" for a node without CPUs.
    """

    node: int
    cpus: str


@dataclass(frozen=True)
class FabricFacts:
    """A card's registration with the fabric of NVLink switches.

    Attributes:
        error: why a completed registration failed; None: it succeeded.
        cluster_uuid: None for a fabric of one host, for which NVML reports a uuid of zeros.
        faults: the faults in the driver's health mask.
    """

    state: FabricState
    error: str | None = None
    cluster_uuid: str | None = None
    clique_id: int | None = None
    faults: tuple[str, ...] = ()

    @property
    def is_down(self) -> bool:
        """True for a fabric that exists and does not work."""
        return self.state in {"not_started", "in_progress"} or self.error is not None

    @property
    def domain(self) -> str | None:
        """The NVLink domain, "<cluster uuid>.<clique id>", as NVIDIA's label nvidia.com/gpu.clique; None: no domain."""
        if self.state != "completed" or self.error is not None or self.cluster_uuid is None:
            return None
        return f"{self.cluster_uuid}.{self.clique_id}"


@dataclass(frozen=True)
class GpuFacts:
    """One GPU for computation: a whole card or a MIG instance.

    Attributes:
        index: index of the card in nvidia-smi; the instances of a card share it.
        minor: number of the card's device file: 3 for /dev/nvidia3. It may differ from the index.
        pci_bus_id: address in the form of sysfs: "0000:1b:00.0".
        compute_capability: "9.0".
        slot: number of a MIG instance on its card.
        fabric: None if the driver does not report one, and for MIG instances, which do not have NVLink.
        health: health of the card; its MIG instances share it.
        pci: sysfs' report on the card.
        unlisted_pids: those of `processes` that the driver reports and that this container's process list does not
            have. Their identity is unknown.
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
    slot: int | None = None
    fabric: FabricFacts | None = None
    processes: tuple[DeviceProcess, ...] | None = None
    health: GpuHealth | None = None
    pci: PciHealth | None = None
    unlisted_pids: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The strongest name of the GPU, stable between reads."""
        card = self.pci_bus_id or f"gpu {self.index}"
        return self.uuid or (card if self.slot is None else f"{card}/{self.slot}")


@dataclass(frozen=True)
class GpuLink:
    """The link between two GPUs, by their keys. `kind` as in nvidia-smi's matrix: NV18, PIX, PXB, PHB, NODE, SYS.

    `bandwidth_bytes_per_s`: one-way bandwidth of all parallel links together, if the driver reports a link's speed.
    """

    a: str
    b: str
    kind: str
    bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True)
class TpuFacts:
    """One TPU on the PCI bus: a chip, or half a chip on generations that list the halves separately.

    Attributes:
        kind: JAX's name, "TPU v5 lite"; None if the PCI id is unknown or ambiguous.
        device_file: "/dev/accel0", "/dev/vfio/3".
        processes: processes that have the device file open; None: unknown.
        has_file: the device file exists; None: the TPU does not have one.
        pci: sysfs' report on the TPU.
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
    """The TPU slice of this host, from the environment. Shapes in chips, [x, y, z].

    Attributes:
        topology: shape of the whole slice.
        chips_per_host: shape of each host.
        hosts: arrangement of the hosts, in hosts.
        wrap: whether each dimension of the slice is a ring.
        twisted: the slice is a twisted torus; None: not reported.
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
class NicFacts:
    """One port of a network adapter with RDMA: InfiniBand, RoCE (link layer Ethernet), EFA (Unspecified).

    Attributes:
        name: "mlx5_0:1", adapter and port as NCCL writes them; "mlx5_0" for an adapter whose ports cannot be listed.
        near: PCI addresses of the accelerators closest to it, below the same PCIe root; empty: none, or unknown.
        state, physical_state, link_layer: the kernel's words: "ACTIVE", "LinkUp", "InfiniBand".
        rate_bytes_per_s: rate one way; None: unknown, or the port is not up, whose rate is not that of a link.
        net_device: its network interface, in the agent's network namespace.
        counters: errors and congestion since the adapter's reset, as the kernel names them; without unreadable ones.
        attributes: hca_type, fw_ver, board_id and node_guid.
    """

    name: str
    pci_bus_id: str
    near: tuple[str, ...] = ()
    link_layer: str | None = None
    state: str | None = None
    physical_state: str | None = None
    rate_bytes_per_s: float | None = None
    net_device: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where it is, whatever the kernel calls it: "0000:18:00.0:1"."""
        return f"{self.pci_bus_id}:{self.name.partition(':')[2]}"

    @property
    def is_up(self) -> bool:
        """True for a port that carries traffic."""
        return self.state in UP


UP: Final = frozenset({"ACTIVE", "ACTIVE_DEFER"})
"""States of a port that carries traffic. Source: Linux, drivers/infiniband/core/sysfs.c, state_show."""


@dataclass(frozen=True)
class KfdFacts:
    """AMD's compute driver, by its device file. `holders`: processes that have it open; None: unknown."""

    holders: tuple[DeviceProcess, ...] | None = None


@dataclass(frozen=True)
class HostFacts:
    """The facts of one probe of a host.

    Attributes:
        gpus: in NVML's order, which is that of PCI addresses; instances of a card by their slots.
        tpus: in the order of PCI addresses.
        environment: variables that decide JAX's devices on this host, from the probe, whose environment the worker
            shares.
        problems: sources that should be readable and were not.
        refused: cards on this host that no process can use.
        holders: processes that compute on a device; None: none found, and some processes could not be inspected.
        kernel_log: None: this host does not have an NVIDIA card.
        kfd: processes that have AMD's GPUs; None: AMD's driver is not loaded.
        nics: ports of adapters with RDMA, by their names; empty without such an adapter.
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
    problems: tuple[SourceProblem, ...] = ()
    refused: tuple[RefusedCard, ...] = ()
    holders: tuple[DeviceProcess, ...] | None = ()
    kernel_log: KernelLog | None = None
    kfd: KfdFacts | None = None
    nics: tuple[NicFacts, ...] = ()

    @property
    def unread(self) -> tuple[str | None, ...]:
        """Addresses of cards that this agent cannot read, and others may be able to use; None: an unknown address."""
        return self.find_cards("unreadable", "no_library")

    def find_cards(self, *kinds: ProblemKind) -> tuple[str | None, ...]:
        """Returns the addresses of unlisted cards with these problems."""
        return tuple(card for problem in self.problems if problem.kind in kinds for card in problem.cards)


_HOST: TypeAdapter[HostFacts] = TypeAdapter(HostFacts)


def build_json(facts: HostFacts) -> dict[str, Any]:
    """Returns the facts as JSON values for `parse_host_facts`."""
    document: dict[str, Any] = _HOST.dump_python(facts, mode="json")
    return document


def parse_host_facts(document: Mapping[str, Any]) -> HostFacts:
    """Returns the facts that `build_json` wrote.

    Raises:
        pydantic.ValidationError: the document does not have this form.
    """
    return _HOST.validate_python(document)


@dataclass(frozen=True)
class GpuHealth:
    """NVML's report on one card.

    Attributes:
        error: the driver's report that the card is lost or must be reset; None: neither was reported.
        recovery: the recovery action that the driver requests: "GPU reset", …; "" for none; None: not reported.
        temperature_celsius: temperature of the chip; `slowdown_` and `shutdown_celsius` are this card's own limits.
        margin_celsius: distance to the temperature limit that controls the clocks. `slowdown_` and
            `shutdown_margin_celsius` are the margins, mostly below 0, at which the hardware slows down and shuts down.
        slowdowns: why the clocks are reduced; None: not reported.
        power_limit_watts: the power limit in effect, of all limits; `power_default_watts` is the factory default.
        uncorrectable_count: uncorrectable ECC errors since the driver was loaded or the card was reset.
        uncorrectable_lifetime_count: uncorrectable ECC errors since the card was made.
        remap_pending: a memory row will be remapped at the next reset.
        remap_failed: a row could not be remapped, because no spare row is left.
        retirement_pending: a memory page will be retired at the next reset, on cards before Ampere.
        pcie_width, pcie_generation: current values of the link; `most_` is the maximum of card and slot.
        performance_state: 0 is the fastest, which a busy card uses.
        is_computing: a process computes on it.
        nvlinks_active: NVLinks that are up; None: the card does not have NVLinks, or the number is unknown.
        nvlink_errors: "counter link" → errors of an active link since the driver was loaded.
        answers: required question (`nvml.QUESTIONS`) → "answered", "absent" (the card does not have the feature), or
            the name of the error. Questions that were not asked are not listed.
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
    """Sysfs' report on one PCI function.

    Attributes:
        width: current lanes of the link; `most_width` is the maximum that both the device and its slot support.
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
        pci_bus_id: address of the card in the form of sysfs.
        text: the driver's text after the number, without process id and name.
    """

    code: int
    pci_bus_id: str
    age_s: float = 0.0
    text: str = ""
    pid: int | None = None
    process: str | None = None


@dataclass(frozen=True)
class SXid:
    """One SXID line of the kernel log, from the driver of an NVSwitch. Other fields as in `Xid`.

    Attributes:
        is_fatal: the driver's classification.
        link: the affected NVLink of the switch; None: no link, or all links.
    """

    code: int
    pci_bus_id: str
    is_fatal: bool
    age_s: float = 0.0
    text: str = ""
    link: int | None = None


@dataclass(frozen=True)
class CardFailure:
    """A line of the kernel log in which NVIDIA's driver reports an unusable card without an XID.

    Other fields as in `Xid`.

    Attributes:
        pci_bus_id: None: the line does not name the card.
    """

    code: Literal["fallen_off_the_bus", "init_failed"]
    pci_bus_id: str | None
    age_s: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class KernelLog:
    """The result of reading the kernel log.

    Attributes:
        xids, sxids, failures: entries after the requested record, oldest first.
        last_sequence: number of the newest record read; None: no record was read.
        error: why the log could not be read; None: it was read.
        is_wanted: false: reading was disabled.
        lost_count: records after the requested record that were overwritten before they were read.
    """

    xids: tuple[Xid, ...] = ()
    last_sequence: int | None = None
    error: str | None = None
    sxids: tuple[SXid, ...] = ()
    lost_count: int = 0
    failures: tuple[CardFailure, ...] = ()
    is_wanted: bool = True
