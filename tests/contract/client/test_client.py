"""Client and AsyncClient against the fake agent: every method, retries, failures, following a bench."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import httpx
import pytest

from meshwright import AsyncClient, Client
from meshwright.errors import AgentConnectionError, AgentTimeoutError, ProblemError, QueueFullError
from meshwright.testing import FakeAgent
from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plans
from tests.contract.client.both import Kind, ask, both
from tests.fakes.stored import build_run


def _methods(cls: type) -> dict[str, Any]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))}


def _signature(function: Any) -> list[tuple[Any, ...]]:
    parameters = inspect.signature(function).parameters.values()
    annotations = [re.sub(r"Awaitable\[None\]|None", "None", str(p.annotation)) for p in parameters]
    return [
        (p.name, p.kind, p.default, annotation.replace("httpx.Async", "httpx."))
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


@both
def test_a_busy_agent_is_asked_again_after_the_time_that_it_named(kind: Kind) -> None:
    fake = FakeAgent()
    fake.fail_next(QueueFullError("asked for", retry_after_s=3), times=2)
    assert ask(kind, fake, lambda c: c.submit_bench()).state == "succeeded"
    assert fake.pauses_s == [3.0, 3.0]


@both
@pytest.mark.parametrize(("broken", "error"), [
    (httpx.ConnectError, AgentConnectionError), (httpx.ReadTimeout, AgentTimeoutError),
    (httpx.RemoteProtocolError, AgentConnectionError),
])  # fmt: skip
def test_a_connection_that_stays_broken_is_our_error_and_not_the_http_librarys(
    kind: Kind, broken: Any, error: type[AgentConnectionError]
) -> None:
    fake = FakeAgent()
    fake.fail_next(broken("asked for"), times=3)
    with pytest.raises(error, match="GET /devices") as caught:
        ask(kind, fake, lambda c: c.devices())
    assert type(caught.value) is error
    assert not type(caught.value.__cause__).__module__.startswith("http")
    assert caught.value.hint


@both
def test_alive_raises_nothing_and_asks_once(kind: Kind) -> None:
    fake = FakeAgent()
    fake.fail_next(httpx.ConnectError("refused"))
    assert ask(kind, fake, lambda c: c.alive()) is False
    fake.fail_next(ProblemError("asked for", code="internal"))
    assert ask(kind, fake, lambda c: c.alive()) is False
    assert len(fake.requests) == 2


@both
def test_an_agent_that_is_not_ready_says_why_and_is_not_true(kind: Kind) -> None:
    fake = FakeAgent()
    fake.answer("GET", "/readyz", httpx.Response(503, text="the worker's crash budget is spent\n"))
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


def test_a_bench_of_a_cancelled_task_is_cancelled_too() -> None:
    fake = FakeAgent()
    fake.answer("POST", "/placement/bench", build_run(state="running"))

    async def give_up() -> None:
        async with fake.async_client() as client:
            task = asyncio.create_task(client.bench())
            while not fake.requests:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [run.state for run in (await client.runs()).runs] == ["cancelled"]

    asyncio.run(give_up())


# ---- making one


def test_a_given_http_client_keeps_its_address_and_stays_open() -> None:
    http = httpx.Client(transport=FakeAgent().transport(), base_url="http://fake-agent")
    with Client(http_client=http) as client:
        assert client.base_url == "http://fake-agent"
    assert not http.is_closed
    with Client(http_client=http) as again:
        assert again.alive()
