"""NVIDIA GPUs by NVML: cards, MIG instances, links, processes. Runs in the probe; makes no CUDA context.

Rule: NVML is an argument, every call may fail by itself, and a failure costs one field and is named. "Not
supported" is an answer: the card has no such thing. NVML is shut down after each read, since an open handle
can block a reset. Knows nothing of JAX.

Source: NVIDIA, NVML API Reference Guide (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final

from meshwright.topology.pci import DISPLAY_CLASS, NVIDIA
from meshwright_agent.facts.bus import BusRoots, find_refused, judge_silence, read_bus
from meshwright_agent.facts.gpu_health import GpuHealthReader
from meshwright_agent.facts.model import (
    ComputeMode,
    DriverFacts,
    FabricFacts,
    GpuFacts,
    GpuLink,
    MigFacts,
    Problem,
    ProblemKind,
    ProcessFacts,
    RefusedCard,
)
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
from meshwright_agent.facts.pci_health import read_pci_health
from meshwright_agent.facts.sysfs import (
    list_folder,
    parse_pci_address,
    read_numa_node,
    read_pci_devices,
    read_pcie_root,
    read_text,
)
from meshwright_agent.facts.unlisted import judge_listed

_DEVICE_FILE: Final = re.compile(r"nvidia\d+")
_NOT_SUPPORTED: Final = 3
_NOT_FOUND: Final = 6
_INVALID_ARGUMENT: Final = 2
_FUNCTION_NOT_FOUND: Final = 13
_VERSION_MISMATCH: Final = 25
"""NVML_ERROR_NOT_SUPPORTED, …_NOT_FOUND (an empty MIG slot), …_INVALID_ARGUMENT (beyond the last NVLink),
…_FUNCTION_NOT_FOUND and …_ARGUMENT_VERSION_MISMATCH (a driver older than the function, or than its structure)."""

_COMPUTE_MODES: Final[Mapping[int, ComputeMode]] = {
    0: "default",
    1: "exclusive_process",  # NVML_COMPUTEMODE_EXCLUSIVE_THREAD, which drivers since CUDA 8 treat as mode 3
    2: "prohibited",
    3: "exclusive_process",
}
_ARCHITECTURES: Final[Mapping[int, str]] = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
}
"""NVML_DEVICE_ARCH_…; a newer one is None."""

_TOPOLOGY: Final[Mapping[int, str]] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t → the word of nvidia-smi's matrix; GPUs of one board (0) are behind one switch."""

_MIG_ENABLED: Final = 1


@dataclass(frozen=True)
class NvidiaFacts:
    """What NVML said. `is_blind`: device files of cards are here, and NVML says nothing."""

    gpus: tuple[GpuFacts, ...] = ()
    links: tuple[GpuLink, ...] = ()
    driver: DriverFacts = field(default_factory=DriverFacts)
    problems: tuple[Problem, ...] = ()
    refused: tuple[RefusedCard, ...] = ()
    is_blind: bool = False


@dataclass(frozen=True)
class _Card:
    """A card while it is read."""

    facts: GpuFacts
    handle: Any
    nvlinks: NvLinks | None
    is_divided: bool


Describe = Callable[[int, int | None], ProcessFacts]
"""(process id, bytes of device memory) → what is known of the process."""


def find_nvml() -> Any:
    """Returns the module `pynvml` (package nvidia-ml-py); None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def read_nvidia(
    nvml: Any,
    *,
    here: BusRoots,
    describe: Describe,
    lists_all: bool = True,
    wants_health: bool = True,
) -> NvidiaFacts:
    """Returns the GPUs of this host.

    Args:
        nvml: the module `pynvml`, or what behaves like it; None: there is none.
        here: where the PCI bus and device files are listed; cards in either without NVML are a problem.
        describe: names the processes that NVML lists.
        lists_all: False where NVML may leave processes out of its list, as in a container (`facts.unlisted`).
        wants_health: False where only holders are asked for, and time is short.
    """
    if nvml is None:
        return _tell_blind(here, "no_library", "the package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        kind = judge_silence(read_bus(here.sysfs, here.proc), here, error.value)
        return _tell_blind(here, kind, f"NVML does not start: {error}")
    reader = _Reader(nvml, here, describe, lists_all=lists_all, wants_health=wants_health)
    try:
        return reader.read()
    finally:
        reader.ask("NVML", "nvmlShutdown")


def _tell_blind(here: BusRoots, kind: ProblemKind, reason: str) -> NvidiaFacts:
    """Returns no GPU; a host that has cards all the same has a problem."""
    cards = [card.address for card in read_pci_devices(here.sysfs, NVIDIA) if card.kind.startswith(DISPLAY_CLASS)]
    files = _list_files(here)
    seen = cards or files
    if not seen:
        return NvidiaFacts()
    problem = f"{len(seen)} NVIDIA card(s) cannot be read ({', '.join(seen)}): {reason}"
    return NvidiaFacts(problems=(Problem(kind, problem),), is_blind=bool(files))


def _list_files(here: BusRoots) -> list[str]:
    return [f"/dev/{file.name}" for file in list_folder(here.dev) if _DEVICE_FILE.fullmatch(file.name)]


class _Reader:
    """One read, between nvmlInit and nvmlShutdown."""

    def __init__(self, nvml: Any, here: BusRoots, describe: Describe, *, lists_all: bool, wants_health: bool) -> None:
        self._nvml = nvml
        self._here = here
        self._sysfs = here.sysfs
        self._describe = describe
        self._lists_all = lists_all
        self._wants_health = wants_health
        self._problems: list[Problem] = []
        self._bus = read_bus(here.sysfs, here.proc)
        self._refusals: dict[int, int] = {}

    def ask(self, whom: str, function: str, *args: Any, none_on: Sequence[int] = (_NOT_SUPPORTED,)) -> Any:
        """Returns what NVML answers; None if it cannot: a problem, unless its error is one of `none_on`."""
        try:
            return getattr(self._nvml, function)(*args)
        except self._nvml.NVMLError as error:
            if error.value not in none_on:
                self._tell(f"{whom}: {function}: {error}")
        except AttributeError:
            self._tell(f"{whom}: {function}: this release of nvidia-ml-py does not have it")
        return None

    def _tell(self, text: str, kind: ProblemKind = "unanswered") -> None:
        self._problems.append(Problem(kind, text))

    def read(self) -> NvidiaFacts:
        """Returns everything."""
        driver = DriverFacts(
            version=_to_text(self.ask("driver", "nvmlSystemGetDriverVersion")),
            cuda_version=parse_cuda_version(self.ask("driver", "nvmlSystemGetCudaDriverVersion_v2")),
        )
        count = self._count_cards()
        cards = [card for index in range(count or 0) if (card := self._read_card(index)) is not None]
        gpus = tuple(gpu for card in cards for gpu in self._read_parts(card))
        whole = [card for card in cards if not card.is_divided]
        links = tuple(link for a, b in combinations(whole, 2) if (link := self._read_link(a, b)) is not None)
        refused = self._find_refused(cards) if count is not None else ()
        if refused and not cards:
            self._tell(f"none of {len(refused)} NVIDIA card(s) can be used", "driver_down")
        is_blind = count is None and bool(_list_files(self._here))
        return NvidiaFacts(gpus, links, driver, tuple(self._problems), refused, is_blind)

    def _count_cards(self) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            kind = judge_silence(self._bus, self._here, error.value)
            self._tell(f"driver: nvmlDeviceGetCount: {error}; the bus has {len(self._bus)} card(s)", kind)
        return None

    def _find_refused(self, cards: Sequence[_Card]) -> tuple[RefusedCard, ...]:
        errors = sorted(self._refusals.items())
        return find_refused(self._bus, [card.facts.pci_bus_id for card in cards], errors, self._here)

    def _read_card(self, index: int) -> _Card | None:
        whom = f"GPU {index}"
        handle = self._find_card(whom, index)
        if handle is None:
            return None
        facts = self._read_gpu(whom, handle, GpuFacts(index=index))
        if self._wants_health:
            health = GpuHealthReader(self._nvml, handle).read(is_computing=bool(facts.processes))
            facts = replace(facts, health=health)
        mode = self.ask(whom, "nvmlDeviceGetMigMode", handle)
        if mode and mode[0] == _MIG_ENABLED:
            return _Card(facts, handle, NvLinks(), is_divided=True)
        facts = replace(facts, fabric=self._read_fabric(whom, handle))
        return _Card(facts, handle, self._read_nvlinks(whom, handle), is_divided=False)

    def _find_card(self, whom: str, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            self._refusals[index] = error.value
            self._tell(f"{whom}: the driver gives no handle for it: {error}", "refused")
        return None

    def _read_fabric(self, whom: str, handle: Any) -> FabricFacts | None:
        info = self.ask(whom, "c_nvmlGpuFabricInfo_v2_t")
        if info is None:
            return None
        none_on = (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _VERSION_MISMATCH)
        if self.ask(whom, "nvmlDeviceGetGpuFabricInfoV", handle, byref(info), none_on=none_on) is None:
            return None
        fabric = parse_fabric(
            cluster=bytes(info.clusterUuid),
            clique=info.cliqueId,
            state=info.state,
            status=info.status,
            health=info.healthMask,
            status_text=str(self._nvml.NVMLError(info.status)),
        )
        if fault := describe_fault(fabric):
            self._tell(f"{whom}: {fault}", "fabric")
        return fabric

    def _read_gpu(self, whom: str, handle: Any, base: GpuFacts) -> GpuFacts:
        pci = self.ask(whom, "nvmlDeviceGetPciInfo", handle)
        address = parse_pci_address(_to_text(pci.busId) or "") if pci is not None else None
        folder = self._sysfs / "bus/pci/devices" / (address or "-")
        architecture = self.ask(whom, "nvmlDeviceGetArchitecture", handle)
        mode = self.ask(whom, "nvmlDeviceGetComputeMode", handle)
        return replace(
            self._read_common(whom, handle, base),
            pci_bus_id=address,
            pcie_root=read_pcie_root(folder),
            numa_node=read_numa_node(folder),
            architecture=_ARCHITECTURES.get(architecture),
            compute_capability=_format_version(self.ask(whom, "nvmlDeviceGetCudaComputeCapability", handle)),
            compute_mode=_COMPUTE_MODES.get(mode),
            minor=self.ask(whom, "nvmlDeviceGetMinorNumber", handle),
            pci=read_pci_health(folder),
        )

    def _read_common(self, whom: str, handle: Any, base: GpuFacts) -> GpuFacts:
        """Returns what cards and MIG instances both have."""
        memory = self.ask(whom, "nvmlDeviceGetMemoryInfo", handle, self._nvml.nvmlMemory_v2)
        used_bytes = None if memory is None else int(memory.used)
        return replace(
            base,
            kind=_to_text(self.ask(whom, "nvmlDeviceGetName", handle)),
            uuid=_to_text(self.ask(whom, "nvmlDeviceGetUUID", handle)),
            memory_bytes=None if memory is None else int(memory.total),
            used_bytes=used_bytes,
            processes=self._read_processes(whom, handle, used_bytes),
        )

    def _read_processes(self, whom: str, handle: Any, used_bytes: int | None) -> tuple[ProcessFacts, ...] | None:
        running = self.ask(whom, "nvmlDeviceGetComputeRunningProcesses", handle)
        if running is None:
            return None
        listed = tuple(self._describe(process.pid, process.usedGpuMemory) for process in running)
        return listed if self._lists_all else judge_listed(listed, used_bytes)

    def _read_parts(self, card: _Card) -> Iterator[GpuFacts]:
        """Yields the card, or its MIG instances."""
        if not card.is_divided:
            yield card.facts
            return
        whom = f"GPU {card.facts.index}"
        slots = range(self.ask(whom, "nvmlDeviceGetMaxMigDeviceCount", card.handle) or 0)
        handles = [self._find_instance(whom, card, slot) for slot in slots]
        if not any(handle is not None for handle in handles):
            words = f"{whom} ({card.facts.key}) is in MIG mode without instances: nothing can run there"
            self._tell(words, "no_instances")
        for handle in handles:
            if handle is not None:
                yield self._read_instance(whom, card, handle)

    def _find_instance(self, whom: str, card: _Card, slot: int) -> Any:
        none_on = (_NOT_FOUND, _INVALID_ARGUMENT)
        return self.ask(whom, "nvmlDeviceGetMigDeviceHandleByIndex", card.handle, slot, none_on=none_on)

    def _read_instance(self, whom: str, card: _Card, handle: Any) -> GpuFacts:
        instance = self._read_common(f"MIG instance of {whom}", handle, card.facts)
        return replace(
            instance,
            mig=MigFacts(
                parent_uuid=card.facts.key,
                profile=parse_profile(instance.kind),
                gpu_instance_id=self.ask(whom, "nvmlDeviceGetGpuInstanceId", handle),
                compute_instance_id=self.ask(whom, "nvmlDeviceGetComputeInstanceId", handle),
            ),
        )

    def _read_nvlinks(self, whom: str, handle: Any) -> NvLinks | None:
        """Returns a card's active links; None where one could not be read, since a count would be too low."""
        before = len(self._problems)
        cards: Counter[str] = Counter()
        switches = 0
        none_on = (_NOT_SUPPORTED, _INVALID_ARGUMENT)
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            state = self.ask(whom, "nvmlDeviceGetNvLinkState", handle, link, none_on=none_on)
            if state is None:
                break
            if not state:
                continue
            remote = self.ask(whom, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            address = None if remote == SWITCH else self._read_remote(whom, handle, link)
            if leads_to_switch(remote, self._read_class(address)):
                switches += 1
            elif address is not None:
                cards[address] += 1
        if len(self._problems) > before:
            return None
        speed = self._read_link_speed(whom, handle) if cards or switches else None
        return NvLinks(dict(cards), switches, speed)

    def _read_remote(self, whom: str, handle: Any, link: int) -> str | None:
        pci = self.ask(whom, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        return None if pci is None else parse_pci_address(_to_text(pci.busId) or "")

    def _read_class(self, address: str | None) -> str | None:
        """Returns the PCI class of a function; None where this host has none at that address."""
        return read_text(self._sysfs / "bus/pci/devices" / address / "class") if address else None

    def _read_link_speed(self, whom: str, handle: Any) -> float | None:
        """Returns bytes/s of one link, one way. Source: nvml.h: the field is in MB/s, of active links."""
        field_ids = [self._nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
        values = self.ask(whom, "nvmlDeviceGetFieldValues", handle, field_ids)
        if not values or values[0].nvmlReturn != 0:
            return None
        return parse_link_rate(values[0].value.uiVal)

    def _read_link(self, a: _Card, b: _Card) -> GpuLink | None:
        if a.nvlinks is None or b.nvlinks is None:
            return None
        switched = are_joined(a.facts.fabric, b.facts.fabric)
        count = count_nvlinks(a.facts.pci_bus_id, a.nvlinks, b.facts.pci_bus_id, b.nvlinks, switched=switched)
        if count:
            speeds = [speed for speed in (a.nvlinks.link_bytes_per_s, b.nvlinks.link_bytes_per_s) if speed]
            total = count * min(speeds) if len(speeds) == 2 else None
            return GpuLink(a.facts.key, b.facts.key, f"NV{count}", count, total)
        whom = f"GPU {a.facts.index} and {b.facts.index}"
        level = self.ask(whom, "nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle)
        kind = _TOPOLOGY.get(level)
        return None if kind is None else GpuLink(a.facts.key, b.facts.key, kind)


def parse_cuda_version(number: int | None) -> str | None:
    """Returns NVML's 12020 as "12.2"."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def parse_profile(name: str | None) -> str | None:
    """Returns "3g.20gb" of a MIG instance's name "NVIDIA A100-SXM4-40GB MIG 3g.20gb"; None: it has none."""
    return (name or "").partition(" MIG ")[2].strip() or None


def _format_version(pair: Sequence[int] | None) -> str | None:
    return ".".join(str(part) for part in pair) if pair else None


def _to_text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
