"""Client and AsyncClient against a real agent, over TCP and over its unix socket."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from meshwright import Client, load_plan
from meshwright.errors import (
    InvalidMeshError,
    InvalidRequestError,
    NotFoundError,
    PlanInfeasibleError,
    ProblemError,
    UnknownHardwareError,
)
from meshwright.testing import FakeAgent
from meshwright.wire.health import HealthEvent
from tests.agents import RunningAgent
from tests.contract.client.both import Kind, ask_sync, ask_url

everywhere = pytest.mark.parametrize(("kind", "over"), [("sync", "tcp"), ("async", "unix")])


def _ask(agent: RunningAgent, kind: Kind, over: str, question: Any) -> Any:
    return ask_url(kind, agent.url if over == "tcp" else f"unix://{agent.uds}", question, timeout=120)


@pytest.mark.parametrize(("question", "error"), [
    (lambda c: c.plan("dp:2,dp:2"), InvalidMeshError),
    (lambda c: c.plan("dp:2"), PlanInfeasibleError),
    (lambda c: c.batch_size("abacus"), UnknownHardwareError),
    (lambda c: c.run("run-none"), NotFoundError),
    (lambda c: c.run(".."), NotFoundError),
    (lambda c: c.run_events("run-none"), NotFoundError),
    (lambda c: c.environment("custom"), InvalidRequestError),
])  # fmt: skip
def test_the_fake_refuses_as_the_real_agent_does(agent: RunningAgent, question: Any, error: type[ProblemError]) -> None:
    with pytest.raises(error) as real:
        _ask(agent, "sync", "tcp", question)
    with pytest.raises(error) as fake, FakeAgent("cpu:8").client() as client:
        ask_sync(client, question)
    assert (real.value.code, real.value.status) == (fake.value.code, fake.value.status)
    assert real.value.request_id


def test_a_plan_is_loaded_by_its_fingerprint_as_a_rank_would(
    agent: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _ask(agent, "sync", "tcp", lambda c: c.plan("dp:8"))
    monkeypatch.setenv("MESHWRIGHT_URL", f"unix://{agent.uds}")
    monkeypatch.setenv("MESHWRIGHT_PLAN", plan.fingerprint)
    assert load_plan() == plan


def call_everything(client: Client) -> None:
    """Asks by every method of a client, with every argument that goes into a query."""
    for method in (client.alive, client.ready, client.health, client.devices, client.devices_text, client.metrics):
        method()
    client.get_plan(client.plan("dp:8").fingerprint)
    client.search("gpt2", {"global_batch_size": 8, "seq_len": 1024}, targets=["h100:8"])
    client.batch_size("h100", 8)
    client.environment("balanced", 0.5)
    client.targets("h100")
    client.bench(cases=["matmul"])
    client.latest_bench()
    run = client.runs(1, "succeeded").runs[0]
    assert list(client.run_events(run.id))
    client.cancel_run(client.run(run.id).id)
    client.acknowledge("worker", "mended")
    client.events("worker", after=0, limit=1, since=datetime.now(UTC))
    next(client.follow_events(0))
    lease = client.lease([0], purpose="test")
    client.renew_lease(client.get_lease(lease.id), 60)
    client.end_lease(client.leases().leases[0])
    client.release()


def test_all_that_the_client_asks_stands_in_the_agents_document(agent: RunningAgent) -> None:
    paths = httpx.get(f"{agent.url}/openapi.json").json()["paths"]
    fake, replies = FakeAgent("cpu:8"), list[httpx.Response]()
    event = HealthEvent(seq=1, at=datetime.now(UTC), component="worker", kind="state", state="healthy")
    stream = httpx.Response(
        200, headers={"content-type": "text/event-stream"}, content=f"data: {event.model_dump_json()}\n\n"
    )
    fake.answer("GET", "/events/stream", stream)
    answer = fake.transport().handle_request

    def record(request: httpx.Request) -> httpx.Response:
        replies.append(answer(request))
        replies[-1].request = request
        return replies[-1]

    with fake.client(transport=httpx.MockTransport(record)) as client:
        call_everything(client)
    left = {(method, path) for path, operations in paths.items() for method in operations}
    for reply in replies:
        url, method = reply.request.url, reply.request.method.lower()
        path = next(each for each in paths if re.fullmatch(re.sub(r"{\w+}", "[^/]+", each), url.path))
        operation = paths[path][method]
        assert str(reply.status_code) in operation["responses"], url
        assert set(url.params) <= {parameter["name"] for parameter in operation.get("parameters", ())}, url
        left.discard((method, path))
    verdict = {("get", "/leases/{lease_id}/verdict"), ("put", "/leases/{lease_id}/verdict")}
    for_curl_and_real_hosts = {("get", "/mesh/plan"), ("get", "/batch-size"), ("post", "/preflight"), *verdict}
    assert left == for_curl_and_real_hosts


@everywhere
def test_a_bench_reports_as_it_goes_and_its_events_can_be_read_again(
    agent: RunningAgent, kind: Kind, over: str
) -> None:
    told: list[Any] = []
    asked: dict[str, Any] = {"cases": ["matmul", "memory_bandwidth"], "samples": 3, "on_progress": told.append}
    result = _ask(agent, kind, over, lambda c: c.bench(**asked, on_record=lambda record: told.append(record.case)))
    assert {record.case for record in result.records} == {"matmul", "memory_bandwidth"}
    assert {"matmul", "memory_bandwidth"} <= {each for each in told if isinstance(each, str)}
    newest = _ask(agent, kind, over, lambda c: c.runs(limit=1)).runs[0]
    events = _ask(agent, kind, over, lambda c: c.run_events(newest.id))
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert events[-1].state == "succeeded"
    assert _ask(agent, kind, over, lambda c: c.latest_bench()).records
