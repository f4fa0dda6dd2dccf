from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.devices import Worker, WorkerState
from meshwright_agent.access.audit import MAX_KEYS, REFUSALS_PER_MINUTE, LineLimit, Openings, quote, record


def test_a_line_has_each_field_and_the_record_has_them_apart(caplog: pytest.LogCaptureFixture) -> None:
    record(caller="token:ci", method="POST", path="/devices/release", status=200)
    (line,) = caplog.records
    assert line.getMessage() == "caller=token:ci method=POST path=/devices/release status=200"
    assert vars(line)["audit"]["status"] == 200
    assert (line.name, line.levelno) == ("meshwright.audit", logging.INFO)


def test_what_the_agent_opens_by_itself_has_a_line_when_it_begins_and_one_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    openings, at = Openings(), datetime(2026, 11, 1, tzinfo=UTC)
    states: list[tuple[WorkerState, int | None]] = [
        ("starting", 7),
        ("ready", 7),
        ("busy", 7),
        ("ready", 7),
        ("backoff", None),
        ("stopped", None),
        ("ready", 8),
        ("stopped", None),
    ]
    for state, pid in states:
        openings.note(Worker(state=state, generation=0 if pid is None else pid - 6, pid=pid, since=at))
    assert [line.getMessage() for line in caplog.records] == [
        "caller=agent did=worker_started generation=1 pid=7",
        "caller=agent did=worker_ended generation=1 pid=7",
        "caller=agent did=worker_started generation=2 pid=8",
        "caller=agent did=worker_ended generation=2 pid=8",
    ]


@given(st.text(max_size=2000))
def test_no_value_can_end_its_line_or_begin_another_field(value: str) -> None:
    quoted = quote(value)
    assert quoted.isprintable()
    assert len(quoted.splitlines()) == 1
    assert (" " not in quoted and "=" not in quoted) or (quoted[0] == quoted[-1] == '"')


def test_refused_peers_cannot_fill_the_log() -> None:
    now_s = 0.0
    limit = LineLimit(lambda: now_s)
    assert [limit.allows("addr:10.0.0.7") for _ in range(100)].count(True) == REFUSALS_PER_MINUTE
    assert limit.allows("addr:10.0.0.8")
    now_s = 59.0
    assert not limit.allows("addr:10.0.0.7")
    now_s = 60.0
    assert limit.allows("addr:10.0.0.7")


def test_the_peers_that_a_line_limit_remembers_are_bounded() -> None:
    limit = LineLimit(lambda: 0.0)
    assert [limit.allows(f"addr:{number}") for number in range(MAX_KEYS + 5)].count(True) == MAX_KEYS
    assert limit.allows("addr:0")
