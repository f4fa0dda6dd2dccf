"""Holding a lease, step by step: when it is renewed, what a failure costs, and when it is lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshwright._calls import holding, leases
from meshwright._calls.flows import Pause, Send
from meshwright._calls.holding import AGAIN_S, CHECK_S, Held
from meshwright._calls.messages import Failure
from meshwright.errors import (
    AgentConnectionError,
    DeviceLeasedError,
    InvalidRequestError,
    MeshwrightError,
    NotFoundError,
    UnauthorizedError,
)
from meshwright.wire.leases import Lease, LeasedDevice
from tests.unit.client.script import Script, refuse, say

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GONE = refuse(NotFoundError("it was pre-empted by a job"))
NOBODY = Failure("refused", "no")


def _lease(left_s: float = 60.0, **fields: Any) -> Lease:
    devices = (LeasedDevice(local_index=0),)
    named = {"id": "lease-1", "devices": devices, "purpose": "train", "preemptible": False, **fields}
    return Lease(**named, created_at=NOW, expires_at=NOW + timedelta(seconds=left_s), expires_in_s=left_s)


def _take(script: Script, wait_s: float) -> Lease:
    call = leases.put_lease("lease-1", "all", purpose="train", ttl_s=60.0, preemptible=False)
    return script.run(holding.take(call, script.link(), wait_s))


def _keep(script: Script, held: Held, ttl_s: float = 60.0) -> None:
    script.run(holding.keep(held, script.link(), ttl_s))


def test_a_lease_is_renewed_at_a_third_of_its_time_and_the_newest_is_told() -> None:
    script = Script(sends=[say(_lease(6)), say(_lease(6)), say(_lease(5.7)), say(_lease(5.7)), GONE])
    held = Held(_lease(6))
    _keep(script, held, ttl_s=6)
    assert script.pauses_s == pytest.approx([2.0, 2.0, 1.9])
    assert held.lease.expires_in_s == 5.7
    assert [str(step.request) for step in script.sent(Send)] == [
        *["GET /leases/lease-1", "PUT /leases/lease-1"] * 2,
        "GET /leases/lease-1",
    ]


def test_between_renewals_the_agent_is_asked_every_two_seconds_and_a_loss_is_told_at_once() -> None:
    """A renewal of `hold` comes every 200 s; a lease that took the devices over is another's from the start."""
    told: list[MeshwrightError] = []
    script = Script(sends=[say(_lease(600)), NOBODY, NOBODY, NOBODY, refuse(UnauthorizedError("no")), GONE])
    held = Held(_lease(600), told.append)
    _keep(script, held, ttl_s=600)
    assert {str(step.request) for step in script.sent(Send)} == {"GET /leases/lease-1"}
    assert isinstance(held.lost, NotFoundError)
    assert told == [held.lost]
    assert script.now_s <= 4 * 2 * CHECK_S  # of four questions, each of which may take as long as the pause before it


def test_questions_and_renewals_are_as_many_as_their_times_say() -> None:
    script = Script(sends=[say(_lease(60))] * 30 + [GONE])
    _keep(script, Held(_lease(60)))
    methods = [step.request.method for step in script.sent(Send)]
    assert methods == (["GET"] * 10 + ["PUT"]) * 2 + ["GET"] * 9
    assert script.now_s == 58.0


def test_a_lease_that_the_agent_no_longer_knows_is_lost_at_once_with_the_agents_reason() -> None:
    told: list[MeshwrightError] = []
    held = Held(_lease(), told.append)
    _keep(Script(sends=[GONE]), held)
    assert isinstance(held.lost, NotFoundError)
    assert "pre-empted by a job" in str(held.lost)
    assert told == [held.lost]
    with pytest.raises(NotFoundError, match="pre-empted by a job"):
        held.check()


def test_an_agent_that_is_away_for_less_than_the_lease_costs_nothing() -> None:
    script = Script(sends=[*[NOBODY] * 30, say(_lease()), GONE])
    held = Held(_lease(60))
    _keep(script, held)
    assert isinstance(held.lost, NotFoundError)  # one answer came through before its time was over


def test_an_agent_that_is_away_until_the_end_loses_the_lease_when_its_time_is_over_and_not_before() -> None:
    script = Script(sends=[NOBODY] * 99)
    held = Held(_lease(60))
    _keep(script, held)
    assert isinstance(held.lost, AgentConnectionError)
    assert 60.0 <= script.now_s < 60.0 + AGAIN_S


def test_a_token_that_was_revoked_loses_the_lease_only_when_its_time_is_over() -> None:
    script = Script(sends=[refuse(UnauthorizedError("no"))] * 99)
    held = Held(_lease(30))
    _keep(script, held, ttl_s=30)
    assert isinstance(held.lost, UnauthorizedError)
    assert script.now_s == pytest.approx(30, abs=AGAIN_S)


def test_the_time_that_a_renewal_took_is_taken_off_the_lease() -> None:
    """The agent may have granted it when it heard of it: a slow answer does not make the lease longer."""
    script = Script(sends=[NOBODY, say(_lease(6)), *[NOBODY] * 99])
    held = Held(_lease(6))
    _keep(script, held, ttl_s=6)
    assert isinstance(held.lost, AgentConnectionError)
    assert script.now_s == pytest.approx(2 + 6, abs=AGAIN_S)


def test_what_was_lost_stays_lost_and_is_told_once() -> None:
    told: list[MeshwrightError] = []
    held = Held(_lease(), told.append)
    assert held.lose(NotFoundError("first"))
    assert not held.lose(NotFoundError("second"))
    assert [str(error) for error in told] == ["first"]


def test_after_the_end_of_its_block_nothing_is_lost() -> None:
    told: list[MeshwrightError] = []
    held = Held(_lease(), told.append)
    held.finish()
    assert not held.lose(NotFoundError("ended by its own holder"))
    assert (held.lost, told, held.unsaid) == (None, [], "")
    held.check()


def test_a_loss_that_nobody_asked_about_is_left_to_be_said() -> None:
    held = Held(_lease())
    assert held.unsaid == ""
    held.lose(NotFoundError("it was pre-empted"))
    assert "lease-1 (train) was lost" in held.unsaid
    assert held.lost is not None
    assert held.unsaid == ""  # whoever asked knows


def test_devices_that_somebody_has_are_refused_at_once_unless_waited_for() -> None:
    script = Script(sends=[refuse(DeviceLeasedError("job 7 has them"))])
    with pytest.raises(DeviceLeasedError):
        _take(script, 0.0)
    assert script.pauses_s == []


def test_devices_that_become_free_in_time_are_got_by_waiting() -> None:
    script = Script(sends=[refuse(DeviceLeasedError("job 7 has them"))] * 2 + [say(_lease())])
    assert _take(script, 30.0).id == "lease-1"
    assert script.pauses_s == [AGAIN_S, AGAIN_S]
    assert {str(step.request) for step in script.sent(Send)} == {"PUT /leases/lease-1"}


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(143)])
def test_a_lease_whose_taker_is_interrupted_before_the_answer_is_ended(interruption: BaseException) -> None:
    script = Script(sends=[interruption, say(_lease())])
    with pytest.raises(type(interruption)):
        _take(script, 30.0)
    _, end = (step.request for step in script.sent(Send))
    assert (end.method, end.path) == ("DELETE", "/leases/lease-1")


def test_waiting_ends_when_its_time_is_over() -> None:
    script = Script(sends=[refuse(DeviceLeasedError("job 7 has them"))] * 9)
    with pytest.raises(DeviceLeasedError):
        _take(script, 5.0)
    assert script.pauses_s == [2.0, 2.0, 1.0]


def test_only_a_lease_in_the_way_is_waited_for() -> None:
    script = Script(sends=[refuse(InvalidRequestError("no device 9"))])
    with pytest.raises(InvalidRequestError):
        _take(script, 30.0)
    assert script.sent(Pause) == []


def test_a_lease_is_given_back_and_an_end_that_came_through_before_is_no_loss() -> None:
    for end in (say(_lease()), GONE):
        script, held = Script(sends=[say(_lease()), end]), Held(_lease())
        held.finish()
        assert script.run(holding.give_back(held, script.link())) == ""
        assert [str(step.request) for step in script.sent(Send)] == ["GET /leases/lease-1", "DELETE /leases/lease-1"]
        assert held.unsaid == ""


def test_a_lease_that_cannot_be_ended_is_told_with_its_own_end() -> None:
    script = Script(sends=[NOBODY] * 9)
    told = script.run(holding.give_back(Held(_lease()), script.link()))
    assert "lease-1 could not be ended, and ends by itself at 2026-01-01" in told
    assert script.now_s <= holding.CANCEL_TIMEOUT_S


@pytest.mark.parametrize("is_named", [False, True])
def test_an_end_whose_answer_was_lost_and_that_finds_nothing_then_is_an_end(is_named: bool) -> None:
    found = [say(_lease())] if is_named else []
    script = Script(sends=[*found, Failure("lost", "no"), GONE])
    ended = script.run(holding.end("lease-1" if is_named else _lease(), script.link()))
    assert ended.id == "lease-1"
    for outcomes in ([GONE], [NOBODY, GONE]):  # which nobody can have ended by this request
        script = Script(sends=outcomes)
        with pytest.raises(NotFoundError):
            script.run(holding.end(_lease(), script.link()))


def test_a_lease_that_has_ended_is_not_made_anew_by_a_renewal() -> None:
    script = Script(sends=[GONE])
    with pytest.raises(NotFoundError):
        script.run(holding.renew(_lease(), script.link(), 60.0))
    assert [str(step.request) for step in script.sent(Send)] == ["GET /leases/lease-1"]
