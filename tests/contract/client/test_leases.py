"""Leases, events and acknowledgements on both clients, against the fake agent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    DeviceLeasedError,
    InvalidRequestError,
    NotFoundError,
    ProblemError,
)
from meshwright.testing import FakeAgent
from tests.contract.client.both import Kind, ask, both
from tests.fakes.hosts import build_devices
from tests.fakes.scripted import RemembersHealth

SHORT_S = 0.3
"""Of a lease that is renewed in a test: every 0.1 s."""


@both
def test_a_plan_is_leased_and_held_in_one_line(kind: Kind) -> None:
    fake = FakeAgent("h100:8")
    plan = ask(kind, fake, lambda c: c.plan("dp:2,tp:2", devices=[3, 1, 5, 7]))
    lease = ask(kind, fake, lambda c: c.lease(plan, purpose="job 7"))
    assert [device.local_index for device in lease.devices] == [1, 3, 5, 7]
    with pytest.raises(DeviceLeasedError, match="job 7"):
        ask(kind, fake, lambda c: c.lease(plan, purpose="job 8"))
    assert ask(kind, fake, lambda c: c.plan("dp:2,tp:2", lease=lease)).fingerprint == plan.fingerprint
    chips, other = FakeAgent("v5e:2x2", host="t1"), FakeAgent("v5e:2x2", host="t2")  # which have no uuids
    plan = ask(kind, chips, lambda c: c.plan("dp:2,tp:2"))
    assert len(ask(kind, chips, lambda c: c.lease(plan, purpose="job 7")).devices) == 4
    with pytest.raises(InvalidRequestError, match="t1/0"):
        ask(kind, other, lambda c: c.lease(plan, purpose="job 7"))


@pytest.mark.parametrize(("options", "said"), [
    ({"target": "h100:8"}, "target h100:8"), ({"include_devices": False}, "does not list its devices"),
    ({"topology": [build_devices("cpu:4", host="a"), build_devices("cpu:4", host="b")]}, r"2 hosts \(a, b"),
])  # fmt: skip
def test_a_plan_whose_devices_are_not_one_hosts_cannot_be_leased(options: dict[str, Any], said: str) -> None:
    fake = FakeAgent("cpu:8")
    with fake.client() as client:
        plan = client.plan("dp:8", **options)
        asked = len(fake.requests)
        with pytest.raises(InvalidRequestError, match=said) as refused:
            client.lease(plan, purpose="x")
        assert refused.value.hint
        assert len(fake.requests) == asked


@pytest.mark.parametrize("lease_id", ["", "ä", "a/b", ".a", "k" * 65])
def test_an_id_that_no_lease_may_have_is_refused_before_anything_is_sent(lease_id: str) -> None:
    fake = FakeAgent()
    with fake.client() as client, pytest.raises(InvalidRequestError, match="1 to 64 letters"):
        client.lease(purpose="x", lease_id=lease_id)
    assert fake.requests == []


@both
@pytest.mark.parametrize("arguments", [
    {"purpose": ""}, {"purpose": "x", "ttl_s": 0}, {"purpose": "x", "ttl_s": 1e9}, {"purpose": "x", "devices": []},
    {"purpose": "x", "devices": "0,1"}, {"purpose": "x", "devices": [9]}, {"purpose": "x", "devices": None},
])  # fmt: skip
def test_a_lease_that_cannot_be_is_refused_by_its_field(kind: Kind, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ask(kind, FakeAgent(), lambda c: c.lease(**arguments))
    assert caught.value.errors


@both
@pytest.mark.parametrize("status", [502, 503, 504, None])
def test_a_lease_whose_answer_is_lost_on_its_way_or_by_a_proxy_is_ended(kind: Kind, status: int | None) -> None:
    fake = FakeAgent()
    inside = fake.transport()

    def lose_leases(request: httpx.Request) -> httpx.Response:
        answer = inside.handle_request(request)
        if request.method != "PUT":
            return answer
        if status is None:
            raise httpx.ReadTimeout("lost")
        return httpx.Response(status)

    lost: dict[str, Any] = {"transport": httpx.MockTransport(lose_leases), "max_retries": 0}
    with pytest.raises(ProblemError if status else AgentTimeoutError):
        ask(kind, fake, lambda c: c.lease(purpose="job 7"), **lost)
    assert fake.client().leases().leases == ()
    with pytest.raises(ProblemError if status else AgentTimeoutError, match="may hold lease mine all the same"):
        ask(kind, fake, lambda c: c.lease(purpose="job 7", lease_id="mine"), **lost)


@both
def test_a_lease_that_a_renewal_makes_anew_is_ended(kind: Kind) -> None:
    fake = FakeAgent()
    inside = fake.transport()

    def end_before_renewal(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            fake.client().end_lease("mine")
        return inside.handle_request(request)

    fake.client().lease(purpose="job 7", lease_id="mine")
    with pytest.raises(NotFoundError, match="ended before it was renewed"):
        ask(kind, fake, lambda c: c.renew_lease("mine", 60), transport=httpx.MockTransport(end_before_renewal))
    assert fake.client().leases().leases == ()


# ---- hold


def _hold_sync(fake: FakeAgent, body: Any, **options: Any) -> Any:
    with fake.client() as client, client.hold(purpose="train", **options) as held:
        return body(held)


async def _hold_async(fake: FakeAgent, body: Any, **options: Any) -> Any:
    async with fake.async_client() as client, client.hold(purpose="train", **options) as held:
        return await asyncio.to_thread(body, held)


def hold(kind: Kind, fake: FakeAgent, body: Any, **options: Any) -> Any:
    """Runs `body(held)` under a lease; with asyncio in a thread, so that the loop is free to renew."""
    if kind == "sync":
        return _hold_sync(fake, body, **options)
    return asyncio.run(_hold_async(fake, body, **options))


def _wait_for(question: Any) -> None:
    clock = threading.Event()
    for _ in range(3000):
        if question():
            return
        clock.wait(0.01)
    raise AssertionError("it did not happen within 30 s")


@both
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_ends_the_lease_and_keeps_its_error(kind: Kind, error: type[BaseException]) -> None:
    if (kind, error) == ("async", KeyboardInterrupt):
        pytest.skip("asyncio.run has its own way with it")
    fake = FakeAgent()

    def fail(held: Any) -> None:
        raise error("the step failed")

    with pytest.raises(error, match="the step failed"):
        hold(kind, fake, fail)
    assert fake.client().leases().leases == ()


@both
def test_a_loss_that_nobody_asked_about_is_a_warning_where_the_block_ends(kind: Kind) -> None:
    fake = FakeAgent()

    def body(held: Any) -> None:
        fake.client().end_lease(held.lease)
        _wait_for(lambda: held._lost is not None)

    with pytest.warns(UserWarning, match=r"lease-\w+ \(train\) was lost before its block ended") as caught:
        hold(kind, fake, body, ttl_s=SHORT_S)
    assert caught[0].filename == __file__


@both
def test_a_hold_waits_for_devices_as_long_as_it_was_told(kind: Kind) -> None:
    fake = FakeAgent()
    taken = fake.client().lease(purpose="job 7", ttl_s=2.0)
    with pytest.raises(DeviceLeasedError, match=taken.id):
        hold(kind, fake, lambda held: None)
    assert hold(kind, fake, lambda held: held.lease.purpose, wait_s=30) == "train"


# ---- events


def test_following_with_asyncio_tells_the_same_and_only_news_unless_told() -> None:
    fake = RemembersHealth()
    fake.change_health("device:0", "degraded")

    async def follow() -> list[int]:
        async with fake.async_client() as client:
            seqs = []
            followed = client.follow_events()
            first = asyncio.ensure_future(anext(followed))
            while not any(request.url.path == "/events/stream" for request in fake.requests):  # noqa: ASYNC110
                await asyncio.sleep(0)
            fake.change_health("device:0", "unhealthy")
            seqs.append((await first).seq)
            await followed.aclose()  # type: ignore[attr-defined]
            return seqs

    assert asyncio.run(follow()) == [2]


def test_following_a_dead_agent_is_an_error() -> None:
    fake = FakeAgent()
    with fake.client() as client:
        followed = client.follow_events(after=0)
        fake.fail_next(httpx.ConnectError("refused"), times=99)
        with pytest.raises(AgentConnectionError):
            next(followed)


@both
def test_an_acknowledgement_clears_a_component(kind: Kind) -> None:
    fake = FakeAgent("cpu:2")
    fake.change_health("device:1", "unhealthy", "XID 79")
    assert ask(kind, fake, lambda c: c.health()).state == "unhealthy"
    assert ask(kind, fake, lambda c: c.acknowledge("device:1", "card was reseated")).state == "healthy"
    assert ask(kind, fake, lambda c: c.health()).state == "healthy"
    with pytest.raises(NotFoundError):
        ask(kind, fake, lambda c: c.acknowledge("device:9", "nothing"))
    with pytest.raises(InvalidRequestError):
        ask(kind, fake, lambda c: c.acknowledge("device:1", ""))
