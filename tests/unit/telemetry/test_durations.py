"""Durations: every one counted once, in the bucket that it belongs to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.telemetry.durations import Durations

BOUNDS_S = (0.1, 1.0, 10.0)
INFINITE = float("inf")


def test_a_bound_belongs_to_its_bucket() -> None:
    seen = Durations(BOUNDS_S)
    for seconds in (0.1, 0.10001, 1.0, 99.0):
        seen.observe(("a",), seconds)
    (spread,) = seen.spreads()
    assert spread.cumulative == ((0.1, 1), (1.0, 3), (10.0, 3), (INFINITE, 4))
    assert spread.total_s == 0.1 + 0.10001 + 1.0 + 99.0


def test_a_clock_that_was_set_back_makes_no_negative_sum() -> None:
    seen = Durations(BOUNDS_S)
    seen.observe((), -5.0)
    assert [(spread.cumulative[0], spread.total_s) for spread in seen.spreads()] == [((0.1, 1), 0.0)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 100)), max_size=50))
def test_counts_rise_with_the_bounds_up_to_all_that_were_seen(observed: list[tuple[str, float]]) -> None:
    seen = Durations(BOUNDS_S)
    for label, seconds in observed:
        seen.observe((label,), seconds)
    for spread in seen.spreads():
        mine = [seconds for label, seconds in observed if (label,) == spread.labels]
        assert spread.cumulative == tuple((b, sum(s <= b for s in mine)) for b in (*BOUNDS_S, INFINITE))
    assert {spread.labels for spread in seen.spreads()} == {(label,) for label, _ in observed}
