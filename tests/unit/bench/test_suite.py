"""One run: trials that fail, do not fit or are cancelled. They are made up, with a clock moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import pytest

from meshwright.wire.bench import BenchCase, BenchRequest
from meshwright_agent.bench.scope import build_scope
from meshwright_agent.children.bench.measure import Outcome, Stage, Subject, Timetable, Trial, read_devices
from meshwright_agent.children.bench.suite import Bench
from tests.unit.bench.test_timing import HandClock


@dataclass
class Steady(Subject):
    """Takes the same time each call; `wrong` of its elements are wrong."""

    clock: HandClock
    duration_s: float = 0.1
    wrong: int = 0

    def sample(self) -> float:
        self.clock.now_s += self.duration_s
        return self.duration_s

    def verify(self) -> Outcome:
        return Outcome(self.wrong)


@dataclass
class Run:
    """A bench on given trials with a clock moved by hand."""

    limit_s: float = 1e6
    clock: HandClock = field(default_factory=HandClock)
    updates: list[dict[str, Any]] = field(default_factory=list)
    check: Callable[[], None] = lambda: None

    def start(self, *prepares: Callable[[], Subject], case: BenchCase = "host_to_device") -> Bench:
        devices, _ = read_devices()
        scope = build_scope(BenchRequest(cases=(case,)), platform="cpu", indices=tuple(devices))
        stage = Stage(devices, "cpu", "float32", self.clock)
        timetable = Timetable.start(self.clock, self.limit_s)
        bench = Bench(scope, stage, self.updates.append, self.check, timetable)
        bench.run([Trial(case, (0,), "float32", 64 * (place + 1), prepare) for place, prepare in enumerate(prepares)])
        return bench

    def steady(self, **fields: Any) -> Callable[[], Subject]:
        return lambda: Steady(self.clock, **fields)


def fail(error: BaseException) -> Callable[[], Subject]:
    def prepare() -> Subject:
        raise error

    return prepare


REFUSED = [jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore"), MemoryError()]


@pytest.mark.parametrize("error", REFUSED)
def test_a_trial_that_xla_refuses_is_skipped_with_its_words_and_the_rest_goes_on(error: Exception) -> None:
    run = Run()
    bench = run.start(run.steady(), fail(error), run.steady())
    assert [record.size_bytes for record in bench.records] == [64, 192]
    [skipped] = bench.list_skipped()
    assert skipped.case == "host_to_device"
    words = (str(error).splitlines() or ["no message"])[0]
    assert skipped.reason == f"{type(error).__name__}: {words} (not measured: 128 bytes on device 0)"
    assert [notice.code for notice in bench.list_notices() if notice.code != "virtual_devices"] == ["case_failed"]


def test_a_bug_of_ours_is_not_taken_for_a_device_that_failed() -> None:
    with pytest.raises(ZeroDivisionError):
        Run().start(fail(ZeroDivisionError()))


def test_a_wrong_result_is_reported_and_not_hidden() -> None:
    run = Run()
    [record] = run.start(run.steady(wrong=7)).records
    assert (record.wrong_elements, record.correct) == (7, False)


def test_a_slow_trial_does_not_keep_the_later_ones_from_their_share() -> None:
    run = Run(limit_s=100.0)
    bench = run.start(run.steady(duration_s=6.0), run.steady(duration_s=0.1), run.steady(duration_s=0.1))
    counts = [len(record.samples_s) for record in bench.records]
    assert counts[0] == 3
    assert counts[1:] == [10, 10]


def test_what_cannot_be_measured_three_times_in_time_is_skipped_and_the_rest_measured() -> None:
    run = Run(limit_s=100.0)
    bench = run.start(run.steady(duration_s=40.0), run.steady())
    assert [record.size_bytes for record in bench.records] == [128]
    [skipped] = bench.list_skipped()
    assert skipped.reason.startswith("one sample takes 40 s: 3 of them do not fit")


def test_after_the_time_limit_nothing_is_begun_and_all_of_it_is_named_once() -> None:
    run = Run(limit_s=10.0)
    prepared: list[int] = []

    def use_all_of_it() -> Subject:
        prepared.append(1)
        run.clock.now_s += 10
        return Steady(run.clock, duration_s=0.0)

    bench = run.start(*[use_all_of_it] * 7)
    assert len(prepared) == 1
    assert bench.records == []
    [skipped] = bench.list_skipped()
    assert skipped.reason.startswith("the time limit of 10 s was reached (not measured: 64 bytes")
    assert skipped.reason.count("bytes on device") == 4
    assert skipped.reason.endswith("; and 3 more)")


def test_a_cancel_ends_the_run_where_it_is() -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt

    run = Run(check=check)
    with pytest.raises(KeyboardInterrupt):
        run.start(run.steady())
    assert [update for update in run.updates if "record" in update] == []
