"""NVIDIA GPUs by NVML: cards, MIG instances, links, processes. Runs in the probe; makes no CUDA context.

Rule: NVML is an argument, every question is one of `nvml_questions`, may fail by itself, and a failure costs one field
and is named. A card that NVML counts and that cannot be read is refused, never left out. NVML is shut down after each
read, since an open handle can block a reset. Knows nothing of JAX.

Source: NVIDIA, NVML API Reference Guide (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final

from meshwright_agent.facts.bus import BusRoots, find_refused, judge_silence, read_bus
from meshwright_agent.facts.gpu_health import read_gpu_health
from meshwright_agent.facts.model import (
    ComputeMode,
    DriverFacts,
    GpuFacts,
    GpuLink,
    MigFacts,
    Problem,
    ProblemKind,
    ProcessFacts,
    RefusedCard,
)
from meshwright_agent.facts.nvidia_links import Card, LinkReader
from meshwright_agent.facts.nvlink import NvLinks
from meshwright_agent.facts.nvml_questions import ABSENT, ANSWERED, LOST, Questions, name_error, to_text
from meshwright_agent.facts.pci_health import read_pci_health
from meshwright_agent.facts.sysfs import (
    list_folder,
    parse_pci_address,
    read_numa_node,
    read_pcie_root,
)
from meshwright_agent.facts.unlisted import judge_listed

_DEVICE_FILE: Final = re.compile(r"nvidia\d+")
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
        reader.close()


def _tell_blind(here: BusRoots, kind: ProblemKind, reason: str) -> NvidiaFacts:
    """Returns no GPU; a host that has cards of its own all the same has a problem."""
    cards = [card.address for card in read_bus(here.sysfs, here.proc)]
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
        self._problems: list[Problem] = []
        self._driver = self._build_questions("driver")
        self._links = LinkReader(here.sysfs)
        self._here = here
        self._sysfs = here.sysfs
        self._describe = describe
        self._lists_all = lists_all
        self._wants_health = wants_health
        self._bus = read_bus(here.sysfs, here.proc)
        self._refusals: dict[int, str] = {}

    def _build_questions(self, whom: str) -> Questions:
        return Questions(self._nvml, whom, self._problems)

    def close(self) -> None:
        """Lets NVML go."""
        self._driver.ask("shutdown")

    def read(self) -> NvidiaFacts:
        """Returns everything."""
        driver = DriverFacts(
            version=to_text(self._driver.ask("driver_version")),
            cuda_version=parse_cuda_version(self._driver.ask("cuda_version")),
        )
        count = self._count_cards()
        cards = [card for index in range(count or 0) if (card := self._read_card(index)) is not None]
        gpus = tuple(gpu for card in cards for gpu in card.parts)
        whole = [card for card in cards if not card.is_divided]
        links = tuple(link for a, b in combinations(whole, 2) if (link := self._read_link(a, b)) is not None)
        refused = self._find_refused(cards) if count is not None else ()
        if refused and not gpus:
            self._driver.tell(f"none of {len(refused)} NVIDIA card(s) can be used", "driver_down")
        is_blind = count is None and bool(_list_files(self._here))
        return NvidiaFacts(gpus, links, driver, tuple(self._problems), refused, is_blind)

    def _count_cards(self) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            kind = judge_silence(self._bus, self._here, error.value)
            self._driver.tell(f"driver: nvmlDeviceGetCount: {error}; the bus has {len(self._bus)} card(s)", kind)
        return None

    def _find_refused(self, cards: Sequence[Card]) -> tuple[RefusedCard, ...]:
        read = [card.facts.pci_bus_id for card in cards if card.facts.index not in self._refusals]
        return find_refused(self._bus, read, sorted(self._refusals.items()), self._here)

    def _read_link(self, a: Card, b: Card) -> GpuLink | None:
        return self._links.read_link(self._build_questions(f"GPU {a.facts.index} and {b.facts.index}"), a, b)

    def _read_card(self, index: int) -> Card | None:
        questions = self._build_questions(f"GPU {index}")
        handle = self._find_card(questions, index)
        if handle is None:
            return None
        facts = self._read_gpu(questions, handle, GpuFacts(index=index))
        if self._wants_health:
            health = read_gpu_health(questions, handle, is_computing=bool(facts.processes))
            facts = replace(facts, health=health)
        mode = questions.ask("mig_mode", handle)
        is_divided = bool(mode) and mode[0] == _MIG_ENABLED
        nvlinks: NvLinks | None = NvLinks()
        if is_divided:
            parts = tuple(self._read_instances(questions, facts, handle))
        else:
            facts = replace(facts, fabric=self._links.read_fabric(questions, handle))
            nvlinks = self._links.read_nvlinks(questions, handle)
            parts = (facts,)
        if facts.health is not None:
            health = replace(facts.health, error=questions.lost, answers=questions.answers)
            parts = tuple(replace(part, health=health) for part in parts)
        return Card(facts, handle, parts, nvlinks, is_divided)

    def _find_card(self, questions: Questions, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            refusal = "the driver gives no handle for it"
            self._refusals[index] = LOST.get(error.value, f"{refusal}: {name_error(error.value)}")
            questions.tell(f"{questions.whom}: {refusal}: {error}", "refused")
        return None

    def _read_gpu(self, questions: Questions, handle: Any, base: GpuFacts) -> GpuFacts:
        pci = questions.ask("pci", handle)
        address = parse_pci_address(to_text(pci.busId) or "") if pci is not None else None
        folder = self._sysfs / "bus/pci/devices" / (address or "-")
        architecture = questions.ask("architecture", handle)
        mode = questions.ask("compute_mode", handle)
        return replace(
            self._read_common(questions, handle, base),
            pci_bus_id=address,
            pcie_root=read_pcie_root(folder),
            numa_node=read_numa_node(folder),
            architecture=_ARCHITECTURES.get(architecture),
            compute_capability=_format_version(questions.ask("compute_capability", handle)),
            compute_mode=_COMPUTE_MODES.get(mode),
            minor=questions.ask("minor", handle),
            pci=read_pci_health(folder),
        )

    def _read_common(self, questions: Questions, handle: Any, base: GpuFacts) -> GpuFacts:
        """Returns what cards and MIG instances both have."""
        memory = questions.ask("memory", handle, self._nvml.nvmlMemory_v2)
        used_bytes = None if memory is None else int(memory.used)
        return replace(
            base,
            kind=to_text(questions.ask("name", handle)),
            uuid=to_text(questions.ask("uuid", handle)),
            memory_bytes=None if memory is None else int(memory.total),
            used_bytes=used_bytes,
            processes=self._read_processes(questions, handle, used_bytes),
        )

    def _read_processes(
        self, questions: Questions, handle: Any, used_bytes: int | None
    ) -> tuple[ProcessFacts, ...] | None:
        running = questions.ask("processes", handle)
        if running is None:
            return None
        # Of processes that share a GPU through MPS the list above may have the server alone.
        clients = questions.ask("mps_clients", handle)
        held = {process.pid: process.usedGpuMemory for process in (*(clients or ()), *running)}
        listed = tuple(self._describe(pid, size) for pid, size in held.items())
        return listed if self._lists_all else judge_listed(listed, used_bytes)

    def _read_instances(self, questions: Questions, card: GpuFacts, handle: Any) -> Iterator[GpuFacts]:
        """Yields the MIG instances of a card; a card whose instances cannot be listed is refused."""
        slots = range(questions.ask("mig_slots", handle) or 0)
        handles = [questions.ask("mig_instance", handle, slot) for slot in slots]
        found = [each for each in handles if each is not None]
        came = {questions.answers[name] for name in ("mig_slots", "mig_instance") if name in questions.answers}
        if not found and came <= {ANSWERED, ABSENT}:
            words = f"{questions.whom} ({card.key}) is in MIG mode without instances: nothing can run there"
            questions.tell(words, "no_instances")
        elif not found:
            error = ", ".join(sorted(came - {ANSWERED, ABSENT}))
            self._refusals[card.index] = f"its MIG instances cannot be listed: {error}"
        for each in found:
            yield self._read_instance(questions, card, each)

    def _read_instance(self, questions: Questions, card: GpuFacts, handle: Any) -> GpuFacts:
        instance = self._read_common(questions, handle, card)
        return replace(
            instance,
            mig=MigFacts(
                parent_uuid=card.key,
                profile=parse_profile(instance.kind),
                gpu_instance_id=questions.ask("gpu_instance", handle),
                compute_instance_id=questions.ask("compute_instance", handle),
            ),
        )


def parse_cuda_version(number: int | None) -> str | None:
    """Returns NVML's 12020 as "12.2"."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def parse_profile(name: str | None) -> str | None:
    """Returns "3g.20gb" of a MIG instance's name "NVIDIA A100-SXM4-40GB MIG 3g.20gb"; None: it has none."""
    return (name or "").partition(" MIG ")[2].strip() or None


def _format_version(pair: Sequence[int] | None) -> str | None:
    return ".".join(str(part) for part in pair) if pair else None
