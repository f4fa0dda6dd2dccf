"""How long a large trial would take: told from small ones, with a clock moved by hand."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.bench import BenchCase, BenchRequest
from meshwright_agent.bench.forecast import (
    ELSEWHERE,
    FRESH_RATIO,
    ON_CPU,
    SHRINK,
    Cost,
    check_forecast,
    extrapolate,
    forecast,
    is_large,
)
from meshwright_agent.bench.scope import build_scope
from meshwright_agent.bench.stage import Stage, read_devices
from meshwright_agent.bench.suite import LISTERS
from meshwright_agent.bench.timing import OutOfTime, Timetable
from meshwright_agent.bench.trials import Outcome, Subject, Trial
from meshwright_agent.clock import SystemClock
from tests.unit.bench.test_timing import HandClock

GIB = 2**30


@dataclass
class Model:
    """A device on which a trial costs `once_s` to compile, and so many seconds a byte to prepare and to call."""

    once_s: float = 0.5
    aside_s_per_byte: float = 1e-9
    call_s_per_work: float = 1e-9
    power: float = 1.0
    clock: HandClock = field(default_factory=HandClock)
    sizes: list[int] = field(default_factory=list)

    def build(self, size_bytes: int) -> Subject:
        self.sizes.append(size_bytes)
        self.clock.now_s += self.once_s + self.aside_s_per_byte * size_bytes
        return Modelled(self, self.call_s_per_work * size_bytes**self.power)

    def trial(self, size_bytes: int, *, flops: float | None = None) -> Trial:
        def prepare() -> Subject:
            raise AssertionError("the full size was prepared")

        fields: dict[str, Any] = {"flops": flops, "at_size": self.build}
        case: BenchCase = "matmul" if flops else "host_to_device"
        return Trial(case, "n", "d", (0,), "float32", size_bytes, prepare, **fields)

    def time(self, limit_s: float) -> Timetable:
        return Timetable.start(self.clock, limit_s)


@dataclass
class Modelled(Subject):
    model: Model
    call_s: float

    def sample(self) -> float:
        self.model.clock.now_s += self.call_s
        return self.call_s

    def verify(self) -> Outcome:
        return Outcome(0)


@given(st.integers(10**9, 10**12), st.floats(0, 2), st.sampled_from([(1.0, None), (1.5, 1e15)]))
def test_what_is_paid_once_is_not_multiplied_and_the_rest_grows_with_size_and_work(
    size: int, once_s: float, kind: tuple[float, float | None]
) -> None:
    power, flops = kind
    model = Model(once_s=once_s, power=power, call_s_per_work=1e-9 if power == 1 else 1e-14)
    found = forecast(model.trial(size, flops=flops), ON_CPU, model.time(1e9), lambda: None)
    assert found.call_s == pytest.approx(model.call_s_per_work * float(size) ** power, rel=1e-3)
    assert found.aside_s == pytest.approx(FRESH_RATIO * (once_s + 1e-9 * size), rel=1e-3)
    assert max(model.sizes) <= min(size // SHRINK, ON_CPU.probe_bytes)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(2, 1e6))
def test_a_larger_trial_is_never_told_to_take_less(low: float, high: float, x: float) -> None:
    assert extrapolate((1.0, low), (2.0, high), x) >= high


def test_a_trial_that_does_not_end_in_time_is_not_begun_and_told_what_would_work() -> None:
    model = Model(call_s_per_work=1e-13, power=1.5)
    size = 3 * 4 * 14000**2
    with pytest.raises(OutOfTime) as refused:
        check_forecast(model.trial(size, flops=2 * 14000.0**3), "cpu", model.time(20.0), lambda: None)
    text = str(refused.value)
    assert "it would take about" in text
    assert "of the time limit of 20 s" in text
    enough = json.loads("{" + re.findall(r'"max_s": \d+', text)[0] + "}")
    smaller = json.loads("{" + re.findall(r'"matmul_size": \d+', text)[0] + "}")
    assert 8 <= smaller["matmul_size"] < 14000
    other = Model(call_s_per_work=1e-13, power=1.5)
    check_forecast(other.trial(size, flops=2 * 14000.0**3), "cpu", other.time(enough["max_s"]), lambda: None)
    n = smaller["matmul_size"]
    other = Model(call_s_per_work=1e-13, power=1.5)
    check_forecast(other.trial(12 * n * n, flops=2.0 * n**3), "cpu", other.time(20.0), lambda: None)


def test_a_max_s_that_no_request_may_have_is_not_advised() -> None:
    model = Model(call_s_per_work=1e-6)
    with pytest.raises(OutOfTime) as refused:
        check_forecast(model.trial(64 * GIB), "cpu", model.time(1000.0), lambda: None)
    assert "max_s" not in str(refused.value)
    assert '"sizes_bytes": [' in str(refused.value)


def test_a_trial_that_ends_in_time_or_is_small_or_has_no_smaller_one_goes_on() -> None:
    model = Model(call_s_per_work=1e-12, aside_s_per_byte=1e-12)
    check_forecast(model.trial(GIB), "cpu", model.time(20.0), lambda: None)
    assert len(model.sizes) == 2
    small, single = Model(), Trial("matmul", "n", "d", (0,), "float32", GIB, lambda: Modelled(model, 1e9), flops=1e20)
    check_forecast(small.trial(2**20), "cpu", small.time(1e-3), lambda: None)
    check_forecast(single, "cpu", small.time(1e-3), lambda: None)
    assert small.sizes == []


def test_a_cancel_is_noticed_between_the_probes_calls() -> None:
    model, calls = Model(), []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_forecast(model.trial(64 * GIB), "cpu", model.time(1e9), check)
    assert len(model.sizes) == 1


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_the_quick_suite_is_not_forecast(platform: Any) -> None:
    devices, _ = read_devices()
    scope = build_scope(BenchRequest(), platform=platform, indices=tuple(devices))
    stage = Stage(devices, platform, scope.dtype, SystemClock())
    limits = ON_CPU if platform == "cpu" else ELSEWHERE
    for case in scope.cases:
        assert not [trial for trial in LISTERS[case](scope, stage) if is_large(trial, limits)]


def test_every_case_can_be_made_smaller() -> None:
    devices, _ = read_devices()
    scope = build_scope(BenchRequest(), platform="cpu", indices=tuple(devices))
    stage = Stage(devices, "cpu", "float32", SystemClock())
    for trial in (trial for case in scope.cases for trial in LISTERS[case](scope, stage)):
        assert trial.at_size is not None, trial.case
        subject = trial.at_size(100_003)
        assert subject.sample() > 0


def test_the_cost_of_a_part_is_smaller_by_work_and_by_size() -> None:
    half = Cost(call_s=4.0, aside_s=2.0).scale(0.25, 1.5)
    assert (half.call_s, half.aside_s) == (0.5, 0.5)
