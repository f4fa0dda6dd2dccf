"""Leases, events and acknowledgements on both clients, against the fake agent."""

from __future__ import annotations

import asyncio
import itertools
import threading
import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshwright import Client
from meshwright.errors import (
    AgentConnectionError,
    ComponentNotFoundError,
    DeviceLeasedError,
    InvalidRequestError,
    LeaseNotFoundError,
    MeshwrightError,
)
from meshwright.testing import FakeAgent, build_devices
from tests.unit.client.both import Kind, ask

both = pytest.mark.parametrize("kind", ["sync", "async"])
SHORT_S = 0.3
"""Of a lease that is renewed in a test: every 0.1 s."""


@both
def test_a_device_has_one_lease_and_the_refusal_names_it(kind: Kind) -> None:
    fake = FakeAgent("h100:8")
    first = ask(kind, fake, lambda c: c.lease([3], purpose="job 7"))
    ask(kind, fake, lambda c: c.lease([4, 5], purpose="job 8"))
    with pytest.raises(DeviceLeasedError, match=rf"{first.id} \(job 7\).*device 3"):
        ask(kind, fake, lambda c: c.lease(purpose="job 9"))


@both
def test_a_plan_is_leased_and_held_in_one_line(kind: Kind) -> None:
    fake = FakeAgent("h100:8")
    plan = ask(kind, fake, lambda c: c.plan("dp:2,tp:2", devices=[3, 1, 5, 7]))
    lease = ask(kind, fake, lambda c: c.lease(plan, purpose="job 7"))
    assert [device.local_index for device in lease.devices] == [1, 3, 5, 7]
    with pytest.raises(DeviceLeasedError, match="job 7"):
        ask(kind, fake, lambda c: c.lease(plan, purpose="job 8"))
    assert ask(kind, fake, lambda c: c.plan("dp:2,tp:2", lease=lease)).fingerprint == plan.fingerprint


def test_a_block_holds_the_devices_of_a_plan() -> None:
    with FakeAgent("cpu:8").client() as client, client.hold(client.plan("dp:2", devices=[2, 6]), purpose="x") as held:
        assert [device.local_index for device in held.lease.devices] == [2, 6]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "h100:8"}, "target h100:8"),
        ({"include_devices": False}, "does not list its devices"),
        (
            {"topology": [build_devices("cpu:4", host="a"), build_devices("cpu:4", host="b")]},
            r"2 hosts \(a, b",
        ),
    ],
)
def test_a_plan_whose_devices_are_not_one_hosts_cannot_be_leased(options: dict[str, Any], said: str) -> None:
    fake = FakeAgent("cpu:8")
    with fake.client() as client:
        plan = client.plan("dp:8", **options)
        asked = len(fake.requests)
        with pytest.raises(InvalidRequestError, match=said) as refused:
            client.lease(plan, purpose="x")
        assert refused.value.hint
        assert len(fake.requests) == asked


@both
def test_asked_again_with_its_id_a_lease_is_renewed_by_any_client(kind: Kind) -> None:
    fake = FakeAgent("h100:8")
    for ttl_s in (60.0, 90.0):
        made = ask(kind, fake, lambda c, ttl_s=ttl_s: c.lease([0], purpose="x", lease_id="slurm-4711", ttl_s=ttl_s))
        assert (made.id, made.expires_in_s) == ("slurm-4711", pytest.approx(ttl_s, abs=1))
    assert str(fake.requests[-1]) == "PUT /leases/slurm-4711"
    with pytest.raises(DeviceLeasedError, match="a renewal may change"):
        ask(kind, fake, lambda c: c.lease([1], purpose="x", lease_id="slurm-4711"))


@pytest.mark.parametrize("lease_id", ["", "ä", "a/b", ".a", "k" * 65])
def test_an_id_that_no_lease_may_have_is_refused_before_anything_is_sent(lease_id: str) -> None:
    fake = FakeAgent()
    with fake.client() as client, pytest.raises(InvalidRequestError, match="1 to 64 letters"):
        client.lease(purpose="x", lease_id=lease_id)
    assert fake.requests == []


@both
def test_a_lease_whose_answer_was_lost_is_made_once(kind: Kind) -> None:
    fake = FakeAgent()
    fake.answer_next(502, b"a proxy's page")
    fake.drop_next()
    lease = ask(kind, fake, lambda c: c.lease(purpose="job"))
    assert {str(request) for request in fake.requests} == {f"PUT /leases/{lease.id}"}
    assert [each.id for each in fake.leases.list().leases] == [lease.id]


@both
@pytest.mark.parametrize(
    "arguments",
    [
        {"purpose": ""},
        {"purpose": "x", "ttl_s": 0},
        {"purpose": "x", "ttl_s": 1e9},
        {"purpose": "x", "devices": []},
        {"purpose": "x", "devices": "0,1"},
        {"purpose": "x", "devices": [9]},
    ],
)
def test_a_lease_that_cannot_be_is_refused_by_its_field(kind: Kind, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ask(kind, FakeAgent(), lambda c: c.lease(**arguments))
    assert caught.value.errors


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


def _renewals(fake: FakeAgent) -> int:
    return sum(request.method == "PUT" for request in fake.requests) - 1


@both
def test_a_held_lease_is_there_in_the_block_and_gone_after_it(kind: Kind) -> None:
    fake = FakeAgent("h100:8")

    def body(held: Any) -> None:
        held.check()
        assert [lease.id for lease in fake.leases.list().leases] == [held.lease.id]

    hold(kind, fake, body, devices=[0])
    assert fake.leases.list().leases == ()


@both
def test_a_held_lease_outlives_its_time_by_renewals(kind: Kind) -> None:
    fake = FakeAgent()
    started, ttl_s = datetime.now(UTC), 1.5  # it is renewed each third of it, and a machine may be late by two

    def body(held: Any) -> None:
        _wait_for(lambda: _renewals(fake) >= 4 and datetime.now(UTC) - started > timedelta(seconds=2 * ttl_s))
        held.check()

    hold(kind, fake, body, ttl_s=ttl_s)


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
    assert fake.leases.list().leases == ()


@both
def test_a_lease_that_somebody_ends_is_told_by_callback_property_and_check(kind: Kind) -> None:
    fake, told = FakeAgent(), list[MeshwrightError]()

    def body(held: Any) -> None:
        fake.leases.end(held.lease.id)
        _wait_for(lambda: told)
        assert held.lost is told[0]
        with pytest.raises(LeaseNotFoundError):
            held.check()

    hold(kind, fake, body, ttl_s=SHORT_S, on_lost=told.append)
    assert len(told) == 1


@both
def test_a_preemptible_hold_gives_way_to_a_job_and_hears_of_it(kind: Kind) -> None:
    fake = FakeAgent("h100:8")

    def body(held: Any) -> None:
        with fake.client() as other:
            job = other.lease([2], purpose="job 7")
        assert job.preempted_leases == (held.lease.id,)
        _wait_for(lambda: held.lost is not None)

    hold(kind, fake, body, ttl_s=SHORT_S, preemptible=True)
    assert [lease.purpose for lease in fake.leases.list().leases] == ["job 7"]


@both
def test_a_loss_that_nobody_asked_about_is_a_warning_where_the_block_ends(kind: Kind) -> None:
    fake = FakeAgent()

    def body(held: Any) -> None:
        fake.leases.end(held.lease.id)
        _wait_for(lambda: held._lost is not None)

    with pytest.warns(UserWarning, match=r"lease-\w+ \(train\) was lost before its block ended") as caught:
        hold(kind, fake, body, ttl_s=SHORT_S)
    assert caught[0].filename == __file__


@both
def test_a_lease_that_cannot_be_ended_is_a_warning_and_no_error(kind: Kind) -> None:
    fake = FakeAgent()

    def body(held: Any) -> str:
        fake.drop_next(times=40, kind="refused")
        return "done"

    with pytest.warns(UserWarning, match="could not be ended, and ends by itself"):
        assert hold(kind, fake, body) == "done"


@both
def test_a_block_without_trouble_warns_of_nothing_and_leaves_no_thread(kind: Kind) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hold(kind, FakeAgent(), lambda held: None, ttl_s=SHORT_S)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("meshwright-lease")]


@both
def test_a_hold_waits_for_devices_as_long_as_it_was_told(kind: Kind) -> None:
    fake = FakeAgent()
    taken = fake.client().lease(purpose="job 7", ttl_s=5.0)
    with pytest.raises(DeviceLeasedError, match=taken.id):
        hold(kind, fake, lambda held: None)
    assert hold(kind, fake, lambda held: held.lease.purpose, wait_s=30) == "train"


def test_a_hold_whose_client_is_closed_is_lost_and_says_that_the_lease_is_left() -> None:
    fake, told = FakeAgent(), list[MeshwrightError]()
    http = fake.http_client()
    client = Client(http_client=http, pause=lambda delay_s: None)

    def close_it() -> None:
        with client.hold(purpose="train", ttl_s=SHORT_S, on_lost=told.append):
            http.close()
            _wait_for(lambda: told)

    with pytest.warns(UserWarning, match="could not be ended"):
        close_it()
    assert "this client has been closed" in str(told[0])


# ---- events


@both
def test_events_come_with_what_was_asked_for(kind: Kind) -> None:
    fake = FakeAgent("h100:2")
    fake.change_health("device:1", "unhealthy", "XID 79", permanence="permanent")
    fake.change_health("device:0", "degraded", "hot")
    reply = ask(kind, fake, lambda c: c.events())
    assert [(each.component, each.before, each.state) for each in reply.events] == [
        ("device:1", "healthy", "unhealthy"),
        ("device:0", "healthy", "degraded"),
    ]
    assert reply.last_seq == 2
    assert [each.seq for each in ask(kind, fake, lambda c: c.events("device:0")).events] == [2]
    assert [each.seq for each in ask(kind, fake, lambda c: c.events(after=1)).events] == [2]
    assert [each.seq for each in ask(kind, fake, lambda c: c.events(limit=1)).events] == [2]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert ask(kind, fake, lambda c: c.events(since=later)).events == ()
    naive = (datetime.now(UTC) - timedelta(hours=1)).replace(tzinfo=None)
    assert len(ask(kind, fake, lambda c: c.events(since=naive)).events) == 2


def test_following_goes_on_where_it_was_although_the_stream_is_cut() -> None:
    fake = FakeAgent("h100:2")
    for state in ("degraded", "healthy", "unhealthy"):
        fake.change_health("device:0", state)  # type: ignore[arg-type]
    fake.cut_streams(after_events=1)
    with fake.client() as client:
        followed = client.follow_events(after=0)
        assert [event.seq for event in itertools.islice(followed, 3)] == [1, 2, 3]
        fake.change_health("device:0", "healthy")
        assert next(followed).seq == 4
        followed.close()  # type: ignore[attr-defined]


def test_following_with_asyncio_tells_the_same_and_only_news_unless_told() -> None:
    fake = FakeAgent("h100:2")
    fake.change_health("device:0", "degraded")

    async def follow() -> list[int]:
        async with fake.async_client() as client:
            seqs = []
            followed = client.follow_events()
            first = asyncio.ensure_future(anext(followed))
            while not any("/events/stream" in request.path for request in fake.requests):  # noqa: ASYNC110
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
        fake.drop_next(times=99, kind="refused")
        with pytest.raises(AgentConnectionError):
            next(followed)


@both
def test_an_acknowledgement_clears_a_component_and_stands_in_the_history(kind: Kind) -> None:
    fake = FakeAgent("h100:2")
    fake.change_health("device:1", "unhealthy", "XID 79")
    assert ask(kind, fake, lambda c: c.health()).state == "unhealthy"
    assert ask(kind, fake, lambda c: c.acknowledge("device:1", "card was reseated")).state == "healthy"
    assert ask(kind, fake, lambda c: c.health()).state == "healthy"
    last = ask(kind, fake, lambda c: c.events(limit=1)).events[0]
    assert (last.kind, last.before, last.reason) == ("acknowledged", "unhealthy", "card was reseated")
    with pytest.raises(ComponentNotFoundError):
        ask(kind, fake, lambda c: c.acknowledge("device:9", "nothing"))
    with pytest.raises(InvalidRequestError):
        ask(kind, fake, lambda c: c.acknowledge("device:1", ""))


# ---- what leases do to plans and benches


@both
def test_a_bench_of_leased_devices_is_refused_except_to_the_lease(kind: Kind) -> None:
    fake = FakeAgent("h100:8")
    lease = ask(kind, fake, lambda c: c.lease([0], purpose="job 7"))
    with pytest.raises(DeviceLeasedError):
        ask(kind, fake, lambda c: c.bench(devices=[1, 2]))
    assert ask(kind, fake, lambda c: c.bench(devices=[0], lease=lease)).records
    assert ask(kind, fake, lambda c: c.bench(devices=[0], lease=lease.id)).records


@both
def test_a_lease_cancels_benches_unless_it_is_preemptible(kind: Kind) -> None:
    fake = FakeAgent("h100:8")
    fake.runs.held = True
    run = ask(kind, fake, lambda c: c.submit_bench())
    with pytest.raises(MeshwrightError, match=run.id):
        ask(kind, fake, lambda c: c.lease(purpose="look", preemptible=True))
    assert ask(kind, fake, lambda c: c.lease(purpose="job 7")).cancelled_runs == (run.id,)
    assert fake.runs.get(run.id).state == "cancelled"
