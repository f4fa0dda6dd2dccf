"""Retry decisions, errors from problems, and replies that cannot be read: pure, without a connection."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._calls.messages import Answer, Failure, FailureKind, Outcome, Request
from meshwright._calls.outcomes import (
    MAX_DELAY_S,
    RetryPolicy,
    build_error,
    decide_retry,
    parse_retry_after,
    read_reply,
)
from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    NotFoundError,
    NotReadyError,
    ProblemError,
    RequestError,
    UnavailableError,
)
from meshwright.wire.health import Health
from tests.unit.client.script import refuse

GET = Request("GET", "/devices")
HOST = "http://a:1"
STEADY = RetryPolicy(max_retries=3, jitter=lambda: 0.0)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


AWAY = [
    Failure("refused", ""),
    Failure("lost", ""),
    Failure("stale", ""),
    NotReadyError("starts"),
    NotReadyError("ends"),
]


def count_retries(outcome: Outcome, policy: RetryPolicy, *, is_known: bool) -> tuple[int, float]:
    """Returns how often one outcome is tried again, and how long that takes."""
    retries, waited_s = 0, 0.0
    while (delay_s := decide_retry(outcome, retries, policy, waited_s if is_known else None)) is not None:
        retries, waited_s = retries + 1, waited_s + delay_s
    return retries, waited_s


@pytest.mark.parametrize("outcome", AWAY)
def test_an_agent_that_has_answered_before_is_waited_for_while_it_is_started_again(
    outcome: Failure | ProblemError,
) -> None:
    seen = refuse(outcome) if isinstance(outcome, ProblemError) else outcome
    two = RetryPolicy(jitter=lambda: 0.0)
    assert count_retries(seen, two, is_known=True) == (16, 15.5)
    assert count_retries(seen, two, is_known=False) == (2, 1.5)
    assert count_retries(seen, RetryPolicy(0), is_known=True) == (0, 0.0)
    assert count_retries(seen, RetryPolicy(20, lambda: 0.0), is_known=True)[0] == 20


@given(retries=st.integers(0, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_a_delay_is_never_over_eight_seconds_and_never_under_three_quarters_of_its_step(
    retries: int, jitter: float
) -> None:
    step_s = min(MAX_DELAY_S, 0.5 * 2 ** min(retries, 5))
    assert 0.75 * step_s <= RetryPolicy(1, lambda: jitter).delay_s(retries) <= step_s


@pytest.mark.parametrize(("value", "delay_s"), [("0", 0.0), ("7", 7.0), ("120", 120.0), ("121", None)])
def test_retry_after_is_obeyed_up_to_two_minutes_and_beyond_that_the_error_is_given_at_once(
    value: str, delay_s: float | None
) -> None:
    assert decide_retry(Answer(429, {"retry-after": value}), 0, STEADY) == delay_s


@pytest.mark.parametrize(
    ("value", "delay_s"),
    [
        (None, None),
        ("2.5", 2.5),
        ("-3", 0.0),
        ("Thu, 01 Jan 2026 00:00:10 GMT", 10.0),
        ("Thu, 01 Jan 2025 00:00:10 GMT", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, delay_s: float | None) -> None:
    assert parse_retry_after(value, now=NOW) == delay_s


@pytest.mark.parametrize(
    ("status", "expected"), [(404, NotFoundError), (422, RequestError), (503, UnavailableError), (500, ProblemError)]
)
def test_a_code_of_a_newer_agent_keeps_its_name_and_gets_the_class_of_its_status(
    status: int, expected: type[ProblemError]
) -> None:
    body = {"type": "t", "title": "T", "status": status, "detail": "d", "code": "of_tomorrow", "new_field": 1}
    error = build_error(Answer(status, {}, json.dumps(body).encode()), GET, HOST)
    assert isinstance(error, ProblemError)
    assert type(error) is expected
    assert error.code == "of_tomorrow"


def test_an_error_page_of_a_proxy_is_shown_in_part_and_named_as_such() -> None:
    error = build_error(
        Answer(502, {"content-type": "text/html", "x-request-id": "p"}, b"<h1>Bad</h1>" * 99), GET, HOST
    )
    assert isinstance(error, ProblemError)
    assert (error.status, error.code, error.request_id) == (502, "", "p")
    assert "<h1>Bad</h1>" in str(error)
    assert "proxy" in error.hint
    assert len(str(error)) < 600


@pytest.mark.parametrize("kind", ["refused", "timeout", "lost", "stale"])
def test_a_failure_says_what_was_asked_where_and_what_to_do(kind: FailureKind) -> None:
    error = build_error(Failure(kind, "why"), GET, HOST)
    assert isinstance(error, AgentConnectionError)
    assert isinstance(error, AgentTimeoutError) == (kind == "timeout")
    assert error.hint
    for part in ("GET /devices", HOST, "why"):
        assert part in str(error)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"parts": []}', b"\xff\xfe"])
def test_an_answer_that_is_no_reply_is_a_connection_error_that_doubts_the_address(body: bytes) -> None:
    with pytest.raises(AgentConnectionError, match="is the address"):
        read_reply(Health, Answer(200, {}, body), GET, HOST)


@pytest.mark.parametrize("kind", ["lost", "stale"])
def test_over_tls_a_connection_that_breaks_may_be_a_refused_certificate_and_the_hint_begins_so(
    kind: FailureKind,
) -> None:
    request = Request("GET", "/health")
    told = build_error(Failure(kind, "Server disconnected"), request, "https://gw:8790")
    assert told.hint.startswith("where the agent asks for a client certificate, it may have refused this client's")
    plain = build_error(Failure(kind, "Server disconnected"), request, "http://gw:8790")
    assert "certificate" not in plain.hint
