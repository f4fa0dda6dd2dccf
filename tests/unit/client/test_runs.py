"""Streams of events, runs that are waited for, and benches: on a scripted agent, with a clock that only it moves."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import AgentConnectionError, AgentTimeoutError, NotFoundError, RunFailedError, UnavailableError
from meshwright.wire.health import HealthEvent, HealthEvents
from meshwright.wire.preflight import PreflightRequest
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import Progress, Run, RunEvent, RunState
from tests.unit.client.script import LOST, NOW, REFUSED, SILENT, Script

PREFLIGHT = PreflightRequest(lease="job-7", hosts=("a",), process_id=0, coordinator="10.0.0.1:8476")


@pytest.fixture
def patch() -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch


def _run(state: RunState = "running", **fields: Any) -> Run:
    return Run(id="r", kind="bench", state=state, created_at=NOW, request={}, **fields)


def _event(seq: int, state: RunState = "running", **fields: Any) -> bytes:
    fields = {"type": "state", **fields}
    event = RunEvent(seq=seq, at=NOW, run_id="r", state=state, **fields)
    return f"id: {seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()


# ---- the events of a run


def _follow(script: Script, after: int = 0) -> list[int]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return [event.seq for event in script.client(monkeypatch).run_events("r", after)]


@given(cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_wherever_bytes_and_streams_are_cut_every_event_comes_once(cuts: list[int]) -> None:
    text = b"".join([_event(seq, progress=Progress(done=seq, total=9, message="\u2028:")) for seq in range(1, 9)])
    whole = text + b": end\n\n" + _event(9, "succeeded")
    pieces = [whole[:cut] for cut in sorted(cuts)]
    streams = [[piece[:7], piece[7:], LOST] for piece in pieces]
    script = Script(*[_run()] * 99, streams=[*streams, [whole[:100], whole[100:]]])
    assert _follow(script) == list(range(1, 10))


def test_noise_in_a_stream_is_no_event() -> None:
    noise = b"data: nonsense\n\ndata\n\xff\xfe\ndata: {}\n\n" + _event(1, "succeeded").replace(b"\n", b"\r\n")
    assert _follow(Script(streams=[[noise]])) == [1]


def test_streams_that_never_get_through_become_polling_until_the_run_is_over(patch: Any) -> None:
    runs = [_run(progress=Progress(done=done, total=3)) for done in range(1, 4)] + [_run("succeeded")] * 2
    script, told = Script(*runs, streams=[httpx.Response(200, html="proxy") for _ in range(4)]), list[int]()
    client = script.client(patch)
    assert client.wait("r", on_progress=lambda progress: told.append(progress.done)).state == "succeeded"
    assert told == [1, 2, 3]
    assert script.pauses_s == [0.5, 1.0, 2.0]


def test_a_run_that_is_not_there_and_an_agent_that_is_gone_end_the_following() -> None:
    with pytest.raises(NotFoundError):
        _follow(Script(NotFoundError("no"), streams=[httpx.Response(404)]))
    with pytest.raises(AgentConnectionError):
        _follow(Script(*[REFUSED] * 3))


# ---- waiting


def test_waiting_ends_when_its_time_is_over_and_says_how_the_run_stands(patch: Any) -> None:
    script = Script(*[_run("queued")] * 99, streams=[[SILENT]] * 99)
    with pytest.raises(AgentTimeoutError, match="is over; it was queued"):
        script.client(patch).wait("r", timeout_s=100.0)
    assert script.now_s == pytest.approx(100.0, abs=0.5)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 1e-9])
def test_without_time_a_run_that_is_over_is_returned_and_another_is_not_waited_for(
    timeout_s: float, patch: Any
) -> None:
    over = Script(*[_run("succeeded")] * 2, streams=[[SILENT]])
    assert over.client(patch).wait("r", timeout_s=timeout_s).state == "succeeded"
    with pytest.raises(AgentTimeoutError, match="it was running"):
        Script(_run(), streams=[[SILENT]]).client(patch).wait("r", timeout_s=timeout_s)


@settings(max_examples=40)
@given(timeout_s=st.floats(0.5, 300), ping_s=st.floats(1, 44))
def test_a_talkative_run_keeps_nothing_waiting_longer_than_asked(timeout_s: float, ping_s: float) -> None:
    script = Script(*[_run()] * 9999, ping_s=ping_s)
    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(AgentTimeoutError):
        script.client(monkeypatch).wait("r", timeout_s=timeout_s)
    assert script.now_s == pytest.approx(timeout_s, abs=1e-6)


def test_a_final_event_that_overtakes_the_store_is_waited_for(patch: Any) -> None:
    script = Script(_run(), _run("succeeded"), streams=[[_event(1, "succeeded")]])
    assert script.client(patch).wait("r", timeout_s=9.0).state == "succeeded"
    assert script.pauses_s == [0.1]
    assert max(request.extensions["timeout"]["read"] for request in script.requests) <= 9.0


@pytest.mark.parametrize("call", [
    lambda client: client.bench(timeout_s=1.0), lambda client: client.plan("dp:8", timeout_s=1.0),
    lambda client: client.search("llama3-8b", {"global_batch_size": 8, "seq_len": 8}, timeout_s=1.0),
    lambda client: client.start_preflight(PREFLIGHT, timeout_s=1.0),
])  # fmt: skip
def test_the_time_limit_of_a_call_holds_for_its_first_answer_too(call: Any, patch: Any) -> None:
    script = Script(SILENT, SILENT, SILENT)
    with pytest.raises(AgentTimeoutError, match="in time: silence"):
        call(script.client(patch))
    assert script.requests[0].extensions["timeout"]["read"] == 1.0
    assert script.now_s <= 1.0


def test_progress_is_told_once_whether_it_came_by_event_or_by_polling(patch: Any) -> None:
    first, second = Progress(done=1, total=2), Progress(done=2, total=2)
    streams: list[Any] = [[_event(1, type="progress", progress=first), LOST], [LOST], [_event(2, "succeeded")]]
    script, told = Script(_run(progress=first), _run("succeeded", progress=second), streams=streams), list[int]()
    script.client(patch).wait("r", on_progress=lambda progress: told.append(progress.done))
    assert told == [1]


# ---- benches


def _bench(script: Script, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return script.client(monkeypatch).bench(**options)


def _finished(run: Run) -> Script:
    return Script(_run("queued"), run, streams=[[_event(1, run.state)]])


DIED = build_problem(UnavailableError("it died", log=["Fatal"], code="worker_failed"))
ENDED = build_problem(RunFailedError("shutting down", code="run_cancelled"))


@pytest.mark.parametrize(("run", "error", "said"), [
    (_run("failed"), RunFailedError, "does not say why"), (_run("cancelled"), RunFailedError, "was cancelled"),
    (_run("succeeded", result={"records": 3}), RunFailedError, "cannot be read"),
    (_run("failed", error=DIED), UnavailableError, "died"),
    (_run("cancelled", error=ENDED), RunFailedError, "shutting"),
])  # fmt: skip
def test_a_run_without_a_result_is_raised_as_its_own_error(run: Run, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        _bench(_finished(run))
    assert type(caught.value) is error
    assert caught.value.host == "http://a"  # type: ignore[attr-defined]
    if run.error is not None:
        assert caught.value.log == run.error.log  # type: ignore[attr-defined]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(1)])
def test_a_bench_that_is_interrupted_is_cancelled_on_the_agent(interruption: BaseException) -> None:
    script = Script(_run("queued"), _run("cancelled"), streams=[[_event(1), interruption]])
    with pytest.raises(type(interruption)):
        _bench(script)
    assert script.asked[-1] == "DELETE /runs/r"


def test_an_error_of_a_callback_cancels_the_bench_and_comes_out() -> None:
    def fail(progress: Progress) -> None:
        raise ZeroDivisionError

    progress = _event(1, type="progress", progress=Progress(done=1, total=2))
    script = Script(_run("queued"), *[LOST] * 2, streams=[[progress]])
    with pytest.raises(ZeroDivisionError):
        _bench(script, on_progress=fail)
    assert script.asked[-1] == "DELETE /runs/r"


# ---- the history of health

DEAD = [REFUSED] * 17


def _health_event(seq: int) -> HealthEvent:
    return HealthEvent(seq=seq, at=NOW, component="worker", kind="state", state="healthy")


def _frame(seq: int) -> bytes:
    return f"id: {seq}\nevent: state\ndata: {_health_event(seq).model_dump_json()}\n\n".encode()


def _history(*seqs: int, last: int = 0) -> HealthEvents:
    return HealthEvents(events=tuple(map(_health_event, seqs)), last_seq=max((last, *seqs)))


def _follow_health(script: Script, after: int | None = 0) -> list[int]:
    """What was told until the agent was gone."""
    told: list[int] = []
    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(AgentConnectionError):
        told.extend(event.seq for event in script.client(monkeypatch).follow_events(after))
    return told


def test_events_of_health_are_told_once_and_in_order_over_streams_that_break() -> None:
    script = Script(*DEAD, streams=[[_frame(1), _frame(2), LOST], [_frame(2), _frame(3)], []])
    assert _follow_health(script) == [1, 2, 3]
    resumed = [r.headers["Last-Event-ID"] for r in script.requests if r.url.path == "/events/stream"]
    assert resumed == ["0", "2", "3"]  # without a number an agent begins with news


def test_where_no_stream_gets_through_the_history_is_asked_less_and_less_often() -> None:
    streams = [httpx.Response(404) for _ in range(9)]
    script = Script(_history(1, 2), _history(3), _history(last=3), *DEAD, streams=streams)
    assert _follow_health(script) == [1, 2, 3]
    assert script.pauses_s[:3] == [0.5, 1.0, 2.0]


def test_a_history_that_begins_anew_is_told_from_its_first_event() -> None:
    """The agent's database was set aside: numbers are lower now, and what has them is news all the same."""
    script = Script(*DEAD, streams=[[_frame(1), _frame(2)], [_frame(2), _frame(3)], []])
    assert _follow_health(script, after=41) == [1, 2, 3]


def test_a_silent_stream_is_opened_again_without_a_pause() -> None:
    script = Script(_history(last=1), *DEAD, streams=[[_frame(1)], [SILENT], [_frame(2)], []])
    assert _follow_health(script) == [1, 2]
    assert script.pauses_s == [0.5, *[1.0] * 15]  # those of the agent that is gone
