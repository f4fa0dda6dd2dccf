"""What is sent, when it is sent again, and which error a reply or a silence is: on scripted replies."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Client
from meshwright._client.replies import MAX_DELAY_S, build_error, delay_retry, parse_retry_after
from meshwright._client.requests import quote_part, take_best
from meshwright.errors import (
    AgentConnectionError,
    InvalidMeshError,
    InvalidRequestError,
    MeshwrightError,
    NotFoundError,
    PlanInfeasibleError,
    ProblemError,
    QueueFullError,
    RequestError,
    UnavailableError,
)
from meshwright.spec import MeshSpec
from meshwright.testing import FakeAgent
from meshwright.wire.base import Notice
from meshwright.wire.batch_size import BatchSizeRequest
from meshwright.wire.bench import BenchRequest
from meshwright.wire.health import Health
from meshwright.wire.mesh import PlanRequest, Plans, Rejected, SearchRequest
from meshwright.wire.model import TrainingSpec
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import Run
from tests.unit.client.script import LOST, NOW, REFUSED, SILENT, Outcome, Script
from tests.unit.leases.scene import build_lease

HEALTHY = Health(state="healthy", components=())
QUEUED = Run(id="r", kind="bench", state="queued", created_at=NOW, request={})
STARTING = UnavailableError("starting")


# ---- what is sent


def test_a_lease_that_is_being_granted_cannot_be_read_yet_and_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    script, lease = Script(NotFoundError("no lease"), build_lease()), build_lease()
    assert script.client(monkeypatch).end_lease(lease.id).id == lease.id
    assert script.asked == [f"GET /leases/{lease.id}", f"DELETE /leases/{lease.id}"]


@pytest.mark.parametrize(("mesh", "sent"), [
    ("dp:2,tp:4", "dp:2,tp:4"), (MeshSpec.parse("dp:2,tp:-1"), "dp:2,tp:-1"), ({"tp": 4, "dp": 2}, {"tp": 4, "dp": 2}),
    ([("dp", 2), ("tp", 4)], [["dp", 2], ["tp", 4]]), ([["dp", 2]], [["dp", 2]]), (PlanRequest(mesh="dp:2"), "dp:2"),
])  # fmt: skip
def test_a_mesh_may_be_written_in_every_way_and_keeps_its_order(
    mesh: Any, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(Plans(plans=()))
    with pytest.raises(PlanInfeasibleError):
        script.client(monkeypatch).plan(mesh)
    body = json.loads(script.requests[0].content)
    assert body == {"mesh": sent}
    assert list(body["mesh"]) == list(sent)


@pytest.mark.parametrize(("question", "path"), [
    (lambda c, **more: c.plan(PlanRequest(mesh="dp:2"), **more), "/mesh/plan"),
    (
        lambda c, **more: c.search(SearchRequest(model="m", training=TrainingSpec(global_batch_size=8)), **more),
        "/mesh/search",
    ),
    (lambda c, **more: c.batch_size(BatchSizeRequest(hardware="h100"), **more), "/batch-size"),
    (lambda c, **more: c.submit_bench(BenchRequest(samples=3), **more), "/placement/bench"),
])  # fmt: skip
def test_a_whole_request_is_sent_as_it_is_and_takes_no_fields_beside_it(
    question: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(httpx.Response(422))
    client = script.client(monkeypatch)
    with pytest.raises(RequestError, match="422"):
        question(client)
    assert script.asked == [f"POST {path}"]
    assert b"null" not in script.requests[0].content
    with pytest.raises(InvalidRequestError, match="beside it") as caught:
        question(client, **({"compile": True} if path != "/placement/bench" else {"axis": "x"}))
    assert caught.value.hint


@pytest.mark.parametrize(("question", "error"), [
    (lambda c: c.plan("dp:2", devices=[1.5]), InvalidRequestError),
    (lambda c: c.plan("dp:2", devices={"counts": 4}), InvalidRequestError),
    (lambda c: c.plan("dp:2", device_order="best"), InvalidRequestError),
    (lambda c: c.search("llama3-8b"), InvalidRequestError), (lambda c: c.submit_bench(samples=1), InvalidRequestError),
    (lambda c: c.submit_bench(mesh={"dp": 0}), InvalidMeshError), (lambda c: c.run(""), InvalidRequestError),
    (lambda c: c.run("\ud800"), InvalidRequestError), (lambda c: c.run("r" * 70_000), MeshwrightError),
    (lambda c: c.submit_bench("full"), InvalidRequestError),
    (lambda c: c.submit_bench({"devices": [0]}), InvalidRequestError),
])  # fmt: skip
def test_a_wrong_argument_is_refused_before_anything_is_sent(
    question: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    with pytest.raises(error):
        question(script.client(monkeypatch))
    assert script.asked == []


@given(st.one_of(st.sampled_from([".", ".."]), st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_an_id_stays_one_part_of_the_path_whatever_stands_in_it(run_id: str) -> None:
    part = quote_part("run_id", run_id)
    assert part
    assert not set(part) & set("/?# ")
    assert part not in {".", ".."}


def test_no_plan_at_all_is_infeasible_and_says_why_each_was_rejected() -> None:
    rejected = Rejected(mesh_shape={"dp": 3}, reason="memory", message="needs 90 GB")
    fits = Notice(code="nothing_fits", message="none holds it", hint="it fits with 2 such devices")
    with pytest.raises(PlanInfeasibleError, match="needs 90 GB") as raised:
        take_best(Plans(plans=(), rejected=(rejected,), warnings=(fits,)), asked="it")
    assert raised.value.hint == fits.hint


# ---- when it is sent again


def test_a_busy_agent_is_asked_again_with_the_same_request_and_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(STARTING, REFUSED, HEALTHY)
    assert script.client(monkeypatch).health().state == "healthy"
    assert script.pauses_s == [0.5, 1.0]
    assert set(script.asked) == {"GET /health"}


def test_readiness_is_asked_once_and_not_ready_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Script(httpx.Response(503, text="starting\n")).client(monkeypatch).ready().line == "starting"
    with pytest.raises(AgentConnectionError):
        Script(REFUSED).client(monkeypatch).ready()


@pytest.mark.parametrize(
    "outcome", [LOST, SILENT, *(httpx.Response(each, text="a proxy's page") for each in (503, 504))]
)
def test_a_request_that_makes_a_run_is_not_sent_again_where_its_answer_is_lost(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(outcome)
    with pytest.raises(MeshwrightError, match="see GET /runs"):
        script.client(monkeypatch).submit_bench()


@pytest.mark.parametrize("outcome", [REFUSED, STARTING, httpx.PoolTimeout("no connection is free")])
def test_a_request_that_makes_a_run_is_sent_again_where_none_was_made(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(outcome, httpx.Response(202, content=QUEUED.model_dump_json()))
    assert script.client(monkeypatch).submit_bench().state == "queued"


def test_what_an_agent_has_answered_before_is_waited_for_and_what_it_never_has_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(HEALTHY, httpx.Response(201, content=build_lease().model_dump_json()))
    client = script.client(monkeypatch)
    client.health()
    client.lease([0], purpose="x")
    for question, outcome, count in (
        (client.health, STARTING, 17),
        (lambda: client.lease([0], purpose="x"), STARTING, 17),  # each lease has a path of its own
        (client.devices, STARTING, 3),
        (client.devices, REFUSED, 17),
        (client.devices, LOST, 18),
    ):
        script.replies, script.requests = [outcome] * 40, []
        with pytest.raises(type(outcome) if isinstance(outcome, ProblemError) else AgentConnectionError):
            question()
        assert len(script.requests) == count
    script.replies, script.requests = [REFUSED] * 40, []
    client._max_retries = 0
    with pytest.raises(AgentConnectionError):
        client.devices()
    assert len(script.requests) == 1


def test_the_client_says_that_it_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    client = script.client(monkeypatch)
    client.close()
    for question in (client.health, lambda: client.wait("r"), lambda: next(iter(client.follow_events(3)))):
        with pytest.raises(AgentConnectionError, match="this client has been closed"):
            question()
    assert script.asked == []


@given(retries=st.integers(0, 10_000))
def test_a_delay_is_never_over_eight_seconds_and_never_under_three_quarters_of_its_step(retries: int) -> None:
    step_s = min(MAX_DELAY_S, 0.5 * 2 ** min(retries, 5))
    assert 0.75 * step_s <= delay_retry(retries) <= step_s


@pytest.mark.parametrize(("value", "pauses_s"), [(0, []), (7, [7.0]), (120, [120.0]), (121, [])])
def test_retry_after_is_obeyed_up_to_two_minutes_and_beyond_that_the_error_is_given_at_once(
    value: int, pauses_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(*[httpx.Response(429, headers={"retry-after": str(value)})] * 2)
    with pytest.raises(QueueFullError):
        script.client(monkeypatch, max_retries=1).health()
    assert script.pauses_s == pauses_s


@pytest.mark.parametrize(("value", "delay_s"), [
    (None, None), ("2.5", 2.5), ("-3", 0.0), ("Thu, 01 Jan 2026 00:00:10 GMT", 10.0),
    ("Thu, 01 Jan 2025 00:00:10 GMT", 0.0), ("soon", None), ("inf", None), ("nan", None),
])  # fmt: skip
def test_retry_after_is_a_number_or_a_date(value: str | None, delay_s: float | None) -> None:
    assert parse_retry_after(value, now=datetime(2026, 1, 1, tzinfo=UTC)) == delay_s


# ---- which error it is


@pytest.mark.parametrize(
    ("status", "expected"), [(404, NotFoundError), (422, RequestError), (503, UnavailableError), (500, ProblemError)]
)
def test_a_code_of_a_newer_agent_keeps_its_name_and_gets_the_class_of_its_status(
    status: int, expected: type[ProblemError]
) -> None:
    body = {"type": "t", "title": "T", "status": status, "detail": "d", "code": "of_tomorrow", "new_field": 1}
    error = build_error(httpx.Response(status, json=body), "GET /devices", "http://a:1")
    assert isinstance(error, ProblemError)
    assert type(error) is expected
    assert error.code == "of_tomorrow"


@pytest.mark.parametrize("status", [404, 405])
def test_an_answer_of_another_server_tells_nothing_of_what_the_agent_has(status: int) -> None:
    error = build_error(httpx.Response(status, text="default backend"), "GET /leases/a", "http://a:1")
    assert type(error) is AgentConnectionError
    assert f"answered {status} without a problem document: default backend" in str(error)


@pytest.mark.parametrize(("url", "expected"), [("http://a/foo", AgentConnectionError), ("http://a", NotFoundError)])
def test_a_path_in_the_address_that_leads_to_no_route_is_no_agent(url: str, expected: type[Exception]) -> None:
    body = build_problem(NotFoundError("there is no route /foo/devices")).model_dump(mode="json")
    error = build_error(httpx.Response(404, json=body), "GET /devices", url)
    assert type(error) is expected


def test_an_error_page_of_a_proxy_is_shown_in_part_and_named_as_such() -> None:
    page = httpx.Response(502, html="<h1>Bad</h1>" * 99, headers={"x-request-id": "p"})
    error = build_error(page, "GET /devices", "http://a:1")
    assert isinstance(error, ProblemError)
    assert (error.status, error.code, error.request_id) == (502, "", "p")
    assert "<h1>Bad</h1>" in str(error)
    assert "proxy" in error.hint
    assert len(str(error)) < 600


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"parts": []}', b"\xff\xfe"])
def test_an_answer_that_is_no_reply_is_a_connection_error_that_doubts_the_address(body: bytes) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    with Client("http://a", transport=transport) as client, pytest.raises(AgentConnectionError, match="is the address"):
        client.health()


def test_over_tls_a_connection_that_breaks_may_be_a_refused_certificate_and_the_hint_begins_so() -> None:
    told = build_error(LOST, "GET /health", "https://gw:8790")
    assert isinstance(told, AgentConnectionError)
    assert told.hint.startswith("where the agent asks for a client certificate, it may have refused this client's")
    assert "certificate" not in str(build_error(LOST, "GET /health", "http://gw:8790"))


def test_a_request_passes_few_functions_so_that_a_reader_can_follow_it() -> None:
    passed = []

    def note(frame: FrameType, event: str, _: object) -> None:
        name, code = frame.f_globals.get("__name__", ""), frame.f_code
        if (
            event == "call"
            and name.startswith("meshwright.")
            and name != "meshwright.testing"
            and code.co_name[0] != "<"
        ):
            passed.append(code.co_qualname)

    with FakeAgent().client() as client:
        sys.setprofile(note)
        client.health()
        sys.setprofile(None)
    assert len(passed) <= 1 + 6, passed
