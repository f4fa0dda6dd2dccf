"""The state table, without a process: every pair, and random lives of a child."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.worker.states import (
    LIVE,
    TABLE,
    Action,
    CrashHistory,
    CrashRule,
    Event,
    ImpossibleEventError,
    State,
    step,
)

STATES: tuple[State, ...] = get_args(State)
EVENTS: tuple[Event, ...] = get_args(Event)
PAIRS = list(itertools.product(STATES, EVENTS))

EXPECTED: dict[tuple[State, Event], State] = {
    ("stopped", "wanted"): "starting",
    ("stopped", "released"): "stopped",
    ("stopped", "reset"): "stopped",
    ("starting", "wanted"): "starting",
    ("starting", "hello"): "ready",
    ("starting", "released"): "stopping",
    ("starting", "timeout"): "stopping",
    ("starting", "lost"): "stopping",
    ("starting", "reset"): "starting",
    ("ready", "wanted"): "ready",
    ("ready", "dispatched"): "busy",
    ("ready", "released"): "stopping",
    ("ready", "timeout"): "stopping",
    ("ready", "lost"): "stopping",
    ("ready", "reset"): "ready",
    ("busy", "wanted"): "busy",
    ("busy", "reply"): "ready",
    ("busy", "cancelled"): "busy",
    ("busy", "released"): "stopping",
    ("busy", "timeout"): "stopping",
    ("busy", "lost"): "stopping",
    ("busy", "reset"): "busy",
    ("stopping", "wanted"): "stopping",
    ("stopping", "cancelled"): "stopping",
    ("stopping", "released"): "stopping",
    ("stopping", "gone"): "stopped",
    ("stopping", "crashed"): "backoff",
    ("stopping", "crashed_out"): "failed",
    ("stopping", "reset"): "stopping",
    ("backoff", "wanted"): "backoff",
    ("backoff", "released"): "backoff",
    ("backoff", "timeout"): "stopped",
    ("backoff", "reset"): "stopped",
    ("failed", "wanted"): "failed",
    ("failed", "released"): "failed",
    ("failed", "reset"): "stopped",
}
"""Written from the description of the life of a child, not from the table."""


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_leads_where_the_description_says_or_is_refused(state: State, event: Event) -> None:
    if (state, event) in EXPECTED:
        assert step(state, event).state == EXPECTED[state, event]
    else:
        with pytest.raises(ImpossibleEventError, match=f"{event} in state {state}"):
            step(state, event)


def test_the_table_uses_every_state_event_and_action() -> None:
    steps = [(event, found) for row in TABLE.values() for event, found in row.items()]
    assert set(TABLE) == set(STATES)
    assert {event for event, _ in steps} == set(EVENTS)
    assert {action for _, found in steps for action in found.actions} == set(get_args(Action))


@pytest.mark.parametrize("state", STATES)
def test_what_anybody_may_ask_at_any_time_has_an_answer_in_every_state(state: State) -> None:
    for event in ("wanted", "released", "reset"):
        step(state, event)


@pytest.mark.parametrize("state", sorted(LIVE))
def test_a_living_process_is_left_only_by_stopping(state: State) -> None:
    for found in TABLE[state].values():
        assert found.state in LIVE or (found.state == "stopping" and {"stop", "kill"} & set(found.actions))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_a_hang_is_killed_and_a_wish_is_stopped_gently(state: State, event: Event) -> None:
    if event == "released" and state in LIVE:
        assert step(state, event).actions == ("stop",)
    if (state, event) in {("busy", "timeout"), ("starting", "timeout")}:
        assert step(state, event).actions == ("kill",)


class Life:
    """A child in a world that does what the actions say: which events can come next, and what must hold."""

    def __init__(self) -> None:
        self.state: State = "stopped"
        self.has_process = self.has_teardown = self.has_timer = self.has_call = False
        self.spawn_count = self.teardown_count = 0

    def possible(self) -> list[Event]:
        events: list[Event] = ["wanted", "released", "reset"]
        if self.has_process and not self.has_teardown:
            events.append("lost")
            events += ["hello"] if self.state == "starting" else []
            events += ["dispatched"] if self.state == "ready" else []
            events += ["reply"] if self.has_call else []
        events += ["cancelled"] if self.has_call else []
        events += ["timeout"] if self.has_timer else []
        events += ["gone", "crashed", "crashed_out"] if self.has_teardown else []
        return events

    def live(self, event: Event) -> None:
        found = step(self.state, event)
        if found.state != self.state:
            self.has_timer = False
        self.state = found.state
        if event in ("gone", "crashed", "crashed_out"):
            self.has_process = self.has_teardown = self.has_call = False
        self.has_call = self.has_call and event != "reply"
        for action in found.actions:
            self._do(action)

    def _do(self, action: str) -> None:
        if action == "spawn":
            assert not self.has_process, "two owners of one device"
            self.has_process, self.spawn_count = True, self.spawn_count + 1
        if action in ("stop", "kill"):
            assert self.has_process
            assert not self.has_teardown, "ended twice"
            self.has_teardown, self.teardown_count = True, self.teardown_count + 1
        if action == "send_call":
            assert not self.has_call, "two calls at a time"
            self.has_call = True
        if action == "send_cancel":
            assert self.has_call
        if action.startswith("time_"):
            self.has_timer = True

    def check(self) -> None:
        assert self.has_process == (self.state in LIVE or self.state == "stopping")
        assert self.has_teardown == (self.state == "stopping")
        assert self.has_call <= (self.state in ("busy", "stopping"))
        assert (self.state == "busy") <= self.has_call
        assert self.has_timer == (self.state in ("starting", "ready", "busy", "backoff"))
        assert self.spawn_count - self.teardown_count == (self.state in LIVE)


@given(st.data())
def test_in_any_life_there_is_one_process_one_call_one_timer_and_one_end(data: st.DataObject) -> None:
    life = Life()
    for _ in range(data.draw(st.integers(1, 40))):
        life.live(data.draw(st.sampled_from(life.possible())))
        life.check()


@given(st.data())
def test_from_any_point_a_reset_and_a_wish_lead_to_ready(data: st.DataObject) -> None:
    life = Life()
    for _ in range(data.draw(st.integers(0, 20))):
        life.live(data.draw(st.sampled_from(life.possible())))
    for event in ("gone", "timeout", "reset", "wanted", "hello"):
        if life.state in ("ready", "busy"):
            return
        if event in life.possible() and (life.state, event) != ("starting", "timeout"):
            life.live(event)
    assert life.state == "ready"


RULE = CrashRule(budget=3, window_s=10.0, initial_s=0.5, max_s=4.0)


def test_the_pause_doubles_with_each_crash_up_to_its_limit() -> None:
    history, pauses = CrashHistory(), []
    for _ in range(6):
        history = history.add(0.0, RULE)
        pauses.append(history.pause_s(RULE))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_the_budget_is_spent_by_so_many_crashes_within_the_window() -> None:
    twice = CrashHistory().add(0.0, RULE).add(9.0, RULE)
    assert not twice.is_spent(RULE)
    assert twice.add(9.9, RULE).is_spent(RULE)
    assert not twice.add(10.0, RULE).is_spent(RULE)  # the first has left the window
    assert CrashHistory().pause_s(RULE) == 0.0


@given(st.lists(st.floats(0, 1000), max_size=30).map(sorted))
def test_the_history_holds_the_crashes_of_the_window_and_no_more(times: list[float]) -> None:
    history = CrashHistory()
    for index, at in enumerate(times):
        history = history.add(at, RULE)
        within = [earlier for earlier in times[: index + 1] if at - earlier < RULE.window_s]
        assert list(history.at_s) == within
        assert history.pause_s(RULE) == min(0.5 * 2 ** (len(within) - 1), 4.0)
