"""NVLinks as the driver tells them: what joins two cards, how fast, and whether the fabric behind switches is up.

Rule: pure. A link to a switch joins two cards only where both are in one working fabric: links train by themselves,
so all of them can be active while no peer can be reached. Knows no NVML module: numbers come in as NVML has them.

Source: nvml.h of CUDA 13 (nvmlGpuFabricInfo_v2_t, NVML_GPU_FABRIC_…); Dstack-TEE/dstack pull request 1167 and
NVIDIA/NVSentinel issue 883 for fabrics that are down behind active links.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from meshwright_agent.facts.model import FabricFacts, FabricState

GPU, SWITCH = 0, 2
"""NVML_NVLINK_DEVICE_TYPE_…: what is at the other end of a link. 1 is a POWER9 processor, 255 unknown."""
_PROCESSOR: Final = 1
_BRIDGE_CLASS: Final = "0x0680"
"""PCI class of NVSwitches: "other bridge"."""

_DATA_RATES: Final[Mapping[int, float]] = {
    20625: 20e9,
    25781: 25e9,
    26562: 25e9,
    26563: 25e9,
    53125: 50e9,
}
"""What NVML calls a link's speed, in MB/s, → what it carries one way, in bytes/s. NVML counts what the line code adds
(66 bits for 64, later 17 for 16); a speed that is not here is taken as it is, such as NVLink 3's 25000.

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
"""Shift in the health mask → what its two bits mean when they are 1; 2 is well, 0 is not told."""
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
    """Returns how many NVLinks join two cards: directly, else by switches, where the narrower side counts.

    Args:
        a, b: PCI addresses; None: not known.
        links_a, links_b: what each card has.
        switched: whether links to switches lead from one to the other: `are_joined` of their fabrics.
    """
    direct = min(links_a.to_cards.get(b or "", 0), links_b.to_cards.get(a or "", 0))
    through = min(links_a.to_switches, links_b.to_switches) if switched else 0
    return direct or through


def leads_to_switch(remote: int | None, kind: str | None) -> bool:
    """Returns whether a link leads to a switch.

    Args:
        remote: NVML's type of the other end; None: it does not say.
        kind: PCI class of the other end as sysfs writes it; None: nothing is at its address on this host, as with
            switches that a virtual machine does not see, or that stand in another tray of the rack.
    """
    if remote in {GPU, SWITCH, _PROCESSOR}:
        return remote == SWITCH
    return kind is None or kind.startswith(_BRIDGE_CLASS)


def parse_link_rate(speed_mb_per_s: int) -> float | None:
    """Returns bytes/s that one link carries one way; None for NVML's 0: not known."""
    return _DATA_RATES.get(speed_mb_per_s, speed_mb_per_s * 1e6) if speed_mb_per_s > 0 else None


def parse_fabric(
    *, cluster: bytes, clique: int, state: int, status: int, health: int, status_text: str
) -> FabricFacts | None:
    """Returns what a card's registration with its fabric came to; None for a state that is not known.

    Args:
        cluster: 16 bytes of the cluster's uuid; all zero: there is none, the fabric is this box.
        clique: the partition of the cluster.
        state, status, health: as nvmlGpuFabricInfo_v2_t has them.
        status_text: NVML's words for the status.
    """
    name = _STATES.get(state & 0xFF)  # one byte in C, four in nvidia-ml-py: the others are padding
    if name is None:
        return None
    return FabricFacts(
        state=name,
        error=status_text if name == "completed" and status != _SUCCESS else None,
        cluster_uuid=str(UUID(bytes=cluster)) if any(cluster) else None,
        clique_id=clique,
        faults=tuple(_list_faults(health)) if name == "completed" else (),
    )


def _list_faults(health: int) -> Iterator[str]:
    yield from (text for shift, text in _HEALTH_BITS if health >> shift & 0b11 == 1)
    configuration = health >> _CONFIGURATION_SHIFT & 0xF
    if configuration in _CONFIGURATIONS:
        yield f"its configuration is wrong: {_CONFIGURATIONS[configuration]}"


def are_joined(a: FabricFacts | None, b: FabricFacts | None) -> bool:
    """Returns whether switches lead from one card to another: both registered, and with no two different fabrics.

    Cards that know no registration (before Hopper) are joined by any switch.
    """
    domains = {fabric.domain for fabric in (a, b) if fabric and fabric.domain}
    return len(domains) < 2 and not any(fabric.is_down for fabric in (a, b) if fabric)


def describe_fault(fabric: FabricFacts | None) -> str | None:
    """Returns what is wrong with a card's fabric, as a sentence; None: nothing that is known."""
    if fabric is None:
        return None
    if fabric.is_down:
        reason = fabric.error or fabric.state.replace("_", " ")
        return (
            f"its NVLink fabric is down ({reason}): links through switches reach no other GPU; check "
            f"nvidia-fabricmanager, and on racks the NVLink switches' controller"
        )
    return f"its NVLink fabric is not well: {'; '.join(fabric.faults)}" if fabric.faults else None
