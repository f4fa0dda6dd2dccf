"""Client and AsyncClient against the fake agent: every method, retries, failures, following a bench."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest

from meshwright import AsyncClient, Client, MeshSpec, Readiness
from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    InvalidMeshError,
    NotFoundError,
    PlanInfeasibleError,
    ProblemError,
    SettingsError,
    UnknownHardwareError,
)
from meshwright.testing import FakeAgent
from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plans
from tests.unit.client.both import Kind, ask

both = pytest.mark.parametrize("kind", ["sync", "async"])


def _methods(cls: type) -> dict[str, Any]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))}


def _signature(function: Any) -> list[tuple[Any, ...]]:
    parameters = inspect.signature(function).parameters.values()
    annotations = [re.sub(r"Awaitable\[None\]|None", "None", str(p.annotation)) for p in parameters]
    return [
        (p.name, p.kind, p.default, annotation.replace("AsyncHttp", "Http").replace("AsyncBase", "Base"))
        for p, annotation in zip(parameters, annotations, strict=True)
    ]


def test_both_clients_have_the_same_methods_with_the_same_signatures_and_documentation() -> None:
    blocking, awaiting = _methods(Client), _methods(AsyncClient)
    assert list(blocking) == list(awaiting)
    for name, method in blocking.items():
        twin = awaiting[name]
        assert _signature(method) == _signature(twin), name
        assert method.__doc__ == twin.__doc__, name
        answers = (method.__annotations__["return"], twin.__annotations__["return"])
        assert answers[0] == answers[1].removeprefix("Async"), name
        made = inspect.unwrap(twin)
        assert inspect.iscoroutinefunction(made) or inspect.isasyncgenfunction(made), name
    assert _signature(Client.__init__) == _signature(AsyncClient.__init__)


def test_every_public_method_says_what_it_returns_and_what_it_raises_when_it_can_be_refused() -> None:
    for name, method in _methods(Client).items():
        assert method.__doc__, name
    assert "Raises" in (Client.plan.__doc__ or "")


@both
def test_a_plan_can_be_asked_for_again_by_its_fingerprint(kind: Kind) -> None:
    fake = FakeAgent("cpu:8")
    plan = ask(kind, fake, lambda c: c.plan(MeshSpec.parse("dp:-1,tp:2"), axis_types="explicit"))
    assert ask(kind, fake, lambda c: c.get_plan(plan.fingerprint)) == plan
    with pytest.raises(NotFoundError):
        ask(kind, fake, lambda c: c.get_plan("mw1-" + "0" * 32))


@both
@pytest.mark.parametrize(
    ("question", "error"),
    [
        (lambda c: c.plan("dp:2,dp:4"), InvalidMeshError),
        (lambda c: c.plan("dp:16"), PlanInfeasibleError),
        (lambda c: c.batch_size("abacus"), UnknownHardwareError),
        (lambda c: c.targets("abacus"), UnknownHardwareError),
        (lambda c: c.run("run-none"), NotFoundError),
        (lambda c: c.run_events("run-none"), NotFoundError),
        (lambda c: c.cancel_run("run-none"), NotFoundError),
        (lambda c: c.wait("run-none"), NotFoundError),
    ],
)
def test_a_refusal_is_raised_as_its_class_with_a_detail(kind: Kind, question: Any, error: type[ProblemError]) -> None:
    with pytest.raises(error) as caught:
        ask(kind, FakeAgent("cpu:8"), question)
    assert caught.value.detail
    assert caught.value.host == "http://fake-agent"


@both
def test_a_busy_agent_is_asked_again_after_the_time_that_it_named(kind: Kind) -> None:
    fake = FakeAgent()
    fake.fail_next(429, "queue_full", retry_after_s=3, times=2)
    assert ask(kind, fake, lambda c: c.submit_bench()).state == "succeeded"
    assert fake.pauses_s == [3.0, 3.0]


@both
@pytest.mark.parametrize(
    ("broken", "error"),
    [("refused", AgentConnectionError), ("timeout", AgentTimeoutError), ("lost", AgentConnectionError)],
)
def test_a_connection_that_stays_broken_is_our_error_and_not_the_http_librarys(
    kind: Kind, broken: Any, error: type[AgentConnectionError]
) -> None:
    fake = FakeAgent()
    fake.drop_next(times=3, kind=broken)
    with pytest.raises(error, match="GET /devices") as caught:
        ask(kind, fake, lambda c: c.devices())
    assert type(caught.value) is error
    assert not type(caught.value.__cause__).__module__.startswith("http")
    assert caught.value.hint


@both
def test_alive_raises_nothing_and_asks_once(kind: Kind) -> None:
    fake = FakeAgent()
    fake.drop_next(kind="refused")
    assert ask(kind, fake, lambda c: c.alive()) is False
    fake.fail_next(500, "internal")
    assert ask(kind, fake, lambda c: c.alive()) is False
    assert len(fake.requests) == 2


@both
def test_an_agent_that_is_not_ready_says_why_and_is_not_true(kind: Kind) -> None:
    fake = FakeAgent()
    fake.readiness = Readiness(False, "the worker's crash budget is spent")
    answer = ask(kind, fake, lambda c: c.ready())
    assert not answer
    assert answer.line == "the worker's crash budget is spent"


@both
def test_warnings_on_the_request_arrive_with_the_plan(kind: Kind) -> None:
    fake = FakeAgent()
    plan = ask(kind, fake, lambda c: c.plan("dp:8"))
    fake.answer("POST", "/mesh/plan", Plans(plans=(plan,), warnings=(Notice(code="ignored", message="x"),)))
    assert "ignored" in [notice.code for notice in ask(kind, fake, lambda c: c.plan("dp:8")).warnings]


# ---- benches


@both
def test_a_bench_tells_its_progress_and_records_and_returns_its_result(kind: Kind) -> None:
    fake, told = FakeAgent(), list[Any]()
    result = ask(
        kind,
        fake,
        lambda c: c.bench(
            cases=["all_reduce", "matmul"],
            on_progress=lambda progress: told.append(progress.done),
            on_record=lambda record: told.append(record.case),
        ),
    )
    assert told == ["all_reduce", 1, "matmul", 2]
    assert [record.case for record in result.records] == ["all_reduce", "matmul"]
    assert ask(kind, fake, lambda c: c.latest_bench()).records == result.records


@both
def test_a_bench_whose_stream_is_cut_again_and_again_misses_nothing_and_repeats_nothing(kind: Kind) -> None:
    fake, told = FakeAgent(), list[Any]()
    for after_events in (0, 1, 3, 2, 0):
        fake.cut_streams(after_events=after_events)
    ask(kind, fake, lambda c: c.bench(on_record=lambda record: told.append(record.case)))
    assert len(told) == len(set(told)) == 12


@both
def test_a_bench_whose_answer_was_lost_is_not_submitted_again(kind: Kind) -> None:
    fake = FakeAgent()
    fake.drop_next(path="/placement/bench")
    with pytest.raises(AgentConnectionError, match="see GET /runs"):
        ask(kind, fake, lambda c: c.bench(cases=["matmul"]))
    assert len(fake.requests) == 1
    fake.drop_next(path="/placement/bench", kind="refused")
    assert ask(kind, fake, lambda c: c.bench(cases=["matmul"])).records


def test_a_bench_of_a_cancelled_task_is_cancelled_too() -> None:
    fake = FakeAgent()
    fake.runs.held = True

    async def give_up() -> None:
        async with fake.async_client() as client:
            task = asyncio.create_task(client.bench())
            while not fake.runs.list(1, "running").runs:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(give_up())
    assert fake.runs.get("run-00000001").state == "cancelled"


@both
def test_events_can_be_read_from_the_middle(kind: Kind) -> None:
    fake = FakeAgent()
    run = ask(kind, fake, lambda c: c.submit_bench(cases=["matmul"]))
    events = ask(kind, fake, lambda c: c.run_events(run.id))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert ask(kind, fake, lambda c: c.run_events(run.id, after=3)) == events[3:]
    assert ask(kind, fake, lambda c: c.run_events(run.id, after=99)) == []


@both
def test_cancelling_ends_a_run_and_leaves_one_that_is_over(kind: Kind) -> None:
    fake = FakeAgent()
    fake.runs.held = True
    run = ask(kind, fake, lambda c: c.submit_bench())
    assert ask(kind, fake, lambda c: c.cancel_run(run.id)).state == "cancelled"
    assert ask(kind, fake, lambda c: c.cancel_run(run.id)).state == "cancelled"
    assert [each.id for each in ask(kind, fake, lambda c: c.runs(state="cancelled")).runs] == [run.id]


def test_an_iterator_that_is_left_early_closes_its_stream() -> None:
    fake = FakeAgent()
    with fake.client() as client:
        run = client.submit_bench(cases=["matmul"])
        events = client.run_events(run.id)
        assert next(events).seq == 1
        events.close()  # type: ignore[attr-defined]
        assert client.run(run.id).state == "succeeded"


# ---- making one


def test_a_wrong_address_is_refused_when_the_client_is_made() -> None:
    with pytest.raises(SettingsError, match="localhost:8790"):
        Client("localhost:8790")


def test_a_given_transport_is_httpxs_own() -> None:
    transport = FakeAgent("cpu:8").transport()
    with Client("http://fake", transport=transport) as client:
        assert client.devices().platform == "cpu"

    async def ask_async() -> str:
        async with AsyncClient("http://fake", transport=transport) as client:
            return (await client.devices()).platform

    assert asyncio.run(ask_async()) == "cpu"


def test_a_given_http_client_keeps_its_address_and_stays_open() -> None:
    fake = FakeAgent()
    http = fake.http_client()
    with Client(http_client=http) as client:
        assert client.base_url == "http://fake-agent"
    assert not http.is_closed
    with Client(http_client=http) as again:
        assert again.alive()
