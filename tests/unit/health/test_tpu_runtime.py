"""What a job tells of its TPUs, look after look: told, silent, another's answer, nobody to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import get_args

import pytest

from meshwright.wire.devices import Worker
from meshwright_agent.facts.model import HostFacts, ProcessFacts
from meshwright_agent.facts.runtimes import PortFault, TpuPort, TpuRuntime, TpuRuntimes, Unasked
from meshwright_agent.facts.tpu_metrics import read_runtimes
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.health.diagnosis import Finding
from meshwright_agent.health.history import History
from meshwright_agent.health.tpu_runtime import PATIENT_LOOKS, RULES, TPU_RUNTIME, RuntimeHealth
from meshwright_agent.health.verdicts import Verdicts
from meshwright_agent.view import build_devices
from tests.fakes.machines import NOW, plant_machine
from tests.fakes.stored import ManualClock

JOB = ProcessFacts(3110, "python3", "python3 train.py", job="slurm 4711")
OWN = ProcessFacts(77, "python3", own=True)
CHIPS = 8


def told(*counts: int, faults: Sequence[PortFault] = ()) -> TpuRuntimes:
    """Answers of as many ports, from 8431 on: each tells of so many devices; after them come those with a fault."""
    ports = [TpuPort(8431 + place) for place in range(len(counts))]
    devices = [
        TpuRuntime(device, used_bytes=1, port=port.port)
        for port, count in zip(ports, counts, strict=True)
        for device in range(count)
    ]
    silent = [TpuPort(8431 + place, fault, "as gRPC says") for place, fault in enumerate(faults, len(counts))]
    unavailable = None if devices else "nothing was told"
    return TpuRuntimes(tuple(devices), unavailable, ports=(*ports, *silent))


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> HostFacts:
    facts = plant_machine("tpu-v5e-8", tmp_path_factory.mktemp("host")).read()
    assert len(facts.tpus) == CHIPS
    return hold(facts, ())


def hold(facts: HostFacts, *processes: Sequence[ProcessFacts] | None, runtimes: TpuRuntimes | None = None) -> HostFacts:
    """Returns the host with its chips held so, the last word for all that are left."""
    held = [*processes, *[processes[-1]] * CHIPS][:CHIPS]
    tpus = tuple(
        replace(chip, processes=None if by is None else tuple(by)) for chip, by in zip(facts.tpus, held, strict=True)
    )
    return replace(facts, tpus=tpus, tpu_runtimes=runtimes)


def judge(facts: HostFacts) -> Finding:
    """What is said once patience is over."""
    health = RuntimeHealth()
    findings = [health.judge(facts) for _ in range(PATIENT_LOOKS)]
    assert findings[-1] is not None
    return findings[-1]


# ---- nobody to ask --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "runtimes", "words"),
    [
        ((), None, "no job holds a TPU"),
        ((OWN,), None, "the agent's own worker has the TPUs"),
        (None, None, "who holds the TPUs cannot be seen"),
        ((JOB,), None, "was not asked at this look"),
        ((JOB,), TpuRuntimes(unavailable="…", unasked="elsewhere"), "has a network of its own"),
    ],
)
def test_where_there_is_nobody_to_ask_it_is_neither_green_nor_a_fault_however_often_one_looks(
    idle: HostFacts, processes: Sequence[ProcessFacts] | None, runtimes: TpuRuntimes | None, words: str
) -> None:
    finding = judge(hold(idle, processes, runtimes=runtimes))
    assert finding.state == "initializing"
    assert words in finding.reason


def test_without_grpc_it_is_said_at_once_what_to_install_and_nothing_is_worse_than_degraded(idle: HostFacts) -> None:
    finding = RuntimeHealth().judge(hold(idle, (JOB,), runtimes=read_runtimes(None, [8431])))
    assert finding is not None
    assert (finding.state, finding.permanence) == ("degraded", "permanent")
    assert "pip install 'meshwright[tpu-metrics]'" in finding.action
    assert judge(hold(idle, (), runtimes=None)).state == "initializing"  # and nothing while no job is here


# ---- a job tells ----------------------------------------------------------------------------------------------------


def test_a_job_that_tells_of_each_device_is_healthy_and_named_with_its_port(idle: HostFacts) -> None:
    finding = RuntimeHealth().judge(hold(idle, (JOB,), runtimes=told(8)))
    who = "the job of process 3110 (python3 train.py, slurm 4711)"
    assert finding == Finding("healthy", f"{who}, which holds 8 of 8 TPUs, tells of 8 devices on port 8431")


@pytest.mark.parametrize(
    ("answers", "ports"),
    [
        (told(2, 2, 2, 2), "8431, 8432, 8433, 8434"),  # each of its own
        (told(8, 8, 8), "8431"),  # each of all: node aggregation
        (told(8, faults=["unanswered"] * 3), "8431"),  # one process now, where there were four
    ],
)
def test_several_ports_tell_together_or_one_for_all(idle: HostFacts, answers: TpuRuntimes, ports: str) -> None:
    finding = RuntimeHealth().judge(hold(idle, (JOB,), runtimes=answers))
    assert finding is not None
    assert finding.state == "healthy"
    assert finding.reason.endswith(f"tells of 8 devices on port {ports}")


def test_a_job_on_some_of_the_chips_tells_of_those(idle: HostFacts) -> None:
    half = [(JOB,)] * 4 + [()] * 4
    assert judge(hold(idle, *half, runtimes=told(4))).state == "healthy"
    assert judge(hold(idle, *half, runtimes=told(8))).state == "degraded"


def test_chips_whose_holders_cannot_be_seen_may_be_the_jobs_or_not(idle: HostFacts) -> None:
    half = [(JOB,)] * 4 + [None] * 4
    states = {count: judge(hold(idle, *half, runtimes=told(count))).state for count in (3, 4, 6, 8, 9)}
    assert states == {3: "degraded", 4: "healthy", 6: "healthy", 8: "healthy", 9: "degraded"}


def test_a_chip_that_is_two_devices_may_tell_of_both_or_of_one(idle: HostFacts) -> None:
    v3 = replace(idle, tpus=tuple(replace(chip, kind="TPU v3") for chip in idle.tpus))
    states = {count: judge(hold(v3, (JOB,), runtimes=told(count))).state for count in (8, 12, 16)}
    assert states == {8: "healthy", 12: "degraded", 16: "healthy"}


def test_fewer_devices_than_the_job_holds_are_told_with_both_numbers(idle: HostFacts) -> None:
    finding = judge(hold(idle, (JOB,), runtimes=told(7, faults=["late"])))
    assert finding.state == "degraded"
    assert (
        "holds 8 of 8 TPUs, and tells of others: port 8431: 7 devices; port 8432: no answer in time" in finding.reason
    )
    assert "TPU_RUNTIME_METRICS_PORTS" in finding.action


# ---- a job is silent ------------------------------------------------------------------------------------------------


def test_a_job_that_starts_is_given_a_few_looks(idle: HostFacts) -> None:
    health, facts = RuntimeHealth(), hold(idle, (JOB,), runtimes=told(faults=["unanswered"]))
    findings = [health.judge(facts) for _ in range(PATIENT_LOOKS + 1)]
    assert [finding and finding.state for finding in findings] == [
        "initializing",
        "initializing",
        "degraded",
        "degraded",
    ]
    assert [finding and finding.permanence for finding in findings] == ["transient"] * 4
    assert findings[0] is not None
    assert "it may be starting" in findings[0].reason


def test_one_missed_look_of_a_job_that_told_says_nothing_and_the_third_does_and_recovery_is_seen(
    idle: HostFacts,
) -> None:
    health = RuntimeHealth()
    good = hold(idle, (JOB,), runtimes=told(8))
    bad = hold(idle, (JOB,), runtimes=told(faults=["late"]))
    findings = [health.judge(facts) for facts in (good, bad, bad, good, bad, bad, bad, good)]
    states = [finding and finding.state for finding in findings]
    assert states == ["healthy", None, None, "healthy", None, None, "degraded", "healthy"]


def test_another_job_is_given_its_time_and_one_whose_helpers_come_and_go_is_not_given_more(idle: HostFacts) -> None:
    silent = told(faults=["unanswered"])
    health = RuntimeHealth()
    helpers = [
        health.judge(hold(idle, (JOB, replace(JOB, pid=4000 + look)), runtimes=silent)) for look in range(PATIENT_LOOKS)
    ]
    assert [finding and finding.state for finding in helpers] == ["initializing", "initializing", "degraded"]
    other = health.judge(hold(idle, (replace(JOB, pid=9000),), runtimes=silent))
    assert other is not None
    assert other.state == "initializing"


@pytest.mark.parametrize("fault", get_args(PortFault))
def test_each_fault_has_its_words_and_what_to_do_and_is_never_worse_than_degraded(
    idle: HostFacts, fault: PortFault
) -> None:
    finding = judge(hold(idle, (JOB,), runtimes=told(faults=[fault])))
    assert finding.state == "degraded"
    assert "process 3110 (python3 train.py, slurm 4711) holds 8 of 8 TPUs" in finding.reason
    assert f"port 8431: {RULES[fault].meaning} (as gRPC says)" in finding.reason
    assert finding.action == RULES[fault].action


def test_faults_of_several_ports_are_told_with_what_to_do_about_each(idle: HostFacts) -> None:
    finding = judge(hold(idle, (JOB,), runtimes=told(faults=["unanswered", "garbled", "unanswered"])))
    assert finding.action == f"{RULES['unanswered'].action}; {RULES['garbled'].action}"
    assert finding.permanence is None


def test_of_many_processes_two_are_named(idle: HostFacts) -> None:
    many = tuple(replace(JOB, pid=pid, job=None) for pid in range(1, 9))
    finding = judge(hold(idle, many, runtimes=told(8)))
    assert "process 1 (python3 train.py), process 2 (python3 train.py) and 6 more, which holds" in finding.reason


def test_the_faults_that_are_ruled_are_those_that_reading_knows() -> None:
    assert set(RULES) == set(get_args(PortFault))
    assert set(get_args(Unasked)) == {"no_package", "elsewhere"}


# ---- on the board ---------------------------------------------------------------------------------------------------


class Bench:
    """A board that is looked at every 30 s."""

    def __init__(self, history: History | None = None) -> None:
        self.at = NOW
        history = history or History(clock=ManualClock(), keep=100, keep_days=1)
        self.board = HealthBoard(stale_after_s=120, on_change=history.note_change, memory=history.memory)
        self.verdicts = Verdicts(self.board, history)

    def look(self, facts: HostFacts) -> None:
        self.at += timedelta(seconds=30)
        worker = Worker(state="stopped", generation=0, since=NOW)
        devices = build_devices(facts, self.at, None, worker, now=self.at, cpu_devices=None)
        self.board.report("worker", "healthy", "answers", at=self.at)
        self.verdicts.report_facts(facts, None, devices, self.at)

    @property
    def state(self) -> str:
        return self.board.state(TPU_RUNTIME, self.at)


def test_it_stands_on_the_board_of_a_host_with_tpus_alone(idle: HostFacts) -> None:
    bench = Bench()
    bench.look(idle)
    assert bench.board.component(TPU_RUNTIME, bench.at).reason == "no job holds a TPU: there is nobody to ask"
    bench.look(replace(idle, tpus=()))
    assert TPU_RUNTIME not in bench.board.names()


def test_nobody_to_ask_counts_for_nothing_and_silence_is_no_worse_than_degraded(idle: HostFacts) -> None:
    bench = Bench()
    bench.look(idle)
    assert (bench.state, bench.board.view(bench.at).state) == ("initializing", "healthy")
    for _ in range(PATIENT_LOOKS):
        bench.look(hold(idle, (JOB,), runtimes=told(faults=["unanswered"])))
    assert (bench.state, bench.board.view(bench.at).state) == ("degraded", "degraded")
    bench.look(hold(idle, (JOB,), runtimes=told(8)))
    assert (bench.state, bench.board.view(bench.at).state) == ("healthy", "healthy")


def test_a_job_that_told_and_falls_silent_is_seen_growing_older_before_it_is_told(idle: HostFacts) -> None:
    bench = Bench()
    bench.look(hold(idle, (JOB,), runtimes=told(8)))
    silent = hold(idle, (JOB,), runtimes=told(faults=["late"]))
    ages = []
    for _ in range(PATIENT_LOOKS):
        bench.look(silent)
        ages.append((bench.state, bench.board.component(TPU_RUNTIME, bench.at).age_s))
    assert ages == [("healthy", 30.0), ("healthy", 60.0), ("degraded", 0.0)]


def test_a_driver_that_is_silent_makes_it_unknown(idle: HostFacts) -> None:
    bench = Bench()
    bench.look(hold(idle, (JOB,), runtimes=told(8)))
    bench.verdicts.report_silence("no answer within 10 s", bench.at)
    assert bench.state == "unknown"


def test_a_restart_lists_it_at_once_and_as_not_looked_at(idle: HostFacts) -> None:
    history = History(clock=ManualClock(), keep=100, keep_days=1)
    before = Bench(history)
    before.look(hold(idle, (JOB,), runtimes=told(8)))
    after = History(clock=ManualClock(), keep=100, keep_days=1)
    after.memory.load(history.memory.dump())
    bench = Bench(after)
    bench.verdicts.recall(bench.at)
    assert bench.state == "initializing"
    bench.look(hold(idle, (JOB,), runtimes=told(8)))
    assert bench.state == "healthy"
    assert not [event for event in after._waiting if event.component == TPU_RUNTIME]
