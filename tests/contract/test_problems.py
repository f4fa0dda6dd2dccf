"""Every refusal a caller can provoke, against a real agent: status, code, detail, hint; and every code both ways."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from meshwright.errors import CODES
from meshwright.testing import FakeAgent
from meshwright.wire.problem import Problem
from tests.agents import RunningAgent, wait_for

JSON = {"Content-Type": "application/json"}
PLAN, BENCH, BATCH = "/mesh/plan", "/placement/bench", "/batch-size"

REFUSALS: list[tuple[str, str, str | bytes | None, int, str]] = [
    ("POST", PLAN, '{"mesh": "dp:2", "color": 1}', 422, "invalid_request"),
    ("POST", PLAN, "{}", 422, "invalid_mesh"),
    ("POST", "/mesh/search", "{}", 422, "invalid_request"),
    ("POST", PLAN, '{"mesh": 8}', 422, "invalid_mesh"),
    ("POST", PLAN, '{"mesh": "dp:-1,tp:-1"}', 422, "invalid_mesh"),
    ("POST", PLAN, '{"mesh": "dp:0"}', 422, "invalid_mesh"),
    ("POST", PLAN, '{"mesh": {"": 8}}', 422, "invalid_mesh"),
    ("POST", PLAN, '{"mesh": [["dp", 2], ["dp", 4]]}', 422, "invalid_mesh"),
    ("POST", PLAN, '{"mesh": "dp:16"}', 422, "plan_infeasible"),
    ("POST", PLAN, '{"mesh": "dp:3,tp:-1"}', 422, "plan_infeasible"),
    ("POST", PLAN, '{"mesh": {"dp": 1152921504606846976}}', 422, "plan_infeasible"),
    ("POST", PLAN, '{"mesh": "dp:2"}', 422, "devices_unused"),
    ("POST", PLAN, '{"mesh": "dp:2", "devices": [0, 99]}', 422, "plan_infeasible"),
    ("POST", PLAN, '{"mesh": "dp:2", "devices": [0, 0]}', 422, "plan_infeasible"),
    ("POST", PLAN, '{"mesh": "dp:8", "axis_types": "sideways"}', 422, "invalid_mesh"),
    ("POST", PLAN, '{"mesh": "dp:8", "allow_unused": "yes"}', 422, "invalid_request"),
    ("POST", PLAN, "[" * 100_000, 422, "invalid_request"),
    ("POST", PLAN, '{"mesh"', 422, "invalid_request"),
    ("POST", PLAN, b"\xff\xfe", 422, "invalid_request"),
    ("POST", BENCH, '"' + "x" * (1 << 21) + '"', 413, "invalid_request"),
    ("POST", PLAN, '"' + "x" * (1 << 25) + '"', 413, "invalid_request"),
    ("POST", PLAN, '{"mesh": "dp:8", "target": "v5p:4x4x28", "topology": []}', 422, "invalid_request"),
    ("POST", PLAN, '{"mesh": "dp:8", "target": "4x4:v5p"}', 422, "invalid_request"),
    ("POST", PLAN, '{"mesh": "dp:8", "target": "v5q:4x4"}', 422, "plan_infeasible"),
    ("POST", PLAN, '{"mesh": "dp:8", "target": "v5p:3x4x4"}', 422, "plan_infeasible"),
    ("POST", PLAN, '{"mesh": "dp:8", "topology": []}', 422, "plan_infeasible"),
    ("POST", PLAN, '{"mesh": "dp:8", "topology": [{}]}', 422, "invalid_request"),
    ("POST", PLAN, b'{"mesh": "d\xffp:8"}', 422, "invalid_request"),
    ("POST", PLAN, '{"mesh": {"dp": "8"}}', 422, "invalid_mesh"),
    ("GET", "/health?verbose=1", None, 422, "invalid_request"),
    ("GET", f"{PLAN}?mesh=dp:2&color=red", None, 422, "invalid_request"),
    ("GET", PLAN, None, 422, "invalid_mesh"),
    ("GET", f"{PLAN}/mw1-0000", None, 404, "not_found"),
    ("POST", BATCH, '{"hardware": "abacus"}', 422, "unknown_hardware"),
    ("POST", BATCH, '{"per_device_batch_size": 0}', 422, "invalid_request"),
    ("POST", BATCH, '{"per_device_batch_size": NaN}', 422, "invalid_request"),
    ("GET", f"{BATCH}?hardwre=h100", None, 422, "invalid_request"),
    ("GET", "/environment?memory_stratgy=aggressive", None, 422, "invalid_request"),
    ("POST", BENCH, '{"max_s": 1e999}', 422, "invalid_request"),
    ("POST", BENCH, '{"cases": ["teleport"]}', 422, "invalid_request"),
    ("POST", BENCH, '{"sizes_bytes": [1152921504606846976]}', 422, "invalid_request"),
    ("POST", BENCH, '{"sizes_bytes": [1099511627776]}', 422, "bench_too_large"),
    ("POST", BENCH, '{"devices": [99]}', 422, "invalid_request"),
    ("GET", "/devices?format=yaml", None, 422, "invalid_request"),
    ("GET", "/environment?memory_fraction=2", None, 422, "invalid_request"),
    ("GET", "/environment?memory_strategy=custom", None, 422, "invalid_request"),
    ("GET", "/runs/run-none", None, 404, "not_found"),
    ("GET", "/runs/run-none/events", None, 404, "not_found"),
    ("DELETE", "/runs/run-none", None, 404, "not_found"),
    ("GET", "/runs?state=asleep", None, 422, "invalid_request"),
    ("GET", "/runs?limit=0", None, 422, "invalid_request"),
    ("GET", "/nowhere", None, 404, "not_found"),
    ("GET", "/devices/", None, 404, "not_found"),
    ("DELETE", "/devices", None, 405, "not_found"),
]


def check_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["code"], document["status"]) == (status, code, status), document
    Problem.model_validate(document)
    assert document["detail"]
    assert document["hint"]
    assert document["request_id"] == response.headers["x-request-id"]
    assert document["type"] == f"urn:meshwright:problem:{code}"
    return document


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), REFUSALS)
def test_a_bad_request_is_refused_with_a_problem(
    agent: RunningAgent, method: str, path: str, body: str | bytes | None, status: int, code: str
) -> None:
    headers = JSON if body is not None else {}
    check_problem(httpx.request(method, agent.url + path, content=body, headers=headers), status, code)


def _look(agent: RunningAgent) -> tuple[Any, Any, Any]:
    """The worker, the runs, and the newest records, ages and progress aside."""
    worker = httpx.get(f"{agent.url}/devices").json()["worker"]
    runs = [(run["id"], run["state"]) for run in httpx.get(f"{agent.url}/runs").json()["runs"]]
    records = httpx.get(agent.url + BENCH).json()["records"]
    return (worker["generation"], worker["pid"]), runs, [{**record, "age_s": 0.0} for record in records]


def _provoke_all(agent: RunningAgent) -> None:
    for method, path, body, _, _ in REFUSALS:
        httpx.request(method, agent.url + path, content=body, headers=JSON if body is not None else {})


def _start_bench(agent: RunningAgent, **body: Any) -> str:
    return str(httpx.post(agent.url + BENCH, json=body).raise_for_status().json()["id"])


def _state(agent: RunningAgent, run_id: str) -> str:
    return str(httpx.get(f"{agent.url}/runs/{run_id}").json()["state"])


def test_refusals_leave_a_bench_that_runs_as_it_was(agent: RunningAgent) -> None:
    run_id = _start_bench(agent, cases=["matmul"], matmul_size=2048, samples=1000, max_s=300, dtype="float32")
    try:
        wait_for(lambda: _state(agent, run_id) == "running", agent)
        wait_for(lambda: httpx.get(f"{agent.url}/devices").json()["worker"]["state"] == "busy", agent)
        before = _look(agent)
        _provoke_all(agent)
        assert _look(agent) == before
        assert _state(agent, run_id) == "running"
    finally:
        httpx.delete(f"{agent.url}/runs/{run_id}")
    wait_for(lambda: _state(agent, run_id) == "cancelled", agent)


@pytest.mark.parametrize("headers", [{"Content-Type": "text/plain"}, {"Content-Type": "text/json"}, {}])
def test_a_body_that_is_not_json_by_its_type_is_refused(agent: RunningAgent, headers: dict[str, str]) -> None:
    response = httpx.post(agent.url + PLAN, content=b'{"mesh": "dp:8"}', headers=headers)
    assert "--json" in check_problem(response, 415, "invalid_request")["hint"]


def test_a_wrong_field_is_named_by_its_path(agent: RunningAgent) -> None:
    body = {"mesh": "dp:2", "devices": {"count": 2, "mood": "blue"}}
    document = check_problem(httpx.post(agent.url + PLAN, json=body), 422, "invalid_request")
    assert any(error["field"] == "devices.mood" for error in document["errors"]), document["errors"]
    reply = httpx.post(agent.url + BATCH, json={"hardware": "h100", "mood": 1})
    document = check_problem(reply, 422, "invalid_request")
    assert [error["field"] for error in document["errors"]] == ["mood"]


def test_a_callers_request_id_comes_back_and_a_wild_one_is_replaced(agent: RunningAgent) -> None:
    assert httpx.get(f"{agent.url}/health", headers={"X-Request-ID": "trace-7"}).headers["x-request-id"] == "trace-7"
    assert httpx.get(f"{agent.url}/health", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"] != "a b\tc"


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_survives_the_way_through_http(code: str) -> None:
    told: dict[str, Any] = {"hint": "what works", "errors": [{"field": "mesh", "message": "no"}], "log": ["last line"]}
    error = CODES[code].error("what was asked", code=code, retry_after_s=3.0, **told)
    fake = FakeAgent()
    fake.answer("GET", "/health", error)
    with fake.client(max_retries=0) as client, pytest.raises(CODES[code].error) as caught:
        client.health()
    again = caught.value
    assert type(again) is CODES[code].error
    assert (again.status, again.detail, again.hint) == (error.status, error.detail, error.hint)
    assert (again.errors, again.log, again.code) == (error.errors, error.log, code)
    assert (again.retry_after_s, again.request_id, again.host) == (3.0, "fake-request", "http://fake-agent")
