"""Facts of NVIDIA GPUs: cards, MIG instances, links, processes and health, as NVML reports them.

NVML is an argument. It is shut down after each read, because an open handle can block a reset; no CUDA context is made.
A card that NVML counts and that cannot be read is reported as refused. An empty list of processes means "no process"
only if the memory in use agrees.

Source: NVIDIA, NVML API Reference Guide (docs.nvidia.com/deploy/nvml-api), and nvml.h of CUDA 13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from typing import Any, Final

from meshwright.wire.devices import DeviceProcess, Mig
from meshwright_agent.facts.model import (
    IDLE_BYTES,
    ComputeMode,
    DriverFacts,
    GpuFacts,
    GpuHealth,
    GpuLink,
    HostFacts,
    ProblemKind,
    RefusedCard,
    SourceProblem,
)
from meshwright_agent.facts.nvlink import CardReading, NvLinks, read_fabric, read_link, read_nvlinks
from meshwright_agent.facts.nvml import ABSENT, ANSWERED, LOST, NO_PERMISSION, QUESTIONS, Questions, name_error, to_text
from meshwright_agent.facts.procfs import ProcessTable, find_holders, join_holders
from meshwright_agent.facts.sysfs import (
    Roots,
    classify_silence,
    find_refused,
    list_card_files,
    parse_pci_address,
    read_bus,
    read_numa_node,
    read_pci_health,
    read_pcie_root,
)

DRAIN_AND_RESET: Final = "take no new work on the GPU, and reset it after its jobs have ended"
_RECOVERIES: Final[Mapping[int, str]] = {
    0: "",
    1: "reset the GPU",
    2: "reboot the host",
    3: "end all processes with peer-to-peer traffic and disable UVM persistence mode; the driver then asks for more",
    4: DRAIN_AND_RESET,
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
"""NVML_GPU_RECOVERY_ACTION_…: the action that the driver requests, as in XID 154. Source: NVIDIA, GPU Memory Error
Management, "Error Recovery and Response Flags"."""
_OTHER_RECOVERY: Final = "follow NVIDIA's documentation: it asks for a recovery action that this agent does not know"

POWER_BRAKE: Final = "hardware power brake"
_SLOWDOWNS: Final = ((0x40, "hardware thermal slowdown"), (0x80, POWER_BRAKE), (0x20, "software thermal slowdown"))
_HARDWARE_SLOWDOWN: Final = 0x08
"""nvmlClocksEventReason…: reasons that indicate a problem. The power cap (0x04) is normal for a loaded card."""

_LINK_COUNTERS: Final[Mapping[str, int]] = {"replay": 0, "recovery": 1, "crc": 2}
"""NVML_NVLINK_ERROR_DL_REPLAY, …_RECOVERY, …_CRC_FLIT."""
_ASKED_ELSEWHERE: Final = frozenset({"retirement_pending", "nvlink_errors"})
"""Questions asked elsewhere: only for cards without remapped rows, and for each link."""
_MILLIWATTS: Final = ("power_limit_watts", "power_default_watts")
_ASKED: Final = [each.name for each in fields(GpuHealth) if each.name in QUESTIONS.keys() - _ASKED_ELSEWHERE]
"""Fields that a question of the same name fills."""


def read_gpu_health(questions: Questions, handle: Any, *, is_computing: bool) -> GpuHealth:
    """Returns the driver's current report on one card. Call it between nvmlInit and nvmlShutdown."""
    remapped = questions.ask_health("remapped_rows", handle)
    pending = questions.ask_health("retirement_pending", handle) if remapped is None else None
    active, errors = _read_links(questions, handle)
    answers = {name: questions.ask_health(name, handle) for name in _ASKED}
    answers |= {name: answers[name] / 1000 for name in _MILLIWATTS if answers[name] is not None}
    action = answers["recovery"]
    answers |= {
        "recovery": None if action is None else _RECOVERIES.get(action, _OTHER_RECOVERY),
        "slowdowns": parse_slowdowns(answers["slowdowns"]),
        "remap_pending": None if remapped is None else bool(remapped[2]),
        "remap_failed": None if remapped is None else bool(remapped[3]),
        "retirement_pending": None if pending is None else bool(pending),
        "is_computing": is_computing,
        "nvlinks_active": active,
        "nvlink_errors": errors,
    }
    return GpuHealth(**answers)


def _read_links(questions: Questions, handle: Any) -> tuple[int | None, dict[str, int]]:
    """Returns the number of active NVLinks (None without NVLinks) and the counters of each."""
    states = []
    for link in range(questions.nvml.NVML_NVLINK_MAX_LINKS):
        state = questions.ask_health("nvlink_state", handle, link, is_end=link > 0)
        if state is None:
            break
        states.append(bool(state))
    if not states or questions.answers["nvlink_state"] != ANSWERED:
        return None, {}
    active = [link for link, state in enumerate(states) if state]
    counters = {f"{name} {link}": (link, number) for link in active for name, number in _LINK_COUNTERS.items()}
    counts = {name: questions.ask_health("nvlink_errors", handle, *each) for name, each in counters.items()}
    return len(active), {name: count for name, count in counts.items() if count is not None}


def parse_slowdowns(mask: int | None) -> tuple[str, ...] | None:
    """Returns why clocks are reduced, from NVML's mask. The general hardware reason is used only without a cause."""
    if mask is None:
        return None
    causes = tuple(name for bit, name in _SLOWDOWNS if mask & bit)
    return causes if causes or not mask & _HARDWARE_SLOWDOWN else ("hardware slowdown",)


def find_listed_holders(listed: Sequence[DeviceProcess], used_bytes: int | None) -> tuple[DeviceProcess, ...] | None:
    """Returns the holders of a device from a list that may be incomplete; None: an unlisted process may hold it.

    Args:
        listed: the processes that the driver reports to this reader.
        used_bytes: memory in use on the device, without the driver's reserved memory.
    """
    if any(not process.own for process in listed):
        return tuple(listed)
    own = [process.used_bytes for process in listed]
    reported = [used for used in own if used is not None]
    if used_bytes is None or len(reported) < len(own):
        return None
    return tuple(listed) if used_bytes - sum(reported) < IDLE_BYTES else None


def drop_ambiguous_processes(facts: HostFacts) -> HostFacts:
    """Returns facts read while the agent's worker ran, without listing the worker as another process.

    A driver that reports the host's process ids reports the worker under an unknown id. A single unknown process may be
    the worker, so that the holders are unknown. Of several, at least one is another process.
    """
    gpus = tuple(map(_drop_ambiguous, facts.gpus))
    if gpus == facts.gpus:
        return facts
    computing = find_holders(gpus, facts.tpus)
    return replace(facts, gpus=gpus, holders=join_holders(computing, facts.kfd.holders) if facts.kfd else computing)


def _drop_ambiguous(gpu: GpuFacts) -> GpuFacts:
    processes = gpu.processes or ()
    return replace(gpu, processes=None) if len(processes) == 1 and processes[0].pid in gpu.unlisted_pids else gpu


_COMPUTE_MODES: Final[Mapping[int, ComputeMode]] = {
    0: "default",
    1: "exclusive_process",  # NVML_COMPUTEMODE_EXCLUSIVE_THREAD, drivers since CUDA 8 treat it as mode 3
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
"""NVML_DEVICE_ARCH_…; newer architectures are None."""

_MIG_ENABLED: Final = 1


@dataclass(frozen=True)
class NvidiaFacts:
    """NVML's facts. `is_blind`: device files of cards exist, but NVML does not report anything."""

    gpus: tuple[GpuFacts, ...] = ()
    links: tuple[GpuLink, ...] = ()
    driver: DriverFacts = field(default_factory=DriverFacts)
    problems: tuple[SourceProblem, ...] = ()
    refused: tuple[RefusedCard, ...] = ()
    is_blind: bool = False


def read_nvidia(nvml: Any, here: Roots, table: ProcessTable, *, wants_health: bool = True) -> NvidiaFacts:
    """Returns the GPUs of this host.

    Args:
        nvml: the module `pynvml` or a replacement; None: not available.
        here: roots of the PCI bus and device files. Cards found there without NVML are a problem.
        table: names the processes that NVML lists. In a container it may not have all of them.
        wants_health: False to read only the holders, when time is short.
    """
    if nvml is None:
        return _build_unreadable(here, "no_library", "the package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        kind = classify_silence(read_bus(here), here, error.value)
        return _build_unreadable(here, kind, f"NVML does not start: {error}")
    reader = _Reader(nvml, here, table, wants_health=wants_health)
    try:
        return reader.read()
    finally:
        reader.close()


def _build_unreadable(here: Roots, kind: ProblemKind, reason: str) -> NvidiaFacts:
    """Returns facts without GPUs. If the host nevertheless has cards of its own, adds a problem."""
    cards = [card.address for card in read_bus(here)]
    files = [f"/dev/{file.name}" for file in list_card_files(here)]
    seen = cards or files
    if not seen:
        return NvidiaFacts()
    problem = f"{len(seen)} NVIDIA card(s) cannot be read ({', '.join(seen)}): {reason}"
    return NvidiaFacts(problems=(SourceProblem(kind, problem, tuple(cards)),), is_blind=bool(files))


class _Reader:
    """One read, between nvmlInit and nvmlShutdown."""

    def __init__(self, nvml: Any, here: Roots, table: ProcessTable, *, wants_health: bool) -> None:
        self._nvml = nvml
        self._problems: list[SourceProblem] = []
        self._driver = self._build_questions("driver")
        self._here = here
        self._table = table
        self._wants_health = wants_health
        self._bus = read_bus(here)
        self._refusals: dict[int, str] = {}

    def _build_questions(self, whom: str) -> Questions:
        return Questions(self._nvml, whom, self._problems)

    def close(self) -> None:
        """Shuts NVML down."""
        self._driver.ask("shutdown")

    def read(self) -> NvidiaFacts:
        """Returns all facts."""
        driver = DriverFacts(
            version=to_text(self._driver.ask("driver_version")),
            cuda_version=parse_cuda_version(self._driver.ask("cuda_version")),
        )
        count = self._count_cards()
        cards = [card for index in range(count or 0) if (card := self._read_card(index)) is not None]
        gpus = tuple(gpu for card in cards for gpu in card.parts)
        whole = [card for card in cards if not card.is_divided]
        pairs = combinations(whole if self._wants_health else (), 2)
        links = tuple(link for a, b in pairs if (link := self._read_link(a, b)) is not None)
        failed = self._find_refused(cards) if count is not None else ()
        denied = [each for each in failed if each.reason.endswith(name_error(self._nvml, NO_PERMISSION))]
        refused = tuple(each for each in failed if each not in denied)
        for each in denied:
            self._driver.add_problem(f"GPU {each.index}: {each.reason}", "unreadable", (each.pci_bus_id,))
        if refused and not gpus:
            self._driver.add_problem(f"none of {len(refused)} NVIDIA card(s) can be used", "driver_down")
        served = [card.address for card in self._bus if card.driver]
        if served and (bare := [card.address for card in self._bus if card.computes and not card.driver]):
            self._driver.add_problem(f"no driver is bound to {', '.join(bare)}, but to {len(served)} others", "refused")
        if count == 0 and served and not failed:  # none that this process may open, or the driver has lost all
            self._driver.add_problem(f"NVML counts no card; the bus has {len(served)}", "unreadable", served)
        is_blind = count is None and bool(list_card_files(self._here))
        return NvidiaFacts(gpus, links, driver, tuple(self._problems), refused, is_blind)

    def _count_cards(self) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            kind = classify_silence(self._bus, self._here, error.value)
            bus = [card.address for card in self._bus]
            self._driver.add_problem(f"driver: nvmlDeviceGetCount: {error}; the bus has {len(bus)} card(s)", kind, bus)
        return None

    def _find_refused(self, cards: Sequence[CardReading]) -> tuple[RefusedCard, ...]:
        read = [card.facts.pci_bus_id for card in cards if card.facts.index not in self._refusals]
        return find_refused(self._bus, read, sorted(self._refusals.items()), self._here)

    def _read_link(self, a: CardReading, b: CardReading) -> GpuLink | None:
        return read_link(self._build_questions(f"GPU {a.facts.index} and {b.facts.index}"), a, b)

    def _read_card(self, index: int) -> CardReading | None:
        questions = self._build_questions(f"GPU {index}")
        handle = self._find_card(questions, index)
        if handle is None:
            return None
        facts = self._read_gpu(questions, handle, GpuFacts(index=index))
        if questions.lost and not (facts.uuid or facts.pci_bus_id):  # nothing else would tell whose fault it is
            self._refusals[index] = questions.lost
            return None
        if self._wants_health:
            health = read_gpu_health(questions, handle, is_computing=bool(facts.processes))
            facts = replace(facts, health=health)
        mode = questions.ask("mig_mode", handle)
        is_divided = bool(mode) and mode[0] == _MIG_ENABLED
        nvlinks: NvLinks | None = NvLinks()
        if is_divided:
            parts = tuple(self._read_instances(questions, facts, handle))
        else:
            if self._wants_health:
                facts = replace(facts, fabric=read_fabric(questions, handle))
                nvlinks = read_nvlinks(questions, handle, self._here.sysfs)
            parts = (facts,)
        if facts.health is not None:
            health = replace(facts.health, error=questions.lost, answers=questions.answers)
            parts = tuple(replace(part, health=health) for part in parts)
        return CardReading(facts, handle, parts, nvlinks, is_divided)

    def _find_card(self, questions: Questions, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            refusal = "the driver gives no handle for it"
            self._refusals[index] = LOST.get(error.value, f"{refusal}: {name_error(self._nvml, error.value)}")
            if error.value != NO_PERMISSION:
                questions.add_problem(f"{questions.whom}: {refusal}: {error}", "refused")
        return None

    def _read_gpu(self, questions: Questions, handle: Any, base: GpuFacts) -> GpuFacts:
        pci = questions.ask("pci", handle)
        address = parse_pci_address(to_text(pci.busId) or "") if pci is not None else None
        folder = self._here.sysfs / "bus/pci/devices" / (address or "-")
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
        """Returns the facts that cards and MIG instances share."""
        memory = questions.ask("memory", handle, self._nvml.nvmlMemory_v2)
        used_bytes = None if memory is None else int(memory.used)
        processes = self._read_processes(questions, handle, used_bytes)
        return replace(
            base,
            kind=to_text(questions.ask("name", handle)),
            uuid=to_text(questions.ask("uuid", handle)),
            memory_bytes=None if memory is None else int(memory.total),
            used_bytes=used_bytes,
            processes=processes,
            unlisted_pids=tuple(each.pid for each in processes or () if self._table.is_unlisted(each.pid)),
        )

    def _read_processes(
        self, questions: Questions, handle: Any, used_bytes: int | None
    ) -> tuple[DeviceProcess, ...] | None:
        running = questions.ask("processes", handle)
        if running is None:
            return None
        # For processes that share a GPU through MPS, the list above may contain only the server.
        clients = questions.ask("mps_clients", handle)
        held = {process.pid: process.usedGpuMemory for process in (*(clients or ()), *running)}
        listed = tuple(self._table.describe(pid, size) for pid, size in held.items())
        return listed if self._table.is_whole else find_listed_holders(listed, used_bytes)

    def _read_instances(self, questions: Questions, card: GpuFacts, handle: Any) -> Iterator[GpuFacts]:
        """Yields the MIG instances of a card. If the instances cannot be listed, the card is reported as refused."""
        slots = range(questions.ask("mig_slots", handle) or 0)
        handles = {slot: questions.ask("mig_instance", handle, slot) for slot in slots}
        found = {slot: each for slot, each in handles.items() if each is not None}
        came = {questions.answers[name] for name in ("mig_slots", "mig_instance") if name in questions.answers}
        if not found and came <= {ANSWERED, ABSENT}:
            words = f"{questions.whom} ({card.key}) is in MIG mode without instances: nothing can run there"
            questions.add_problem(words, "no_instances", (card.pci_bus_id,))
        elif not found:
            error = ", ".join(sorted(came - {ANSWERED, ABSENT}))
            self._refusals[card.index] = f"its MIG instances cannot be listed: {error}"
        for slot, each in found.items():
            instance = self._read_common(questions, each, card)
            yield replace(instance, slot=slot, mig=Mig(parent_uuid=card.key, profile=parse_profile(instance.kind)))


def parse_cuda_version(number: int | None) -> str | None:
    """Returns NVML's 12020 as "12.2"."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def parse_profile(name: str | None) -> str | None:
    """Returns "3g.20gb" from a MIG instance's name "NVIDIA A100-SXM4-40GB MIG 3g.20gb"; None without a profile."""
    return (name or "").partition(" MIG ")[2].strip() or None


def _format_version(pair: Sequence[int] | None) -> str | None:
    return ".".join(str(part) for part in pair) if pair else None
