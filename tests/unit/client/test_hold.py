"""Holding a lease: when it is renewed, what a failure costs, and when it is lost; on a scripted agent."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest

from meshwright import Held
from meshwright._client.holding import CHECK_S
from meshwright.errors import (
    AgentConnectionError,
    DeviceLeasedError,
    InvalidRequestError,
    MeshwrightError,
    NotFoundError,
    UnauthorizedError,
)
from meshwright.testing import FakeAgent
from meshwright.wire.base import DeviceRef
from meshwright.wire.leases import Lease
from tests.unit.client.script import LOST, REFUSED, SILENT, Script

GONE = NotFoundError("it was preempted by a job")
TAKEN = DeviceLeasedError("job 7 has them")


def _lease(left_s: float = 60.0, **fields: Any) -> Lease:
    devices = (DeviceRef(host="a", local_index=0, position=0),)
    named = {"id": "lease-1", "devices": devices, "purpose": "train", "preemptible": False, **fields}
    return Lease(**named, expires_in_s=left_s)


def _keep(script: Script, patch: pytest.MonkeyPatch, lease: Lease, told: list[Any] | None = None) -> Held:
    """Keeps a lease until it is lost."""
    client, held = script.client(patch), Held(lease, None if told is None else told.append)
    client._keep(held, lease.expires_in_s, script.pause)
    return held


def test_a_lease_is_renewed_at_a_third_of_its_time_and_the_newest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(_lease(6), _lease(6), _lease(5.7), _lease(5.7), GONE)
    held = _keep(script, monkeypatch, _lease(6))
    assert script.pauses_s == pytest.approx([2.0, 2.0, 1.9])
    assert held.lease.expires_in_s == 5.7
    assert script.asked == [*["GET /leases/lease-1", "PUT /leases/lease-1"] * 2, "GET /leases/lease-1"]


def test_between_renewals_the_agent_is_asked_every_two_seconds_and_a_loss_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A renewal of `hold` comes every 200 s; a lease that took the devices over is another's from the start."""
    script, told = Script(_lease(600), REFUSED, SILENT, UnauthorizedError("no"), GONE), list[MeshwrightError]()
    held = _keep(script, monkeypatch, _lease(600), told)
    assert set(script.asked) == {"GET /leases/lease-1"}
    assert {request.extensions["timeout"]["read"] for request in script.requests} == {CHECK_S}
    assert isinstance(held.lost, NotFoundError)
    assert told == [held.lost]
    assert script.now_s == 5 * CHECK_S
    with pytest.raises(NotFoundError, match="preempted by a job"):
        held.check()


def test_an_agent_that_is_away_for_less_than_the_lease_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    held = _keep(Script(*[REFUSED] * 28, _lease(), GONE), monkeypatch, _lease(60))
    assert isinstance(held.lost, NotFoundError)  # one answer came through before its time was over


@pytest.mark.parametrize("outcome", [REFUSED, UnauthorizedError("revoked")])
def test_an_agent_that_is_away_until_the_end_loses_the_lease_when_its_time_is_over_and_not_before(
    outcome: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(*[outcome] * 99)
    held = _keep(script, monkeypatch, _lease(60))
    assert isinstance(held.lost, AgentConnectionError | UnauthorizedError)
    assert 60.0 <= script.now_s < 60.0 + CHECK_S


def test_a_lease_that_was_not_renewed_in_time_is_lost_before_anything_asks_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process was stopped, or the event loop was blocked, for longer than the lease."""
    script, told = Script(), list[MeshwrightError]()
    client, held = script.client(monkeypatch), Held(_lease(3), told.append)
    held.check()
    client._keep(held, 3.0, lambda delay_s: script.pause(4.0))
    with pytest.raises(NotFoundError, match="not renewed in time"):
        held.check()
    held.finish()
    assert (told, held.unsaid, script.asked) == ([held.lost], "", [])
    blocked = Held(_lease(3))
    script.pause(3.0)
    blocked.finish()
    script.replies = [REFUSED] * 9
    assert (client._give_back(blocked), "was not renewed in time" in blocked.unsaid) == ("", True)


def test_a_renewal_that_finds_the_devices_taken_loses_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    held = _keep(Script(_lease(6), TAKEN), monkeypatch, _lease(6))
    assert isinstance(held.lost, DeviceLeasedError)


def test_a_bug_loses_the_lease_and_an_error_of_the_callback_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    held = _keep(Script(ZeroDivisionError()), monkeypatch, _lease(60))
    assert "not renewed any more: ZeroDivisionError" in str(held.lost)
    with pytest.raises(ZeroDivisionError):
        Script(GONE).client(monkeypatch)._keep(Held(_lease(), lambda why: 1 / 0), 60.0, lambda delay_s: None)


def test_a_loss_that_nothing_asked_about_is_left_to_be_said() -> None:
    held = Held(_lease())
    assert held.unsaid == ""
    held.lose(NotFoundError("it was preempted"))
    assert "lease-1 (train) was lost" in held.unsaid
    assert held.lost is not None
    assert held.unsaid == ""  # the caller that asked knows


def test_an_error_of_the_callback_is_told_to_the_loop_and_a_block_may_end_at_once() -> None:
    def lose(why: MeshwrightError) -> None:
        raise ZeroDivisionError

    async def hold(patch: pytest.MonkeyPatch) -> Any:
        told, fake = asyncio.Future[Any](), FakeAgent()
        asyncio.get_running_loop().set_exception_handler(lambda loop, said: told.set_result(said["exception"]))
        patch.setattr("meshwright._client.awaiting.CHECK_S", 0.01)
        async with fake.async_client() as client:
            async with client.hold(purpose="train"):
                pass
            async with client.hold(purpose="train", on_lost=lose) as held:
                await client.end_lease(held.lease)
                return await told

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        error = asyncio.run(asyncio.wait_for(hold(patch), 10))
        gc.collect()  # of a coroutine that was never awaited
    assert isinstance(error, ZeroDivisionError)


# ---- taking


def _hold(script: Script, patch: pytest.MonkeyPatch, wait_s: float) -> str:
    patch.setattr("meshwright._client.requests.secrets.token_hex", lambda _: "1")
    with script.client(patch).hold(purpose="train", wait_s=wait_s) as held:
        return held.lease.id


def test_devices_that_become_free_in_time_are_got_by_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(TAKEN, TAKEN, _lease(), _lease())
    assert _hold(script, monkeypatch, 30.0) == "lease-1"
    assert script.pauses_s == [CHECK_S, CHECK_S]
    assert script.asked == ["PUT /leases/lease-1"] * 3 + ["DELETE /leases/lease-1"]


@pytest.mark.parametrize(("outcome", "wait_s", "pauses_s"), [
    (TAKEN, 0.0, []), (TAKEN, 5.0, [2.0, 2.0, 1.0]), (InvalidRequestError("no device 9"), 30.0, []),
])  # fmt: skip
def test_only_a_lease_in_the_way_is_waited_for_and_only_as_long_as_asked(
    outcome: MeshwrightError, wait_s: float, pauses_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(*[outcome] * 9)
    with pytest.raises(type(outcome)):
        _hold(script, monkeypatch, wait_s)
    assert script.pauses_s == pauses_s


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(143)])
def test_a_lease_whose_taker_is_interrupted_before_the_answer_is_ended(
    interruption: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(interruption, _lease())
    with pytest.raises(type(interruption)):
        _hold(script, monkeypatch, 30.0)
    assert script.asked == ["PUT /leases/lease-1", "DELETE /leases/lease-1"]


# ---- ending


def test_an_end_that_finds_nothing_is_a_loss_unless_an_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    for outcomes, lost in (([_lease()], False), ([LOST, GONE], False), ([GONE], True)):
        script, held = Script(*outcomes), Held(_lease())
        held.finish()
        assert script.client(monkeypatch)._give_back(held) == ""
        assert bool(held.unsaid) == lost


def test_a_lease_that_cannot_be_ended_is_told_with_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(*[REFUSED] * 9)
    told = script.client(monkeypatch)._give_back(Held(_lease()))
    assert "lease-1 could not be ended, and ends by itself within " in told
    assert script.now_s <= 3.0


@pytest.mark.parametrize("is_named", [False, True])
def test_an_end_whose_answer_was_lost_and_that_finds_nothing_then_is_an_end(
    is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(*([_lease()] if is_named else []), LOST, GONE)
    assert script.client(monkeypatch).end_lease("lease-1" if is_named else _lease()).id == "lease-1"
    for outcomes in ([GONE], [REFUSED, GONE]):  # which nothing can have ended by this request
        with pytest.raises(NotFoundError):
            Script(*outcomes).client(monkeypatch).end_lease(_lease())


def test_a_lease_that_has_ended_is_not_made_anew_by_a_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(GONE)
    with pytest.raises(NotFoundError):
        script.client(monkeypatch).renew_lease(_lease(), 60.0)
    assert script.asked == ["GET /leases/lease-1"]
