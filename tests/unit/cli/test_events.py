"""`meshwright events` and `meshwright acknowledge`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshwright.testing import FakeAgent
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def line(meshwright: CommandLine) -> CommandLine:
    """A host whose device 1 broke and whose device 0 got hot."""
    meshwright.fake = FakeAgent("h100:2")
    meshwright.fake.change_health("device:1", "unhealthy", "XID 79: fell off the bus", action="reset it")
    meshwright.fake.change_health("device:0", "degraded", "hot")
    return meshwright


def _rows(out: str) -> list[list[str]]:
    return [row.split() for row in out.splitlines() if "→" in row]


def test_events_are_listed_with_what_changed_and_why(line: CommandLine) -> None:
    rows = _rows(line("events").out)
    assert [row[0] for row in rows] == ["1", "2"]
    assert rows[0][4:] == [
        "device:1",
        "healthy",
        "→",
        "unhealthy",
        "XID",
        "79:",
        "fell",
        "off",
        "the",
        "bus",
        "reset",
        "it",
    ]


def test_events_can_be_asked_by_component_number_count_and_time(line: CommandLine) -> None:
    assert [row[0] for row in _rows(line("events", "--component", "device:0").out)] == ["2"]
    assert [row[0] for row in _rows(line("events", "--after", "1").out)] == ["2"]
    assert [row[0] for row in _rows(line("events", "--limit", "1").out)] == ["2"]
    assert len(_rows(line("events", "--since", "1h").out)) == 2
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert line("events", "--since", later).out == "no events\n"


def test_json_is_the_agents_reply(line: CommandLine) -> None:
    reply = line("--json", "events").json
    assert (reply["last_seq"], [event["seq"] for event in reply["events"]]) == (2, [1, 2])


def _follow(line: CommandLine, *arguments: str) -> list[str]:
    """The lines of `events --follow` until it has nothing to do but wait, where Ctrl-C ends it."""

    def interrupt(delay_s: float) -> None:
        raise KeyboardInterrupt

    line.pause = interrupt
    printed = line("events", "--follow", *arguments)
    assert printed.code == 130
    return printed.out.splitlines()


def test_following_goes_on_after_what_is_known_one_event_a_line(line: CommandLine) -> None:
    assert [text.split("  ")[1:] for text in _follow(line, "--after", "0")] == [
        ["device:1", "healthy → unhealthy", "XID 79: fell off the bus"],
        ["device:0", "healthy → degraded", "hot"],
    ]
    assert [json.loads(text)["seq"] for text in _follow(line, "--after", "1", "--json")] == [2]
    assert len(_follow(line, "--after", "0", "--component", "device:0")) == 1


def test_following_since_a_time_tells_each_event_once_and_without_one_only_news(line: CommandLine) -> None:
    assert len(_follow(line, "--since", "1h")) == 2
    assert _follow(line) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--since", "yesterday"), "1h"), (("--follow", "--limit", "3"), "limit"), (("--limit", "0"), "--limit")],
)
def test_a_wrong_argument_is_2(line: CommandLine, arguments: tuple[str, ...], said: Any) -> None:
    printed = line("events", *arguments)
    assert (printed.code, line.fake.requests) == (2, [])
    assert said in printed.err


def test_an_acknowledgement_clears_a_component(line: CommandLine) -> None:
    printed = line("acknowledge", "device:1", "--reason", "card was reset")
    assert (printed.code, printed.out) == (0, "device:1 healthy\n")
    assert line.body() == {"schema_version": "1", "component": "device:1", "reason": "card was reset"}
    assert "acknowledged, healthy" in line("events", "--limit", "1").out
    assert line("acknowledge", "device:9", "--reason", "x").code == 1
    assert line("acknowledge", "device:1").code == 2


def test_a_token_without_the_scope_is_2_with_a_hint(line: CommandLine) -> None:
    line.fake.fail_next(403, "forbidden", detail="needs admin")
    printed = line("acknowledge", "device:1", "--reason", "x")
    assert printed.code == 2
    assert "hint: use a token with a larger scope" in printed.err
