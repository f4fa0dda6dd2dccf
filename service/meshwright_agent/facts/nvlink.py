"""NVLinks and NVSwitch fabric of NVIDIA cards, and the link between two cards.

Links to a switch join two cards only if both are in one working fabric: links can be active while no peer is reachable.
If a link cannot be read, the links of its card are unknown, because a count would be too low.

Sources: NVIDIA, NVML API Reference Guide, NvLink Methods; nvml.h of CUDA 13 (nvmlGpuFabricInfo_v2_t); Dstack-TEE/dstack
pull request 1167 and NVIDIA/NVSentinel issue 883 (fabrics that are down behind active links).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from ctypes import byref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from meshwright_agent.facts.model import FabricFacts, FabricState, GpuFacts, GpuLink, ProblemKind
from meshwright_agent.facts.nvml import ABSENT, Questions, to_text
from meshwright_agent.facts.sysfs import parse_pci_address, read_text

GPU, SWITCH = 0, 2
"""NVML_NVLINK_DEVICE_TYPE_…: the device at the other end of a link. 1 is a POWER9 processor, 255 unknown."""
_PROCESSOR: Final = 1
_BRIDGE_CLASS: Final = "0x0680"
"""PCI class of NVSwitches: "other bridge"."""

_DATA_RATES: Final[Mapping[int, float]] = {20625: 20e9, 25781: 25e9, 26562: 25e9, 26563: 25e9, 53125: 50e9}
"""NVML's link speed, in MB/s, → data rate one way, in bytes/s.

NVML includes the overhead of the line code (66 bits for 64, later 17 for 16). Speeds that are not listed, such as
NVLink 3's 25000, are used unchanged.

Source: NVIDIA's data sheets: P100 160 GB/s = 4 links × 2 ways × 20, V100 300 = 6 × 2 × 25, H100 900 = 18 × 2 × 25,
B200 1800 = 18 × 2 × 50; `nvidia-smi nvlink -s` of these in bottlerocket pull request 4418 (26.562) and
NVIDIA/k8s-test-infra issue 371 (53.125).
"""

_STATES: Final[Mapping[int, FabricState]] = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
_SUCCESS: Final = 0

_HEALTH_BITS: Final = (
    (0, "its bandwidth is degraded"),
    (2, "routes are being recovered"),
    (4, "a route is unhealthy"),
    (6, "an access timeout is being recovered"),
)
"""Shift in the health mask → meaning of its two bits if they are 1. 2 is healthy, 0 is not reported."""
_CONFIGURATION_SHIFT: Final = 8
_CONFIGURATIONS: Final[Mapping[int, str]] = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}


@dataclass(frozen=True)
class NvLinks:
    """The active NVLinks of one card: to other cards by PCI address, and to switches."""

    to_cards: Mapping[str, int] = field(default_factory=dict)
    to_switches: int = 0
    link_bytes_per_s: float | None = None


def count_nvlinks(a: str | None, links_a: NvLinks, b: str | None, links_b: NvLinks, *, switched: bool = True) -> int:
    """Returns the number of NVLinks between two cards: direct links, else the smaller number of links to switches.

    Args:
        a, b: PCI addresses; None: unknown.
        links_a, links_b: links of each card.
        switched: whether switches connect the cards: `are_joined` of their fabrics.
    """
    direct = min(links_a.to_cards.get(b or "", 0), links_b.to_cards.get(a or "", 0))
    through = min(links_a.to_switches, links_b.to_switches) if switched else 0
    return direct or through


def leads_to_switch(remote: int | None, kind: str | None) -> bool:
    """Returns whether a link leads to a switch.

    Args:
        remote: NVML's type of the other end; None: not reported.
        kind: PCI class of the other end in the form of sysfs. None: this host does not have a device at the address, as
            with switches hidden from a virtual machine or in another tray of the rack.
    """
    if remote in {GPU, SWITCH, _PROCESSOR}:
        return remote == SWITCH
    return kind is None or kind.startswith(_BRIDGE_CLASS)


def parse_link_rate(speed_mb_per_s: int) -> float | None:
    """Returns the one-way data rate of one link in bytes/s; None for NVML's 0, which means unknown."""
    return _DATA_RATES.get(speed_mb_per_s, speed_mb_per_s * 1e6) if speed_mb_per_s > 0 else None


def parse_fabric(info: Any, status_text: str) -> FabricFacts | None:
    """Returns the result of a card's registration with its fabric; None for an unknown state.

    Args:
        info: as nvmlGpuFabricInfo_v2_t. A cluster uuid of zeros means that the fabric is this host.
    """
    name = _STATES.get(info.state & 0xFF)  # one byte in C, four in nvidia-ml-py: the rest is padding
    if name is None:
        return None
    cluster = bytes(info.clusterUuid)
    return FabricFacts(
        state=name,
        error=status_text if name == "completed" and info.status != _SUCCESS else None,
        cluster_uuid=str(UUID(bytes=cluster)) if any(cluster) else None,
        clique_id=info.cliqueId,
        faults=tuple(_list_faults(info.healthMask)) if name == "completed" else (),
    )


def _list_faults(health: int) -> Iterator[str]:
    yield from (text for shift, text in _HEALTH_BITS if health >> shift & 0b11 == 1)
    configuration = health >> _CONFIGURATION_SHIFT & 0xF
    if configuration in _CONFIGURATIONS:
        yield f"its configuration is wrong: {_CONFIGURATIONS[configuration]}"


def are_joined(a: FabricFacts | None, b: FabricFacts | None) -> bool:
    """Returns whether switches connect two cards: both are registered, and not with different fabrics.

    Cards without registration (before Hopper) are connected by any switch.
    """
    domains = {fabric.domain for fabric in (a, b) if fabric and fabric.domain}
    return len(domains) < 2 and not any(fabric.is_down for fabric in (a, b) if fabric)


def describe_fault(fabric: FabricFacts) -> str | None:
    """Returns the fault of a card's fabric as a sentence; None without a known fault."""
    if fabric.is_down:
        reason = fabric.error or fabric.state.replace("_", " ")
        return (
            f"its NVLink fabric is down ({reason}): links through switches reach no other GPU; check "
            f"nvidia-fabricmanager, and on racks the NVLink switches' controller"
        )
    return f"its NVLink fabric is not well: {'; '.join(fabric.faults)}" if fabric.faults else None


_TOPOLOGY: Final[Mapping[int, str]] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t → the term of nvidia-smi's matrix. GPUs of one board (0) are behind one switch."""


@dataclass(frozen=True)
class CardReading:
    """A card during a read.

    Attributes:
        parts: the usable devices: the card itself, or its MIG instances.
    """

    facts: GpuFacts
    handle: Any
    parts: tuple[GpuFacts, ...]
    nvlinks: NvLinks | None
    is_divided: bool


def read_fabric(questions: Questions, handle: Any) -> FabricFacts | None:
    """Returns a card's registration with its fabric. Adds a problem if the fabric has a fault and the card NVLinks."""
    build = getattr(questions.nvml, "c_nvmlGpuFabricInfo_v2_t", None)
    info = None if build is None else build()
    if info is None or questions.ask("fabric", handle, byref(info)) is None:
        return None
    fabric = parse_fabric(info, str(questions.nvml.NVMLError(info.status)))
    if fabric and (fault := describe_fault(fabric)) and questions.answers.get("nvlink_state") != ABSENT:
        kind: ProblemKind = "fabric_down" if fabric.error else "fabric_starting" if fabric.is_down else "fabric"
        questions.add_problem(f"{questions.whom}: {fault}", kind)
    return fabric


def read_nvlinks(questions: Questions, handle: Any, sysfs: Path) -> NvLinks | None:
    """Returns a card's active links; None if a link could not be read, because the count would be too low.

    Args:
        sysfs: where the PCI class of the other end of a link is read.
    """
    before = len(questions.problems)
    cards: Counter[str] = Counter()
    switches = 0
    for link in range(questions.nvml.NVML_NVLINK_MAX_LINKS):
        state = questions.ask("nvlink_state", handle, link, is_end=link > 0)
        if state is None:
            break
        if not state:
            continue
        remote = questions.ask("nvlink_remote_type", handle, link)
        address = None if remote == SWITCH else _read_remote(questions, handle, link)
        kind = read_text(sysfs / "bus/pci/devices" / address / "class") if address else None
        if leads_to_switch(remote, kind):
            switches += 1
        elif address is not None:
            cards[address] += 1
    if len(questions.problems) > before:
        return None
    speed = questions.ask("nvlink_speed", handle) if cards or switches else None
    return NvLinks(dict(cards), switches, parse_link_rate(speed or 0))


def read_link(questions: Questions, a: CardReading, b: CardReading) -> GpuLink | None:
    """Returns the link between two cards; None if unknown."""
    if a.nvlinks is None or b.nvlinks is None:
        return None
    switched = are_joined(a.facts.fabric, b.facts.fabric)
    count = count_nvlinks(a.facts.pci_bus_id, a.nvlinks, b.facts.pci_bus_id, b.nvlinks, switched=switched)
    if count:
        speeds = [speed for speed in (a.nvlinks.link_bytes_per_s, b.nvlinks.link_bytes_per_s) if speed]
        total = count * min(speeds) if len(speeds) == 2 else None
        return GpuLink(a.facts.key, b.facts.key, f"NV{count}", total)
    level = questions.ask("ancestor", a.handle, b.handle)
    kind = _TOPOLOGY.get(level)
    return None if kind is None else GpuLink(a.facts.key, b.facts.key, kind)


def _read_remote(questions: Questions, handle: Any, link: int) -> str | None:
    pci = questions.ask("nvlink_remote", handle, link)
    return None if pci is None else parse_pci_address(to_text(pci.busId) or "")
