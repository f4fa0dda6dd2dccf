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
from meshwright_agent.facts.nvml_questions import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    Questions,
    to_text,
)
from meshwright_agent.facts.sysfs import parse_pci_address, read_text

_TOPOLOGY: Final[Mapping[int, str]] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t → the word of nvidia-smi's matrix; GPUs of one board (0) are behind one switch."""


@dataclass(frozen=True)
class Card:
    """A card while it is read. `nvlinks`: None: they are not known."""

    facts: GpuFacts
    handle: Any
    nvlinks: NvLinks | None
    is_divided: bool


class LinkReader:
    """Reads links, between nvmlInit and nvmlShutdown.

    Args:
        questions: asks NVML.
        sysfs: tells what stands at the other end of a link.
    """

    def __init__(self, questions: Questions, sysfs: Path) -> None:
        self._questions = questions
        self._sysfs = sysfs

    def read_fabric(self, whom: str, handle: Any) -> FabricFacts | None:
        """Returns a card's registration with its fabric; one that is not well is a problem."""
        info = self._questions.ask(whom, "c_nvmlGpuFabricInfo_v2_t")
        if info is None:
            return None
        none_on = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH)
        if self._questions.ask(whom, "nvmlDeviceGetGpuFabricInfoV", handle, byref(info), none_on=none_on) is None:
            return None
        fabric = parse_fabric(
            cluster=bytes(info.clusterUuid),
            clique=info.cliqueId,
            state=info.state,
            status=info.status,
            health=info.healthMask,
            status_text=str(self._questions.nvml.NVMLError(info.status)),
        )
        if fault := describe_fault(fabric):
            self._questions.tell(f"{whom}: {fault}", "fabric")
        return fabric

    def read_nvlinks(self, whom: str, handle: Any) -> NvLinks | None:
        """Returns a card's active links; None where one could not be read, since a count would be too low."""
        before = len(self._questions.problems)
        cards: Counter[str] = Counter()
        switches = 0
        none_on = (NOT_SUPPORTED, INVALID_ARGUMENT)
        for link in range(self._questions.nvml.NVML_NVLINK_MAX_LINKS):
            state = self._questions.ask(whom, "nvmlDeviceGetNvLinkState", handle, link, none_on=none_on)
            if state is None:
                break
            if not state:
                continue
            remote = self._questions.ask(whom, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            address = None if remote == SWITCH else self._read_remote(whom, handle, link)
            if leads_to_switch(remote, self._read_class(address)):
                switches += 1
            elif address is not None:
                cards[address] += 1
        if len(self._questions.problems) > before:
            return None
        speed = self._read_link_speed(whom, handle) if cards or switches else None
        return NvLinks(dict(cards), switches, speed)

    def _read_remote(self, whom: str, handle: Any, link: int) -> str | None:
        pci = self._questions.ask(whom, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        return None if pci is None else parse_pci_address(to_text(pci.busId) or "")

    def _read_class(self, address: str | None) -> str | None:
        """Returns the PCI class of a function; None where this host has none at that address."""
        return read_text(self._sysfs / "bus/pci/devices" / address / "class") if address else None

    def _read_link_speed(self, whom: str, handle: Any) -> float | None:
        """Returns bytes/s of one link, one way. Source: nvml.h: the field is in MB/s, of active links."""
        field_ids = [self._questions.nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
        values = self._questions.ask(whom, "nvmlDeviceGetFieldValues", handle, field_ids)
        if not values or values[0].nvmlReturn != 0:
            return None
        return parse_link_rate(values[0].value.uiVal)

    def read_link(self, a: Card, b: Card) -> GpuLink | None:
        """Returns what joins two cards; None where it is not known."""
        if a.nvlinks is None or b.nvlinks is None:
            return None
        switched = are_joined(a.facts.fabric, b.facts.fabric)
        count = count_nvlinks(a.facts.pci_bus_id, a.nvlinks, b.facts.pci_bus_id, b.nvlinks, switched=switched)
        if count:
            speeds = [speed for speed in (a.nvlinks.link_bytes_per_s, b.nvlinks.link_bytes_per_s) if speed]
            total = count * min(speeds) if len(speeds) == 2 else None
            return GpuLink(a.facts.key, b.facts.key, f"NV{count}", count, total)
        whom = f"GPU {a.facts.index} and {b.facts.index}"
        level = self._questions.ask(whom, "nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle)
        kind = _TOPOLOGY.get(level)
        return None if kind is None else GpuLink(a.facts.key, b.facts.key, kind)
