from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.health import Health
from meshwright_agent.health.board import WORST_FIRST, HealthBoard
from meshwright_agent.health.memory import Fault
from meshwright_agent.health.words import make_sendable

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


def test_words_that_are_no_utf_8_can_be_sent() -> None:
    board = HealthBoard(stale_after_s=60)
    board.report("disk", "unhealthy", "/state\udcff is full", at=NOW, action="look at /state\udcff")
    component = board.view(NOW).components[0]
    assert (component.reason, component.action) == ("/state\\udcff is full", "look at /state\\udcff")
    assert Health.model_validate_json(board.view(NOW).model_dump_json()).components == (component,)


@given(st.text(st.characters(codec="utf-8")))
def test_words_that_are_utf_8_stay_as_they_are(text: str) -> None:
    assert make_sendable(text) == text


FAULT = Fault("device:0", "xid_79", "unhealthy", "it fell", "reboot", NOW)
WRITES: dict[str, Callable[[HealthBoard], object]] = {
    "expect": lambda board: board.expect(["worker"]),
    "report": lambda board: board.report("device:0", "degraded", "hot", at=NOW),
    "add_fault": lambda board: board.add_fault(FAULT, NOW),
    "clear_faults": lambda board: board.clear_faults("device:0", NOW),
    "forget": lambda board: board.forget("device:0"),
}


@pytest.mark.parametrize("write", WRITES)
def test_whatever_changes_the_board_changes_its_version(write: str) -> None:
    board = HealthBoard(stale_after_s=60)
    board.report("device:0", "healthy", "listed", at=NOW)
    if write == "clear_faults":
        board.add_fault(FAULT, NOW)
    before, shown = board.version, board.view(NOW)
    WRITES[write](board)
    assert board.view(NOW) != shown
    assert board.version > before


def test_looking_at_the_board_does_not_change_its_version() -> None:
    board = HealthBoard(stale_after_s=60)
    board.report("device:0", "healthy", "listed", at=NOW)
    before = board.version
    board.view(NOW)
    board.view(NOW + timedelta(hours=1))
    assert board.version == before
