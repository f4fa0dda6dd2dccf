"""NVLinks and fabric of NVIDIA's cards by NVML, and what joins two cards. Runs in the probe.

Rule: a card one of whose links cannot be read has none that are known, since a count would be too low. What the numbers
mean is `nvlink`'s.

Source: NVIDIA, NVML API Reference Guide, NvLink Methods (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ctypes import byref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from meshwright_agent.facts.model import FabricFacts, GpuFacts, GpuLink
from meshwright_agent.facts.nvlink import (
    SWITCH,
    NvLinks,
    are_joined,
    count_nvlinks,
    describe_fault,
    leads_to_switch,
    parse_fabric,
    parse_link_rate,
)
from meshwright_agent.facts.nvml_questions import Questions, to_text
from meshwright_agent.facts.sysfs import parse_pci_address, read_text

_TOPOLOGY: Final[Mapping[int, str]] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t → the word of nvidia-smi's matrix; GPUs of one board (0) are behind one switch."""


@dataclass(frozen=True)
class Card:
    """A card while it is read.

    Attributes:
        parts: what can be computed on: the card itself, or its MIG instances.
        nvlinks: None: they are not known.
    """

    facts: GpuFacts
    handle: Any
    parts: tuple[GpuFacts, ...]
    nvlinks: NvLinks | None
    is_divided: bool


class LinkReader:
    """Reads links, between nvmlInit and nvmlShutdown.

    Args:
        sysfs: tells what stands at the other end of a link.
    """

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs

    def read_fabric(self, questions: Questions, handle: Any) -> FabricFacts | None:
        """Returns a card's registration with its fabric; one that is not well is a problem."""
        build = getattr(questions.nvml, "c_nvmlGpuFabricInfo_v2_t", None)
        info = None if build is None else build()
        if info is None or questions.ask("fabric", handle, byref(info)) is None:
            return None
        fabric = parse_fabric(
            cluster=bytes(info.clusterUuid),
            clique=info.cliqueId,
            state=info.state,
            status=info.status,
            health=info.healthMask,
            status_text=str(questions.nvml.NVMLError(info.status)),
        )
        if fault := describe_fault(fabric):
            questions.tell(f"{questions.whom}: {fault}", "fabric")
        return fabric

    def read_nvlinks(self, questions: Questions, handle: Any) -> NvLinks | None:
        """Returns a card's active links; None where one could not be read, since a count would be too low."""
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
            if leads_to_switch(remote, self._read_class(address)):
                switches += 1
            elif address is not None:
                cards[address] += 1
        if len(questions.problems) > before:
            return None
        speed = questions.ask("nvlink_speed", handle) if cards or switches else None
        return NvLinks(dict(cards), switches, parse_link_rate(speed or 0))

    def _read_class(self, address: str | None) -> str | None:
        """Returns the PCI class of a function; None where this host has none at that address."""
        return read_text(self._sysfs / "bus/pci/devices" / address / "class") if address else None

    def read_link(self, questions: Questions, a: Card, b: Card) -> GpuLink | None:
        """Returns what joins two cards; None where it is not known."""
        if a.nvlinks is None or b.nvlinks is None:
            return None
        switched = are_joined(a.facts.fabric, b.facts.fabric)
        count = count_nvlinks(a.facts.pci_bus_id, a.nvlinks, b.facts.pci_bus_id, b.nvlinks, switched=switched)
        if count:
            speeds = [speed for speed in (a.nvlinks.link_bytes_per_s, b.nvlinks.link_bytes_per_s) if speed]
            total = count * min(speeds) if len(speeds) == 2 else None
            return GpuLink(a.facts.key, b.facts.key, f"NV{count}", count, total)
        level = questions.ask("ancestor", a.handle, b.handle)
        kind = _TOPOLOGY.get(level)
        return None if kind is None else GpuLink(a.facts.key, b.facts.key, kind)


def _read_remote(questions: Questions, handle: Any, link: int) -> str | None:
    pci = questions.ask("nvlink_remote", handle, link)
    return None if pci is None else parse_pci_address(to_text(pci.busId) or "")
