"""The flows, step by step, against a scripted agent: no connection, no waiting, a clock that only steps move."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright._calls import calls, flows
from meshwright._calls.flows import Observer, Open, Send
from meshwright._calls.messages import Answer, Failure
from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    MeshwrightError,
    NotFoundError,
    NotReadyError,
    RunCancelledError,
    RunFailedError,
    WorkerFailedError,
)
from meshwright.wire.health import Health
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import Progress, Run, RunEvent, RunState
from tests.unit.client.script import Script, refuse, say

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEALTHY = Answer(200, {}, Health(state="healthy", components=()).model_dump_json().encode())


def _run(state: RunState = "running", **fields: Any) -> Run:
    return Run(id="r", kind="bench", state=state, created_at=NOW, request={}, **fields)


def _event(seq: int, state: RunState = "running", **fields: Any) -> bytes:
    fields = {"type": "state", **fields}
    event = RunEvent(seq=seq, at=NOW, run_id="r", state=state, **fields)
    return f"id: {seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()


# ---- exchange


def test_a_busy_agent_is_asked_again_with_the_same_request_and_growing_pauses() -> None:
    script = Script(sends=[refuse(NotReadyError("starting")), Failure("refused", "no"), HEALTHY])
    assert script.run(flows.exchange(calls.health(), script.link())).state == "healthy"
    assert script.pauses_s == [0.5, 1.0]
    assert len({id(step.request) for step in script.sent(Send)}) == 1


def test_a_dead_kept_alive_connection_is_replaced_at_once_and_costs_no_retry() -> None:
    script = Script(sends=[Failure("stale", "reset"), HEALTHY])
    assert script.run(flows.exchange(calls.health(), script.link(max_retries=0))).state == "healthy"
    assert script.pauses_s == []


def test_readiness_is_asked_once_and_not_ready_is_ansay() -> None:
    script = Script(sends=[Answer(503, {}, b"starting\n")])
    assert script.run(flows.exchange(calls.ready(), script.link())).line == "starting"
    script = Script(sends=[Failure("refused", "no")])
    with pytest.raises(AgentConnectionError):
        script.run(flows.exchange(calls.ready(), script.link()))


ACCEPTED = Answer(202, {}, say(_run("queued")).body)


@pytest.mark.parametrize(
    "outcome",
    [Failure("lost", "no"), Failure("timeout", "no"), Failure("stale", "no"), Answer(504, {}, b"a proxy's page")],
)
def test_a_request_that_makes_a_run_is_not_sent_again_where_its_answer_is_lost(outcome: Any) -> None:
    script = Script(sends=[outcome, ACCEPTED])
    with pytest.raises(MeshwrightError) as caught:
        script.run(flows.exchange(calls.submit_bench(mesh=None), script.link()))
    assert len(script.sent(Send)) == 1
    if isinstance(outcome, Failure):
        assert "see GET /runs" in str(caught.value)


@pytest.mark.parametrize("outcome", [Failure("refused", "no"), refuse(NotReadyError("starting"))])
def test_a_request_that_makes_a_run_is_sent_again_where_none_was_made(outcome: Any) -> None:
    script = Script(sends=[outcome, ACCEPTED])
    assert script.run(flows.exchange(calls.submit_bench(mesh=None), script.link())).state == "queued"


# ---- follow


def _follow(script: Script, after: int = 0, **options: Any) -> list[int]:
    seen: list[RunEvent] = []
    script.run(flows.follow("r", script.link(), emit=seen.append, after=after, **options))
    return [event.seq for event in seen]


def test_events_come_in_order_until_the_final_state() -> None:
    script = Script(streams=[[_event(1, "queued"), _event(2) + _event(3, type="progress"), _event(4, "succeeded")]])
    assert _follow(script) == [1, 2, 3, 4]
    assert script.sent(Send) == []


def test_a_stream_that_breaks_goes_on_after_the_last_event_and_repeats_none() -> None:
    script = Script(
        streams=[[_event(1), _event(2), Failure("lost", "cut")], [_event(1), _event(2), _event(3, "failed")]]
    )
    assert _follow(script) == [1, 2, 3]
    assert [step.request.headers.get("Last-Event-ID") for step in script.sent(Open)] == [None, "2"]
    assert script.pauses_s == []


@given(st.lists(st.integers(0, 9), max_size=6))
def test_wherever_streams_are_cut_every_event_comes_once(cuts: list[int]) -> None:
    history = [_event(seq) for seq in range(1, 9)] + [_event(9, "succeeded")]
    streams = [[*history[:cut], Failure("lost", "cut")] for cut in cuts]
    script = Script(sends=[say(_run())] * 99, streams=[*streams, history])
    assert _follow(script) == list(range(1, 10))


def test_streams_that_never_get_through_become_polling_until_the_run_is_over() -> None:
    polled: list[Run] = []
    runs = [_run(progress=Progress(done=done, total=3)) for done in range(3)] + [_run("succeeded")]
    proxy = Answer(200, {"content-type": "text/html"})
    script = Script(sends=[say(run) for run in runs], streams=[[proxy]] * 4)
    assert _follow(script, poll=polled.append) == []
    assert [run.progress.done for run in polled if run.progress] == [0, 1, 2]
    assert script.pauses_s == [0.5, 1.0, 2.0]


def test_a_run_that_is_not_there_and_an_agent_that_is_gone_end_the_following() -> None:
    with pytest.raises(NotFoundError):
        _follow(Script(sends=[refuse(NotFoundError("no"))], streams=[[Answer(404)]]))
    with pytest.raises(AgentConnectionError):
        _follow(Script(sends=[Failure("refused", "no")] * 3))


# ---- wait and bench


def test_waiting_ends_when_its_time_is_over_and_says_how_the_run_stands() -> None:
    script = Script(sends=[say(_run("queued"))] * 99, streams=[[Failure("timeout", "silence")]] * 99)
    with pytest.raises(AgentTimeoutError, match="still queued"):
        script.run(flows.wait("r", script.link(), Observer(), timeout_s=100.0))
    assert script.now_s == pytest.approx(100.0, abs=0.5)


@settings(max_examples=40)
@given(timeout_s=st.floats(0.5, 300), ping_s=st.floats(1, 44))
def test_a_talkative_run_cannot_keep_anybody_waiting_longer_than_asked(timeout_s: float, ping_s: float) -> None:
    script = Script(sends=[say(_run())] * 9999, ping_s=ping_s)
    with pytest.raises(AgentTimeoutError):
        script.run(flows.wait("r", script.link(), Observer(), timeout_s=timeout_s))
    assert script.now_s == pytest.approx(timeout_s, abs=1e-6)


def test_a_final_event_that_overtakes_the_store_is_waited_for() -> None:
    sends = [say(_run()), say(_run("succeeded"))]
    script = Script(sends=[*sends], streams=[[_event(1, "succeeded")]])
    assert script.run(flows.wait("r", script.link(), Observer(), None)).state == "succeeded"


def _bench(script: Script, observer: Observer | None = None, timeout_s: float | None = None) -> Any:
    return script.run(flows.bench(calls.submit_bench(mesh=None), script.link(), observer or Observer(), timeout_s))


def _finished(run: Run) -> Script:
    return Script(sends=[say(_run("queued")), say(run)], streams=[[_event(1, run.state)]])


def test_a_run_that_failed_is_raised_as_its_own_error_with_the_workers_log() -> None:
    problem = build_problem(WorkerFailedError("it died", log=["Fatal Python error"]))
    with pytest.raises(WorkerFailedError, match="it died") as caught:
        _bench(_finished(_run("failed", error=problem)))
    assert caught.value.log == ("Fatal Python error",)
    assert caught.value.host == "http://a"


def test_a_run_that_failed_without_a_reason_is_a_failed_run() -> None:
    with pytest.raises(RunFailedError, match="does not say why"):
        _bench(_finished(_run("failed")))


def test_a_run_that_was_cancelled_is_said_to_be_with_the_reason() -> None:
    problem = build_problem(RunCancelledError("run-1 was cancelled: the agent is shutting down"))
    with pytest.raises(RunCancelledError, match="shutting down") as caught:
        _bench(_finished(_run("cancelled", error=problem)))
    assert caught.value.detail == problem.detail
    assert caught.value.host == "http://a"


def test_a_run_that_was_cancelled_without_a_reason_is_a_cancelled_run() -> None:
    with pytest.raises(RunCancelledError, match="was cancelled"):
        _bench(_finished(_run("cancelled")))


def test_a_result_that_cannot_be_read_is_a_failed_run() -> None:
    with pytest.raises(RunFailedError, match="cannot be read"):
        _bench(_finished(_run("succeeded", result={"records": 3})))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(1)])
def test_a_bench_that_is_interrupted_is_cancelled_on_the_agent(interruption: BaseException) -> None:
    script = Script(sends=[say(_run("queued")), say(_run("cancelled"))], streams=[[_event(1), interruption]])
    with pytest.raises(type(interruption)):
        _bench(script)
    last = script.sent(Send)[-1]
    assert (last.request.method, last.request.path) == ("DELETE", "/runs/r")


def test_an_error_of_a_callback_cancels_the_bench_and_comes_out() -> None:
    def fail(progress: Progress) -> None:
        raise ZeroDivisionError

    progress = _event(1, type="progress", progress=Progress(done=1, total=2))
    script = Script(sends=[say(_run("queued")), Failure("lost", "even then")], streams=[[progress]])
    with pytest.raises(ZeroDivisionError):
        _bench(script, Observer(on_progress=fail))
    assert script.sent(Send)[-1].request.method == "DELETE"


def test_progress_is_told_once_whether_it_came_by_event_or_by_polling() -> None:
    told: list[int] = []
    observer = Observer(on_progress=lambda progress: told.append(progress.done))
    progress = Progress(done=1, total=2)
    observer.notice(RunEvent(seq=1, at=NOW, type="progress", run_id="r", state="running", progress=progress))
    observer.notice_run(_run(progress=progress))
    observer.notice_run(_run(progress=Progress(done=2, total=2)))
    assert told == [1, 2]


# ---- an agent that is restarted -------------------------------------------------------------------------------------


def test_what_an_agent_has_answered_before_is_waited_for_and_what_it_never_has_is_not() -> None:
    starting, script = refuse(NotReadyError("starts")), Script()
    link = script.link()
    script.sends = [say(_run("running"))]
    script.run(flows.exchange(calls.run("run-1"), link))
    for call, count in ((calls.run("run-1"), 17), (calls.devices(), 3)):
        script.sends, script.steps = [starting] * 40, []
        with pytest.raises(NotReadyError):
            script.run(flows.exchange(call, link))
        assert len(script.sent(Send)) == count
    script.sends, script.steps = [Failure("refused", "no")] * 40, []
    with pytest.raises(AgentConnectionError):
        script.run(flows.exchange(calls.devices(), link))
    assert len(script.sent(Send)) == 17
