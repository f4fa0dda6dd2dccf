"""What the real routes refuse before they ask the agent, and the ages that they bring up to date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp

from meshwright.wire.runs import Run
from meshwright_agent.routes.runs import age_records
from tests.unit.routes.asgi import JSON, ask, build_api_alone, wrap

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def app() -> ASGIApp:
    return wrap(build_api_alone())


@pytest.mark.parametrize("text", ["abc", "-1", "1.5", str(2**53 + 1)])
def test_a_last_event_id_that_no_event_can_have_is_refused(app: ASGIApp, text: str) -> None:
    heard = ask(app, target="/events/stream", headers={"Last-Event-ID": text})
    assert (heard.status, heard.document["errors"][0]["field"]) == (422, "last-event-id")


def test_a_parameter_that_is_given_twice_is_refused_by_its_name(app: ASGIApp) -> None:
    heard = ask(app, target="/mesh/plan?mesh=dp:8&target=h100:8&target=v5e:2x4")
    assert (heard.status, heard.document["errors"][0]["field"]) == (422, "target")
    assert "stands 2 times" in heard.document["detail"]


@pytest.mark.parametrize(("path", "body"), [
    ("/batch-size", rb'{"model": "\ud800"}'), ("/mesh/plan", rb'{"mesh": "dp:1", "target": "\ud800"}'),
    ("/leases/a", rb'{"devices": "all", "purpose": "\ud800"}'), ("/placement/bench", rb'{"\ud800": 1}'),
    ("/placement/bench", b'{"max_s": NaN}'), ("/placement/bench", b'{"max_s": 1e999}'), ("/mesh/plan", b"[" * 100_000),
    ("/mesh/plan", b'{"mesh": "d\xffp:2"}'), ("/mesh/plan", b"\xff\xfe{}"), ("/devices/release", b'{"devices":[0]}'),
    ("/devices/release", b"{"), ("/devices/release", b"[]"),
])  # fmt: skip
def test_a_body_that_is_not_strict_json_or_not_the_routes_is_refused(app: ASGIApp, path: str, body: bytes) -> None:
    heard = ask(app, "PUT" if "leases" in path else "POST", path, headers=JSON, pieces=[body])
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("target", ["/runs", "/runs/a", "/runs/a/events", "/placement/bench", "/mesh/plan/mw1-0"])
def test_without_a_store_a_route_that_needs_it_is_503(app: ASGIApp, target: str) -> None:
    heard = ask(app, target=target)
    assert (heard.status, heard.document["code"]) == (503, "store_unavailable")


@given(seconds=st.floats(-1e6, 1e9))
def test_the_records_of_a_run_are_as_old_as_they_are_when_it_is_read(seconds: float) -> None:
    record = {"case": "matmul", "observed_at": NOW.isoformat().replace("+00:00", "Z"), "age_s": 0.0}
    result = {"records": [record], "n": 1}
    run = Run(id="run-1", kind="bench", state="succeeded", created_at=NOW, request={}, result=result)
    aged = age_records(run, NOW + timedelta(seconds=seconds))
    assert aged.result is not None
    assert aged.result["records"][0]["age_s"] == pytest.approx(max(0.0, seconds), abs=1e-5)
    assert aged.result["n"] == 1
    assert run.result == {"records": [record], "n": 1}
