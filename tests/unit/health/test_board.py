from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.health.board import WORST_FIRST, HealthBoard

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def test_a_component_that_was_never_checked_is_initializing_not_healthy() -> None:
    board = HealthBoard(stale_after_s=60)
    board.expect(["worker"])
    view = board.view(NOW)
    assert (view.state, view.components[0].state, view.components[0].observed_at) == (
        "initializing",
        "initializing",
        None,
    )


def test_an_empty_board_is_not_healthy() -> None:
    assert HealthBoard(stale_after_s=60).view(NOW).state == "initializing"


def test_an_observation_that_is_too_old_is_unknown_and_says_what_was_last_seen() -> None:
    board = HealthBoard(stale_after_s=60)
    board.report("device:0", "healthy", "JAX lists it", at=NOW)
    fresh = board.view(NOW + timedelta(seconds=60)).components[0]
    stale = board.view(NOW + timedelta(seconds=61)).components[0]
    assert (fresh.state, fresh.age_s) == ("healthy", 60)
    assert stale.state == "unknown"
    assert "last seen healthy 61 s ago" in stale.reason


def test_the_state_of_a_component_nobody_checks_is_unknown() -> None:
    assert HealthBoard(stale_after_s=60).state("device:9", NOW) == "unknown"


def test_a_clock_that_went_back_gives_no_negative_age() -> None:
    board = HealthBoard(stale_after_s=60)
    board.report("worker", "healthy", "", at=NOW)
    assert board.view(NOW - timedelta(hours=1)).components[0].age_s == 0


@given(st.lists(st.sampled_from(WORST_FIRST), min_size=1, max_size=6))
def test_the_whole_is_as_bad_as_its_worst_part(states: list[str]) -> None:
    board = HealthBoard(stale_after_s=60)
    for index, state in enumerate(states):
        board.report(f"c{index}", state, "", at=NOW)  # type: ignore[arg-type]
    assert board.view(NOW).state == min(states, key=WORST_FIRST.index)
