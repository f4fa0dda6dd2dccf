"""Which date things may be deleted from, by a wall clock that leaps and a steady one that does not."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.health.retention import BELIEVED_AFTER_S, LEAP, TAKEN_UP_AFTER_S, Retention
from tests.fakes.stored import EPOCH, ManualClock

DAYS = 30.0
HOUR_S = 3600.0


class LeapingClock(ManualClock):
    """Goes as `advance` says; its wall clock alone is `set`."""

    def set(self, now: datetime) -> None:
        self._now = now


def test_what_is_older_than_the_days_may_go() -> None:
    clock = LeapingClock()
    retention = Retention(clock, DAYS)
    for _ in range(100):
        clock.advance(HOUR_S)
        assert retention.find_oldest() == clock.now() - timedelta(days=DAYS)


def test_a_clock_that_leapt_ahead_and_is_set_right_deletes_nothing() -> None:
    clock = LeapingClock()
    retention = Retention(clock, DAYS)
    clock.set(EPOCH + timedelta(days=400))
    for _ in range(20):
        assert retention.find_oldest() <= EPOCH + timedelta(days=1) - timedelta(days=DAYS)
        clock.advance(HOUR_S)
    clock.set(EPOCH + timedelta(hours=20))
    assert retention.find_oldest() == clock.now() - timedelta(days=DAYS)


def test_a_clock_that_stays_ahead_for_a_day_is_believed() -> None:
    clock = LeapingClock()
    retention = Retention(clock, DAYS)
    clock.set(EPOCH + timedelta(days=400))
    retention.find_oldest()
    clock.advance(BELIEVED_AFTER_S)
    assert retention.find_oldest() == clock.now() - timedelta(days=DAYS)
    clock.advance(HOUR_S)
    assert retention.find_oldest() == clock.now() - timedelta(days=DAYS)


@pytest.mark.parametrize("step_s", [-400 * 86400.0, -5.0, 5.0, LEAP.total_seconds()])
def test_a_clock_that_is_set_back_or_a_little_ahead_is_believed_at_once(step_s: float) -> None:
    clock = LeapingClock()
    retention = Retention(clock, DAYS)
    clock.set(EPOCH + timedelta(seconds=step_s))
    assert retention.find_oldest() == clock.now() - timedelta(days=DAYS)


def test_a_clock_that_leapt_while_no_agent_ran_deletes_nothing_for_an_hour() -> None:
    clock = LeapingClock(EPOCH + timedelta(days=400))
    retention = Retention(clock, DAYS)
    retention.take_up(EPOCH.timestamp())
    for _ in range(3):
        assert retention.find_oldest() <= EPOCH + timedelta(hours=1) - timedelta(days=DAYS)
        clock.advance(TAKEN_UP_AFTER_S / 3)
    assert retention.find_oldest() == clock.now() - timedelta(days=DAYS)
    clock.set(clock.now() + timedelta(days=400))
    clock.advance(TAKEN_UP_AFTER_S)
    assert retention.find_oldest() < clock.now() - timedelta(days=400)


def test_what_was_noted_by_a_clock_that_was_ahead_is_no_time_to_go_on_from() -> None:
    clock = LeapingClock()
    retention = Retention(clock, DAYS)
    retention.take_up((EPOCH + timedelta(days=400)).timestamp())
    assert retention.find_oldest() == clock.now() - timedelta(days=DAYS)


@given(st.lists(st.tuples(st.floats(0, 7200), st.integers(-(10**6), 10**6)), max_size=30))
def test_nothing_younger_than_the_days_may_ever_go_by_the_clock_of_now(steps: list[tuple[float, int]]) -> None:
    clock = LeapingClock()
    retention = Retention(clock, DAYS)
    for passed_s, leap_s in steps:
        clock.advance(passed_s)
        clock.set(clock.now() + timedelta(seconds=leap_s))
        assert retention.find_oldest() <= clock.now() - timedelta(days=DAYS)
