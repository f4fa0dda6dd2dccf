from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright_agent.access.rates import Rates


class Steady:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_minutes_worth_is_allowed_at_once_then_one_at_a_time() -> None:
    clock = Steady()
    rates = Rates(3, clock)
    assert [rates.spend("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert rates.spend("a") == 20.0
    clock.now_s = 15.0
    assert rates.spend("a") == 5.0
    clock.now_s = 20.0
    assert rates.spend("a") == 0.0
    assert rates.spend("a") == 20.0


def test_one_caller_does_not_pay_for_another() -> None:
    rates = Rates(1, Steady())
    assert (rates.spend("a"), rates.spend("b")) == (0.0, 0.0)
    assert rates.spend("a") > 0


def test_zero_is_no_limit() -> None:
    rates = Rates(0, Steady())
    assert {rates.spend("a") for _ in range(10_000)} == {0.0}


@settings(deadline=None)
@given(st.integers(1, 30), st.lists(st.floats(0, 30), max_size=40))
def test_in_any_minute_no_more_than_two_minutes_worth_passes(per_minute: int, pauses: list[float]) -> None:
    clock = Steady()
    rates = Rates(per_minute, clock)
    passed_s: list[float] = []
    for pause_s in pauses:
        clock.now_s += pause_s
        while rates.spend("a") == 0.0:
            passed_s.append(clock.now_s)
    for at_s in passed_s:
        assert sum(at_s <= other < at_s + 60 for other in passed_s) <= 2 * per_minute + 1


def test_the_caller_who_asked_longest_ago_is_forgotten_first_so_that_memory_is_bounded() -> None:
    rates = Rates(1, Steady(), most=2)
    assert [rates.spend(name) for name in ("a", "b", "c")] == [0.0, 0.0, 0.0]
    assert rates.spend("c") > 0
    assert rates.spend("b") > 0
    assert rates.spend("a") == 0.0
