from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.health import WORST_FIRST, Component, Health, State
from meshwright_agent.health.events import Fault, Finding, HealthMemory
from meshwright_agent.health.registry import HealthRegistry, build_unknown_component

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def test_a_component_that_was_never_checked_is_initializing_not_healthy() -> None:
    board = HealthRegistry(stale_after_s=60)
    board.expect(["worker"])
    (seen,) = board.view(NOW).components
    assert (board.view(NOW).state, seen.state, seen.observed_at) == ("initializing", "initializing", None)
    assert HealthRegistry(stale_after_s=60).view(NOW).state == "initializing"  # with nothing on it at all


def test_an_observation_that_is_too_old_is_unknown_and_says_what_was_last_seen() -> None:
    board = HealthRegistry(stale_after_s=60)
    board.report("device:0", Finding("healthy", "JAX lists it"), at=NOW)
    fresh = board.view(NOW + timedelta(seconds=60)).components[0]
    stale = board.view(NOW + timedelta(seconds=61)).components[0]
    assert (fresh.state, fresh.age_s) == ("healthy", 60)
    assert stale.state == "unknown"
    assert "last seen healthy 61 s ago" in stale.reason


def test_the_state_of_a_component_nobody_checks_is_unknown() -> None:
    assert HealthRegistry(stale_after_s=60).state("device:9", NOW) == "unknown"


def test_a_clock_that_went_back_gives_no_negative_age() -> None:
    board = HealthRegistry(stale_after_s=60)
    board.report("worker", Finding("healthy", ""), at=NOW)
    assert board.view(NOW - timedelta(hours=1)).components[0].age_s == 0


@given(st.lists(st.sampled_from(WORST_FIRST), min_size=1, max_size=6))
def test_the_whole_is_as_bad_as_its_worst_part_and_not_usable_before_all_are_checked(states: list[str]) -> None:
    order = ("unhealthy", "unknown", "initializing", "degraded", "healthy")
    board, worst = HealthRegistry(stale_after_s=60), min(states, key=order.index)
    for index, state in enumerate(states):
        if state == "initializing":
            board.expect((f"c{index}",))
        else:
            board.report(f"c{index}", Finding(state, ""), at=NOW)  # type: ignore[arg-type]
    assert board.view(NOW).state == (worst if worst in order[:2] else "initializing")  # no device was looked at
    board.report("device:0", Finding("healthy", ""), at=NOW)
    assert board.view(NOW).state == worst


def test_a_component_that_is_left_alone_on_purpose_says_so_and_counts_for_nothing() -> None:
    board = HealthRegistry(stale_after_s=60)
    board.report("worker", Finding("initializing", "not started: a device is leased"), at=NOW)
    assert board.view(NOW).state == "initializing"  # with nothing else there is nothing to be green for
    board.report("device:0", Finding("healthy", "answers"), at=NOW)
    seen = board.view(NOW)
    assert (seen.state, [part.state for part in seen.components]) == ("healthy", ["initializing", "healthy"])
    assert board.view(NOW + timedelta(seconds=61)).state == "unknown"  # nobody looks whether it is still so


def test_words_that_are_no_utf_8_can_be_sent() -> None:
    board = HealthRegistry(stale_after_s=60)
    board.report("disk", Finding("unhealthy", "/state\udcff is full", "look at /state\udcff"), at=NOW)
    component = board.view(NOW).components[0]
    assert (component.reason, component.action) == ("/state\\udcff is full", "look at /state\\udcff")
    assert Health.model_validate_json(board.view(NOW).model_dump_json()).components == (component,)


FAULT = Fault("device:0", "xid_79", "unhealthy", "it fell", "reboot", NOW)

# ---- over restarts of the agent -------------------------------------------------------------------------------------

SECOND = timedelta(seconds=1)
Told = tuple[str, State, State, datetime]


class Lives:
    """One host's board through lives of its agent: `told` are the changes of all of them."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.memory = HealthMemory()
        self.begin()

    def begin(self) -> None:
        self.registry = HealthRegistry(stale_after_s=60, on_change=self._hear, memory=self.memory)

    def restart(self) -> None:
        dump, self.memory = self.memory.dump(), HealthMemory()
        self.memory.load(dump)
        self.begin()

    def _hear(self, component: Component, before: State, at: datetime) -> None:
        self.told.append((component.name, before, component.state, at))

    def since(self, name: str, now: datetime) -> datetime | None:
        return self.registry.component(name, now).since


@pytest.fixture
def lives() -> Lives:
    lives = Lives()
    lives.registry.report("device:0", Finding("degraded", "hot"), at=NOW)
    lives.told.clear()
    return lives


def test_what_is_seen_otherwise_is_told_with_the_state_before_the_restart(lives: Lives) -> None:
    later = NOW + timedelta(days=3)
    lives.restart()
    lives.registry.report("device:0", Finding("healthy", "cool"), at=later)
    assert lives.told == [("device:0", "degraded", "healthy", later)]
    assert lives.since("device:0", later) == later


@pytest.mark.parametrize("state", ["healthy", "degraded", "unhealthy"])
def test_until_it_is_looked_at_again_it_is_initializing_since_nobody_knows_when(state: State) -> None:
    lives = Lives()
    lives.registry.report("device:0", Finding(state, ""), at=NOW)
    lives.told.clear()
    lives.restart()
    lives.registry.expect(["device:0"])
    seen = lives.registry.view(NOW + SECOND).components[0]
    assert (seen.state, seen.since, lives.told) == ("initializing", None, [])
    lives.restart()  # an agent that ended before it looked has changed nothing
    lives.registry.report("device:0", Finding(state, ""), at=NOW + SECOND)
    assert (lives.since("device:0", NOW + SECOND), lives.told) == (NOW, [])


def test_a_check_that_leaves_a_component_alone_is_no_look_before_the_first_one_and_a_change_after_it() -> None:
    lives = Lives()
    lives.registry.report("worker", Finding("healthy", "answers"), at=NOW)
    lives.told.clear()
    lives.restart()
    lives.registry.report("worker", Finding("initializing", "not started: a device is leased"), at=NOW + SECOND)
    assert (lives.since("worker", NOW + SECOND), lives.told) == (None, [])
    lives.registry.report("worker", Finding("healthy", "answers"), at=NOW + 2 * SECOND)
    assert (lives.since("worker", NOW + 2 * SECOND), lives.told) == (NOW, [])
    lives.registry.report("worker", Finding("initializing", "not started: a device is leased"), at=NOW + 3 * SECOND)
    assert lives.told == [("worker", "healthy", "initializing", NOW + 3 * SECOND)]


def test_a_fault_that_stands_tells_nothing_before_a_look_where_the_component_was_worse(lives: Lives) -> None:
    lives.registry.report("device:0", Finding("unhealthy", "gone"), at=NOW + SECOND)
    lives.told.clear()
    lives.restart()
    lives.registry.add_fault(Fault("device:0", "xid_63", "degraded", "a row", "reset", NOW), NOW + 2 * SECOND)
    seen = lives.registry.view(NOW + 2 * SECOND).components[0]
    assert (seen.state, seen.since) == ("degraded", None)
    lives.registry.report("device:0", Finding("unhealthy", "gone"), at=NOW + 3 * SECOND)
    assert (lives.since("device:0", NOW + 3 * SECOND), lives.told) == (NOW + SECOND, [])


def test_a_fault_that_is_news_before_a_look_is_told(lives: Lives) -> None:
    lives.restart()
    lives.registry.add_fault(FAULT, NOW + SECOND)
    assert lives.told == [("device:0", "degraded", "unhealthy", NOW + SECOND)]


def test_a_fault_that_is_cleared_before_a_look_is_told_and_the_next_one_begins_anew(lives: Lives) -> None:
    lives.registry.add_fault(FAULT, NOW)
    lives.restart()
    lives.registry.add_fault(FAULT, NOW + SECOND)  # as it is recalled
    lives.told.clear()
    lives.registry.clear_faults("device:0", NOW + 2 * SECOND)
    lives.registry.add_fault(FAULT, NOW + 3 * SECOND)
    assert [told[1:3] for told in lives.told] == [("unhealthy", "initializing"), ("initializing", "unhealthy")]
    assert lives.since("device:0", NOW + 3 * SECOND) == NOW + 3 * SECOND


def test_since_is_never_in_the_future_of_a_clock_that_was_set_back_and_comes_back_with_it(lives: Lives) -> None:
    back = NOW - timedelta(days=1)
    lives.restart()
    lives.registry.report("device:0", Finding("degraded", "hot"), at=back)
    assert (lives.since("device:0", back), lives.told) == (None, [])
    lives.registry.report("device:0", Finding("degraded", "hot"), at=NOW + SECOND)
    assert lives.since("device:0", NOW + SECOND) == NOW


@pytest.mark.parametrize("how", ["forget", "forget_unlisted"])
def test_a_component_that_is_gone_begins_anew_when_it_comes_back(lives: Lives, how: str) -> None:
    lives.restart()
    lives.registry.report("device:1", Finding("healthy", "listed"), at=NOW)
    lives.registry.expect(("device:2",))  # which has no state yet
    lives.told.clear()
    lives.registry.forget("device:0") if how == "forget" else lives.registry.forget_unlisted()
    lives.restart()
    for name in ("device:0", "device:1"):
        lives.registry.report(name, Finding("healthy", "listed"), at=NOW + SECOND)
    assert lives.told == [("device:0", "initializing", "healthy", NOW + SECOND)]


@pytest.mark.parametrize(("name", "hint"), [
    ("driwer", "did you mean 'driver'? GET /health lists all"), ("xyz", "GET /health lists the components"),
])  # fmt: skip
def test_an_unknown_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    error = build_unknown_component(name, ["store", "driver"])
    assert (error.detail, error.hint) == (f"no component has the name {name!r}; there are 2", hint)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(WORST_FIRST[:3] + WORST_FIRST[4:]), st.booleans())))
def test_restarts_among_any_looks_change_neither_what_is_told_nor_since_when(
    looks: list[tuple[str, State, bool]],
) -> None:
    restarted, steady = Lives(), Lives()
    for number, (name, state, is_restart) in enumerate(looks):
        if is_restart:
            restarted.restart()
        for lives in (restarted, steady):
            lives.registry.report(name, Finding(state, ""), at=NOW + number * SECOND)
    now = NOW + len(looks) * SECOND
    assert restarted.told == steady.told
    for name in restarted.registry.names():
        assert restarted.since(name, now) == steady.since(name, now) is not None
