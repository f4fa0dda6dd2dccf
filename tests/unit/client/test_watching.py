"""Following a host's history of health: each event once and in order, whatever becomes of the streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from meshwright._calls import watching
from meshwright._calls.flows import Open
from meshwright._calls.messages import Answer, Failure
from meshwright.errors import AgentConnectionError
from meshwright.wire.health import HealthEvent, HealthEvents
from tests.unit.client.script import Script, say

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEAD = [Failure("refused", "no")] * 17


def _event(seq: int) -> HealthEvent:
    return HealthEvent(seq=seq, at=NOW, component="worker", kind="state", state="healthy")


def _frame(seq: int) -> bytes:
    return f"id: {seq}\nevent: state\ndata: {_event(seq).model_dump_json()}\n\n".encode()


def _history(*seqs: int, last: int = 0) -> Answer:
    return say(HealthEvents(events=tuple(map(_event, seqs)), last_seq=max((last, *seqs))))


def _follow(script: Script, after: int | None = 0, error: type[Exception] = AgentConnectionError) -> list[int]:
    """What was told until the agent was gone."""
    told: list[HealthEvent] = []
    with pytest.raises(error):
        script.run(watching.follow_health(script.link(), emit=told.append, after=after))
    return [event.seq for event in told]


def test_events_are_told_once_and_in_order_over_streams_that_break() -> None:
    streams: list[list[Any]] = [
        [_frame(1), _frame(2), Failure("lost", "cut")],
        [_frame(2), _frame(3)],
        [],
    ]
    script = Script(sends=[*DEAD], streams=streams)
    assert _follow(script) == [1, 2, 3]
    resumed = [step.request.headers.get("Last-Event-ID") for step in script.sent(Open)]
    assert resumed == ["0", "2", "3"]  # without a number an agent begins with news


def test_where_no_stream_gets_through_the_history_is_asked_less_and_less_often() -> None:
    refused: list[Any] = [Answer(404, {})]
    script = Script(sends=[_history(1, 2), _history(3), _history(last=3), *DEAD], streams=[refused] * 9)
    assert _follow(script) == [1, 2, 3]
    assert script.pauses_s[:3] == [0.5, 1.0, 2.0]


def test_a_history_that_begins_anew_is_told_from_its_first_event() -> None:
    """The agent's database was set aside: numbers are lower now, and what has them is news all the same."""
    script = Script(sends=[_history(1, 2), _history(1, 2), *DEAD], streams=[[_frame(1), _frame(2)], [_frame(3)], []])
    assert _follow(script, after=41) == [1, 2, 3]


def test_a_silent_stream_is_opened_again_without_a_pause() -> None:
    script = Script(
        sends=[_history(last=1), *DEAD], streams=[[_frame(1)], [Failure("timeout", "silence")], [_frame(2)], []]
    )
    assert _follow(script) == [1, 2]
    assert script.pauses_s == [0.5, *[1.0] * 15]  # those of the agent that is gone
