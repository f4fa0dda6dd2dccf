"""What a job on the TPUs tells of them, as one component of the host: it tells, it cannot be asked, or it is silent.

Rule: healthy only when a job was asked and told of as many devices as it holds. Where there is nobody to ask it is
`initializing`, with why: neither green nor a fault. Silence is borne for a few looks, since a job opens its TPUs before
its libtpu serves figures, and a busy one misses a look; then it is `degraded`, and never worse: that nobody tells of a
chip makes no chip ill. Knows no gRPC and no board.

One component and not one for each port: ports are the job's, the next one has others, and an aggregated answer on the
first stands for all. So a port that nobody has is no fault while another one tells of every device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.topology.chips import find_chip_by_kind
from meshwright.wire.health import Permanence
from meshwright_agent.facts.model import HostFacts, ProcessFacts, TpuFacts
from meshwright_agent.facts.runtimes import PortFault, TpuPort, TpuRuntimes
from meshwright_agent.facts.tpu_metrics import INSTALL
from meshwright_agent.health.diagnosis import Finding

TPU_RUNTIME: Final = "tpu_runtime"
PATIENT_LOOKS: Final = 3
"""The look at which silence is told: of a job that started, and of one that told before."""
_MOST_NAMED: Final = 2


@dataclass(frozen=True)
class FaultRule:
    """What one fault of a port means. `permanence`: None where both are usual."""

    meaning: str
    action: str
    permanence: Permanence | None = None


RULES: Final[Mapping[PortFault, FaultRule]] = {
    "unanswered": FaultRule(
        "nobody listens",
        "start the job with TPU_RUNTIME_METRICS_PORTS=8431, or give the agent the ports that the job has",
        "transient",
    ),
    "late": FaultRule("no answer in time", "see in the job's log whether it gets on: its libtpu hangs", "transient"),
    "refused": FaultRule("it does not have these metrics", "update libtpu where the job runs (jax[tpu] pins it)"),
    "garbled": FaultRule(
        "what answers is no libtpu",
        "see which program has the port (ss -ltnp); give the agent the job's ports in TPU_RUNTIME_METRICS_PORTS",
    ),
    "empty": FaultRule("it tells of no device", "look in the job's log: its libtpu lists no TPU"),
}
_MISMATCH: Final = (
    "look in the job's log for a chip that its libtpu has lost; if its processes have ports of their own, name all of "
    "them in the agent's TPU_RUNTIME_METRICS_PORTS"
)


class RuntimeHealth:
    """Judges look after look; remembers how long the job that is here has been silent."""

    def __init__(self) -> None:
        self._pids: frozenset[int] = frozenset()
        self._silent_looks = 0
        self._has_told = False

    def judge(self, facts: HostFacts) -> Finding | None:
        """Returns what is to be said of the jobs on a host with TPUs; None: nothing new, what was said grows older."""
        holders = _find_holders(facts.tpus)
        self._note_job(frozenset(holders))
        told = facts.tpu_runtimes
        if not holders or told is None or told.unasked is not None:
            return _tell_unasked(facts.tpus, holders, told)
        finding = _judge_answers(facts.tpus, holders, told)
        if finding.state == "healthy":
            self._silent_looks, self._has_told = 0, True
            return finding
        self._silent_looks += 1
        if self._silent_looks >= PATIENT_LOOKS:
            return finding
        if self._has_told:
            return None
        return Finding("initializing", f"{finding.reason}; it may be starting", permanence="transient")

    def _note_job(self, pids: frozenset[int]) -> None:
        """Begins anew with another job; one whose processes come and go is the same as long as one of them stays."""
        if not pids & self._pids:
            self._silent_looks, self._has_told = 0, False
        self._pids = pids


def _find_holders(tpus: Iterable[TpuFacts]) -> dict[int, ProcessFacts]:
    """Returns whoever holds a TPU and is not the agent's, by process number."""
    found = {process.pid: process for chip in tpus for process in chip.processes or () if not process.own}
    return dict(sorted(found.items()))


def _tell_unasked(tpus: Iterable[TpuFacts], holders: Mapping[int, ProcessFacts], told: TpuRuntimes | None) -> Finding:
    held = [chip.processes for chip in tpus]
    if holders and told is not None and told.unasked == "no_package":
        reason = f"{_describe(holders)} is not asked what it uses: the package grpcio is not installed"
        return Finding("degraded", reason, f"{INSTALL}, where the agent runs", "permanent")
    if holders and told is not None and told.unasked == "elsewhere":
        reason = f"{_describe(holders)} has a network of its own, so that it cannot be asked from here"
        return Finding("initializing", reason, "let the job share the host's network where its figures are wanted")
    if holders:
        return Finding("initializing", f"{_describe(holders)} was not asked at this look")
    if None in held:
        action = "let the agent see all processes: drop-in owners.conf, or features.hostPID of the chart"
        return Finding("initializing", "who holds the TPUs cannot be seen, so that nobody is asked", action)
    if any(held):
        return Finding("initializing", "the agent's own worker has the TPUs; JAX tells of them")
    return Finding("initializing", "no job holds a TPU: there is nobody to ask")


def _judge_answers(tpus: tuple[TpuFacts, ...], holders: Mapping[int, ProcessFacts], told: TpuRuntimes) -> Finding:
    who, held = _describe(holders), _tell_held(tpus)
    devices = told.select(_count_devices(tpus))
    if devices:
        ports = ", ".join(str(port) for port in sorted({one.port for one in devices if one.port is not None}))
        return Finding("healthy", f"{who}, which holds {held}, tells of {len(devices)} devices on port {ports}")
    ports = "; ".join(_describe_port(told, asked) for asked in told.ports)
    if told.devices:
        return Finding("degraded", f"{who} holds {held}, and tells of others: {ports}", _MISMATCH)
    rules = [RULES[asked.fault] for asked in told.ports if asked.fault is not None]
    actions = "; ".join(dict.fromkeys(rule.action for rule in rules))
    spans = {rule.permanence for rule in rules}
    return Finding(
        "degraded",
        f"{who} holds {held}, and tells nothing of them: {ports}",
        actions,
        spans.pop() if len(spans) == 1 else None,
    )


def _count_devices(tpus: tuple[TpuFacts, ...]) -> set[int]:
    """Returns how many devices jobs may tell of: those of the chips that they hold, or may hold unseen.

    libtpu has one device a chip, or one a core as JAX has; a PCI function is a chip, or one core of it.
    """
    chip = find_chip_by_kind(tpus[0].kind or "")
    held = _count_held(tpus)
    unseen = sum(one.processes is None for one in tpus)
    cores = chip.jax_devices_per_chip if chip else 1
    return {count * each for count in range(held, held + unseen + 1) for each in (1, cores)}


def _count_held(tpus: Iterable[TpuFacts]) -> int:
    return sum(any(not process.own for process in chip.processes or ()) for chip in tpus)


def _tell_held(tpus: tuple[TpuFacts, ...]) -> str:
    return f"{_count_held(tpus)} of {len(tpus)} TPUs"


def _describe_port(told: TpuRuntimes, asked: TpuPort) -> str:
    if asked.fault is None:
        return f"port {asked.port}: {sum(one.port == asked.port for one in told.devices)} devices"
    return f"port {asked.port}: {RULES[asked.fault].meaning} ({asked.text})"


def _describe(holders: Mapping[int, ProcessFacts]) -> str:
    """Returns "the job of process 4242 (python train.py, slurm 4711)", of many processes the first two."""
    named = [_describe_process(process) for process in holders.values()]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"the job of {', '.join(named[:_MOST_NAMED])}{more}"


def _describe_process(process: ProcessFacts) -> str:
    words = ", ".join(filter(None, (process.command or process.name, process.job)))
    return f"process {process.pid}{f' ({words})' if words else ''}"
