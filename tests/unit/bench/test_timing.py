"""Samples, percentiles and the sharing out of time, with a clock that moves only when it is told to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.children.bench.measure import (
    MIN_SAMPLES,
    RESERVE_RATIO,
    WARMUP_COUNT,
    Outcome,
    OutOfTime,
    Timetable,
    Trial,
    build_record,
    measure_samples,
)
from tests.unit.bench.records import AT, NoSubject

seconds = st.floats(1e-9, 1e3)


@dataclass
class HandClock:
    now_s: float = 100.0

    def now(self) -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class Work:
    """Each call takes the next of `times_s`, then the last for ever."""

    clock: HandClock
    times_s: list[float]
    calls: int = 0

    def __call__(self) -> float:
        took = self.times_s[min(self.calls, len(self.times_s) - 1)]
        self.calls += 1
        self.clock.now_s += took
        return took


def measure(times_s: list[float], *, count: int = 10, share_s: float = 1e9, limit_s: float = 1e9) -> tuple[float, ...]:
    clock = HandClock()
    timetable = Timetable.start(clock, limit_s)
    until_s = clock.now_s + share_s
    work = Work(clock, times_s)
    return measure_samples(work, count=count, until_s=until_s, timetable=timetable, check=lambda: None)


@given(st.lists(seconds, min_size=MIN_SAMPLES, max_size=40))
def test_a_record_keeps_every_sample_in_order_and_its_figures_lie_among_them(values: list[float]) -> None:
    trial = Trial("permute", (0, 1), "float32", 64, NoSubject)
    record = build_record(trial, values, Outcome(0), at=AT, device_kind="cpu")
    assert record.samples_s == tuple(values)
    assert min(values) <= record.p10_s <= record.median_s <= record.p90_s <= max(values)
    figures = (record.p10_s, record.median_s, record.p90_s)
    assert figures == pytest.approx(tuple(np.quantile(values, (0.1, 0.5, 0.9))))


def test_the_first_calls_are_warm_up_and_slow_samples_stay() -> None:
    assert measure([9.0, 8.0, 1.0, 50.0, 2.0], count=4) == (1.0, 50.0, 2.0, 2.0)


def test_sampling_stops_after_its_share_but_never_before_three() -> None:
    assert len(measure([1.0], count=100, share_s=WARMUP_COUNT + 7.5)) == 8
    assert len(measure([1.0], count=100, share_s=0.0)) == MIN_SAMPLES


@given(seconds, st.floats(1e-3, 1e3))
def test_what_cannot_be_sampled_three_times_in_time_is_refused_with_the_reason(sample_s: float, limit_s: float) -> None:
    left_after_one = limit_s * (1 - RESERVE_RATIO) - sample_s
    if left_after_one < MIN_SAMPLES * sample_s:
        with pytest.raises(OutOfTime, match=re.escape(f"time limit of {limit_s:g} s")):
            measure([sample_s], limit_s=limit_s)
    else:
        clock = HandClock()
        clock.now_s += sample_s
        Timetable(clock, limit_s, 100.0 + limit_s * (1 - RESERVE_RATIO)).check_fits(sample_s / 2)
