"""`meshwright events` and `meshwright health ack`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshwright.cli.events import MOST, SHOWN
from meshwright.cli.session import Session
from meshwright.wire.health import Component, Health
from tests.fakes.scripted import RemembersHealth
from tests.unit.cli.conftest import CommandLine

pytestmark = pytest.mark.timeout(30)  # what follows, or reads page after page, may do so for ever


@pytest.fixture
def line(meshwright: CommandLine) -> CommandLine:
    """A host whose device 1 broke and whose device 0 got hot."""
    meshwright.fake = RemembersHealth()
    meshwright.fake.change_health("device:1", "unhealthy", "XID 79: fell off the bus", action="reset it")
    meshwright.fake.change_health("device:0", "degraded", "hot")
    return meshwright


def _rows(out: str) -> list[list[str]]:
    return [row.split() for row in out.splitlines() if "→" in row]


def test_events_are_listed_with_what_changed_and_why(line: CommandLine) -> None:
    rows = _rows(line("events").out)
    assert [row[0] for row in rows] == ["1", "2"]
    assert " ".join(rows[0][4:]) == "device:1 healthy → unhealthy XID 79: fell off the bus reset it"


def test_events_can_be_asked_by_component_count_and_time(line: CommandLine) -> None:
    assert [row[0] for row in _rows(line("events", "--component", "device:0").out)] == ["2"]
    assert [row[0] for row in _rows(line("events", "--limit", "1").out)] == ["2"]
    assert len(_rows(line("events", "--since", "1h").out)) == 2
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert line("events", "--since", later).out == "no events\n"


def _follow(line: CommandLine, *arguments: str) -> list[str]:
    """The lines of `events --follow` until it has nothing to do but wait, where Ctrl-C ends it."""

    def interrupt(delay_s: float) -> None:
        raise KeyboardInterrupt

    line.pause = interrupt
    printed = line("events", "--follow", *arguments)
    assert printed.code == 130
    return printed.out.splitlines()


def test_following_since_a_time_tells_each_event_once_one_a_line_and_without_one_only_news(line: CommandLine) -> None:
    assert [text.split("  ")[1:] for text in _follow(line, "--since", "1h")] == [
        ["device:1", "healthy → unhealthy", "XID 79: fell off the bus"],
        ["device:0", "healthy → degraded", "hot"],
    ]
    assert [json.loads(text)["seq"] for text in _follow(line, "--since", "1h", "--format=json")] == [1, 2]
    assert len(_follow(line, "--since", "1h", "--component", "device:0")) == 1
    assert _follow(line) == []


@pytest.mark.parametrize("since", [(), ("--since", "1h")])
def test_following_ends_when_nobody_reads_any_more(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch, since: tuple[str, ...]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Session, "tell", lambda _, text: told.append(text))

    def wait(_: float) -> None:
        if told:
            pytest.fail("waits for more events, and nobody reads them")
        line.fake.change_health("device:0", "unhealthy", "hotter")

    line.pause = wait
    assert (line("events", "--follow", *since).code, len(told)) == (0, 1)


def _make(line: CommandLine, count: int) -> None:
    """Lets device 0 fail and recover until there are so many events."""
    line.fake = RemembersHealth()
    for number in range(count):
        line.fake.change_health("device:0", "healthy" if number % 2 else "degraded", "hot")


def test_more_events_than_an_agent_tells_at_once_are_one_reply_too(line: CommandLine) -> None:
    _make(line, 2 * MOST + 1)
    reply = line("--format=json", "events", "--since", "1h").json
    assert [event["seq"] for event in reply["events"]] == [*range(1, 2 * MOST + 2)]
    assert reply["last_seq"] == 2 * MOST + 1
    _make(line, MOST)
    assert len(line("--format=json", "events", "--since", "1h").json["events"]) == MOST


@pytest.mark.parametrize(("count", "is_said"), [(SHOWN - 1, False), (SHOWN + 4, True)])
def test_that_only_the_newest_are_shown_is_said(line: CommandLine, count: int, is_said: bool) -> None:
    _make(line, count)
    printed = line("events")
    assert len(_rows(printed.out)) == min(count, SHOWN)
    assert (f"the newest {SHOWN}" in printed.err, "--since 24h" in printed.err) == (is_said, is_said)


def test_following_since_a_time_leaves_out_nothing_of_a_long_history(line: CommandLine) -> None:
    _make(line, MOST + 50)
    told = [json.loads(text)["seq"] for text in _follow(line, "--since", "1h", "--format=json")]
    assert told == [*range(1, MOST + 51)]


@pytest.fixture
def by_uuid(line: CommandLine) -> CommandLine:
    """The same host as a real agent names its parts: by uuid."""
    line.fake = RemembersHealth("h100:2")
    names = ["driver"]
    for device in line.fake.devices.devices:
        names += [f"device:{device.uuid}", f"thermal:{device.uuid}"]
    line.fake.health = Health(state="healthy", components=tuple(Component(name=n, state="healthy") for n in names))
    line.fake.change_health(f"thermal:{line.fake.devices.devices[1].uuid}", "degraded", "hot")
    return line


def test_a_device_may_be_named_by_its_index_where_components_go_by_uuid(by_uuid: CommandLine) -> None:
    uuid = by_uuid.fake.devices.devices[1].uuid
    assert [row[4] for row in _rows(by_uuid("events", "--component", "thermal:1").out)] == [f"thermal:{uuid}"]
    (text,) = _follow(by_uuid, "--since", "1h", "--component", "thermal:1")
    assert text.split("  ")[1] == f"thermal:{uuid}"
    printed = by_uuid("health", "ack", "thermal:1", "--reason", "fan replaced")
    assert (printed.code, printed.out) == (0, f"thermal:{uuid} healthy\n")


@pytest.mark.parametrize("name", ["device:7", "device:²", "device:GPU-9", "gadget"])
def test_a_name_that_no_component_has_is_answered_with_those_that_there_are(by_uuid: CommandLine, name: str) -> None:
    there = [each.name for each in by_uuid.fake.health.components]
    expected = [each for each in there if each.startswith("device:")] if name.startswith("device") else there
    printed = by_uuid("health", "ack", name, "--reason", "x")
    assert (printed.code, printed.out) == (1, "")
    assert f"hint: there are {', '.join(expected)}\n" in printed.err
    assert by_uuid("events", "--component", name).out == f"no events of {name}; there are {', '.join(expected)}\n"


@pytest.mark.parametrize(("arguments", "said"), [
    (("--since", "yesterday"), "1h"), (("--follow", "--limit", "3"), "limit"), (("--limit", "0"), "--limit"),
    (("--limit", "1001"), "1000"),
])  # fmt: skip
def test_a_wrong_argument_is_2(line: CommandLine, arguments: tuple[str, ...], said: Any) -> None:
    printed = line("events", *arguments)
    assert (printed.code, line.fake.requests) == (2, [])
    assert said in printed.err


def test_an_acknowledgement_clears_a_component(line: CommandLine) -> None:
    printed = line("health", "ack", "device:1", "--reason", "card was reset")
    assert (printed.code, printed.out) == (0, "device:1 healthy\n")
    assert line.body() == {"component": "device:1", "reason": "card was reset"}
    line.fake.change_health("device:1", "healthy", kind="acknowledged")
    assert "acknowledged, healthy" in line("events", "--limit", "1").out
