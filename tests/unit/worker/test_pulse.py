from __future__ import annotations

from typing import Any

import pytest

from meshwright_agent.worker.device import PULSE_S, Pulse


class Hand:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_long_case_repeats_its_last_progress_and_a_short_one_does_not() -> None:
    told: list[dict[str, Any]] = []
    clock = Hand()
    pulse = Pulse(told.append, lambda: None, clock)
    pulse.progress({"done": 0, "total": 2, "message": "all_reduce"})
    clock.now_s = PULSE_S - 1
    pulse.check()
    assert len(told) == 1
    clock.now_s = PULSE_S + 1
    pulse.check()
    pulse.check()
    assert told == [{"done": 0, "total": 2, "message": "all_reduce"}] * 2


def test_a_record_counts_as_a_sign_of_life_and_is_never_told_twice() -> None:
    told: list[dict[str, Any]] = []
    clock = Hand()
    pulse = Pulse(told.append, lambda: None, clock)
    pulse.progress({"done": 0, "total": 1, "message": "matmul"})
    pulse.progress({"record": {"case": "matmul"}})
    clock.now_s = 2 * PULSE_S
    pulse.check()
    assert [sorted(value) for value in told] == [["done", "message", "total"], ["record"], ["done", "message", "total"]]


def test_a_cancelled_bench_ends_without_a_further_word() -> None:
    told: list[dict[str, Any]] = []

    def refuse() -> None:
        raise RuntimeError("cancelled")

    clock = Hand()
    pulse = Pulse(told.append, refuse, clock)
    pulse.progress({"done": 0, "total": 1, "message": "matmul"})
    clock.now_s = 2 * PULSE_S
    with pytest.raises(RuntimeError, match="cancelled"):
        pulse.check()
    assert len(told) == 1
