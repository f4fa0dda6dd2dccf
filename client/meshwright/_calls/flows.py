"""Procedures of several steps, shared by both clients: retry, follow a run, wait for it, bench, compile.

Each flow is a generator of steps. Its driver carries a step out, sends the outcome in, and throws in any interruption.
So a flow only decides: no I/O, no sleep, and the clock is an argument.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from meshwright._calls import calls
from meshwright._calls.building import Call
from meshwright._calls.endpoints import Endpoint
from meshwright._calls.messages import Answer, Failure, Outcome, Request
from meshwright._calls.outcomes import (
    RetryPolicy,
    build_error,
    build_problem_error,
    decide_retry,
    is_lost_answer,
    read_reply,
)
from meshwright._calls.sse import Frame, SseParser
from meshwright.errors import AgentTimeoutError, RunCancelledError, RunFailedError
from meshwright.wire.bench import BenchRecord, BenchResult
from meshwright.wire.runs import FINAL_STATES, Progress, Run, RunEvent

SILENCE_S: Final = 45.0
"""A stream without data for this time is closed and opened again: three of the agent's keep-alive intervals."""
SHORTEST_WINDOW_S: Final = 0.2
CANCEL_TIMEOUT_S: Final = 3.0
SETTLE_S: Final = 0.1
ACCEPTED: Final = 202
NOT_FOUND: Final = 404
RUN_HINT: Final = "the agent may have made the run all the same: see GET /runs before you ask again"
MIN_ANSWER_S: Final = 1.0
"""However near the deadline is, a request that is sent is given so long."""

T = TypeVar("T")


@dataclass(frozen=True)
class Send:
    """Step: send a request; the result is an Outcome. `timeout_s` None is the client's own."""

    request: Request
    timeout_s: float | None = None


@dataclass(frozen=True)
class Pause:
    """Step: wait; the result is None."""

    delay_s: float


@dataclass(frozen=True)
class Open:
    """Step: open a stream in place of the previous one; the result is an Outcome with an unread body."""

    request: Request
    silence_s: float


@dataclass(frozen=True)
class ReadChunk:
    """Step: read the next bytes of the stream; the result is bytes, None at its end, or a Failure."""


Step = Send | Pause | Open | ReadChunk
Flow = Generator[Step, Any, T]


@dataclass(frozen=True)
class Deadline:
    """When to give up: `at` on `clock`, or never."""

    at: float | None = None
    clock: Callable[[], float] = time.monotonic

    def left_s(self) -> float | None:
        """Returns the remaining seconds, at least 0; None without a limit."""
        return None if self.at is None else max(0.0, self.at - self.clock())

    @property
    def is_over(self) -> bool:
        """True once no time is left."""
        return self.left_s() == 0.0


@dataclass
class Contact:
    """What an agent has answered a client before: if it does not now, it is most likely being restarted."""

    answered: set[Endpoint[Any]] = field(default_factory=set)

    def knows(self, endpoint: Endpoint[Any], outcome: Outcome) -> bool:
        """Returns whether an unreachable agent was reachable before, or a not-ready agent was ready before."""
        return bool(self.answered) if isinstance(outcome, Failure) else endpoint in self.answered


@dataclass(frozen=True)
class Link:
    """The agent from the view of a flow: its address for messages, the retry policy, and the clock."""

    host: str
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    clock: Callable[[], float] = time.monotonic
    contact: Contact = field(default_factory=Contact)

    def build_deadline(self, timeout_s: float | None) -> Deadline:
        """Returns the deadline that is `timeout_s` from now."""
        return Deadline(None if timeout_s is None else self.clock() + timeout_s, self.clock)


class Observer:
    """What a caller wants to hear while a run goes on."""

    def __init__(
        self,
        on_progress: Callable[[Progress], object] | None = None,
        on_record: Callable[[BenchRecord], object] | None = None,
    ) -> None:
        self._on_progress = on_progress
        self._on_record = on_record
        self._last: Progress | None = None

    def notice(self, event: RunEvent) -> None:
        """Passes an event on; a record that this release cannot read is left to the result."""
        if event.type == "progress":
            self._notice_progress(event.progress)
        if event.type == "record" and event.record is not None and self._on_record is not None:
            with contextlib.suppress(ValidationError):
                self._on_record(BenchRecord.model_validate(event.record))

    def notice_run(self, run: Run) -> None:
        """Passes on the state of a polled run where it is new, since events may not get through."""
        if run.progress != self._last:
            self._notice_progress(run.progress)

    def _notice_progress(self, progress: Progress | None) -> None:
        self._last = progress
        if progress is not None and self._on_progress is not None:
            self._on_progress(progress)


def exchange(call: Call[T], link: Link, deadline: Deadline | None = None) -> Flow[T]:
    """Sends until there is an answer, or a retry is useless; returns the value of the answer."""
    answer = yield from _fetch(call, link, deadline)
    return call.read(answer, link.host)


def _fetch(call: Call[Any], link: Link, deadline: Deadline | None = None) -> Flow[Answer]:
    """Sends until there is an answer; one dead keep-alive connection does not count as a retry."""
    deadline = deadline or Deadline()
    policy = link.policy if call.endpoint.is_retried else replace(link.policy, max_retries=0)
    retries, stale, waited_s, is_lost = 0, 0, 0.0, False
    while True:
        outcome: Outcome = yield Send(call.request, _answer_time(deadline))
        if call.makes_run and is_lost_answer(outcome):
            raise build_error(outcome, call.request, link.host, hint=RUN_HINT)
        if call.gone is not None and is_lost and isinstance(outcome, Answer) and outcome.status == NOT_FOUND:
            return call.gone
        is_lost = is_lost or is_lost_answer(outcome)
        if isinstance(outcome, Failure) and outcome.kind == "stale" and not stale:
            stale = 1
            continue
        if isinstance(outcome, Answer) and outcome.status in call.statuses:
            link.contact.answered.add(call.endpoint)
            return outcome
        is_known = link.contact.knows(call.endpoint, outcome)
        delay_s = decide_retry(outcome, retries, policy, waited_s if is_known else None)
        left_s = deadline.left_s()
        if delay_s is None or (left_s is not None and delay_s >= left_s):
            raise build_error(outcome, call.request, link.host)
        yield Pause(delay_s)
        retries, waited_s = retries + 1, waited_s + delay_s


def _answer_time(deadline: Deadline) -> float | None:
    left_s = deadline.left_s()
    return None if left_s is None else max(left_s, MIN_ANSWER_S)


def follow(
    run_id: str,
    link: Link,
    *,
    emit: Callable[[RunEvent], object],
    after: int = 0,
    poll: Callable[[Run], object] | None = None,
    deadline: Deadline | None = None,
) -> Flow[None]:
    """Emits each event of a run once and in order, until its final state.

    A broken stream is opened again after the last received event. If a stream brings no event, the run itself is
    requested. This distinguishes a broken stream from a dead agent, and gives `poll` the progress if no stream works.

    Raises:
        MeshwrightError: the agent no longer answers, does not know the run, or the deadline has passed.
    """
    deadline, reader, fruitless = deadline or Deadline(), Reader(after, emit, RunEvent, _is_last), 0
    while True:
        seen = reader.last
        end = yield from listen(calls.run_events(run_id, seen).request, reader, deadline)
        if reader.is_final:
            return
        fruitless = 0 if reader.last > seen else fruitless + 1
        if not fruitless and not deadline.is_over:
            continue
        run = yield from exchange(calls.run(run_id), link, deadline)
        if run.state in FINAL_STATES and (end == "ended" or fruitless > link.policy.max_retries):
            return
        if poll is not None:
            poll(run)
        yield from _pause(0.0 if end == "silent" else link.policy.delay_s(max(0, fruitless - 1)), run, deadline, link)


def _is_last(event: RunEvent) -> bool:
    return event.type == "state" and event.state in FINAL_STATES


class Numbered(Protocol):
    """An event that counts up."""

    @property
    def seq(self) -> int:
        """Its number; the next one's is higher."""


E = TypeVar("E", bound=Numbered)


class Reader(Generic[E]):
    """The events read so far, over all streams.

    Args:
        last: the number of the last known event. Events up to it are not emitted again.
        emit: called with each event, once.
        model: the model of an event.
        is_last: whether no event comes after this one.
    """

    def __init__(
        self, last: int, emit: Callable[[E], object], model: type[E], is_last: Callable[[E], bool] = lambda event: False
    ) -> None:
        self.last = last
        self.is_final = False
        self._emit = emit
        self._adapter: TypeAdapter[E] = TypeAdapter(model)
        self._is_last = is_last

    def take(self, frame: Frame) -> None:
        """Emits the frame's event, unless it was seen before or is of an unknown kind."""
        with contextlib.suppress(ValidationError):
            self.note(self._adapter.validate_json(frame.data))

    def note(self, event: E) -> None:
        """Emits an event, unless it was seen before."""
        if event.seq > self.last:
            self.last = event.seq
            self.is_final = self._is_last(event)
            self._emit(event)


def listen(request: Request, reader: Reader[Any], deadline: Deadline) -> Flow[Literal["ended", "silent", "broken"]]:
    """Reads one stream to its end, and returns how it ended.

    The timeout of one read can be set only when a stream is opened. To keep a deadline, the timeout is a quarter of the
    remaining time. The stream is opened again when less than the timeout remains.
    """
    left_s = deadline.left_s()
    window_s = SILENCE_S if left_s is None else min(SILENCE_S, left_s, max(left_s / 4, SHORTEST_WINDOW_S))
    opened: Outcome = yield Open(request, window_s)
    if isinstance(opened, Failure) or opened.status != 200 or opened.media_type != "text/event-stream":
        return "broken"
    parser = SseParser()
    while not reader.is_final and (deadline.at is None or window_s <= (deadline.left_s() or 0.0)):
        chunk: bytes | Failure | None = yield ReadChunk()
        if isinstance(chunk, Failure):
            return "silent" if chunk.kind == "timeout" else "broken"
        if chunk is None:
            return "ended"
        for frame in parser.feed(chunk):
            reader.take(frame)
    return "silent"


def _pause(delay_s: float, run: Run, deadline: Deadline, link: Link) -> Flow[None]:
    left_s = deadline.left_s()
    if left_s == 0.0:
        raise AgentTimeoutError(
            f"{run.id} at {link.host} is still {run.state}; the time to wait for it is over",
            host=link.host,
            hint="give it a longer timeout_s",
        )
    if delay_s:
        yield Pause(delay_s if left_s is None else min(delay_s, left_s))


def wait(run_id: str, link: Link, observer: Observer, timeout_s: float | None) -> Flow[Run]:
    """Returns the run once its state is final.

    Raises:
        AgentTimeoutError: it is not, after `timeout_s`.
    """
    deadline = link.build_deadline(timeout_s)
    yield from follow(run_id, link, emit=observer.notice, poll=observer.notice_run, deadline=deadline)
    while True:
        run = yield from exchange(calls.run(run_id), link)
        if run.state in FINAL_STATES:
            return run
        yield from _pause(SETTLE_S, run, deadline, link)


def bench(submit: Call[Run], link: Link, observer: Observer, timeout_s: float | None) -> Flow[BenchResult]:
    """Submits a bench, waits for it, and returns its result. If the waiting ends early, the bench is cancelled.

    Raises:
        MeshwrightError: the run failed (its own error's class) or was cancelled, or the waiting ended early.
    """
    run = yield from exchange(submit, link)
    try:
        run = yield from wait(run.id, link, observer, timeout_s)
    except GeneratorExit:
        raise  # the driver is gone: no further step can be carried out
    except BaseException:
        yield Send(calls.cancel_run(run.id).request, CANCEL_TIMEOUT_S)
        raise
    return _read_bench(run, link.host)


def complete(call: Call[T], link: Link, observer: Observer, timeout_s: float | None) -> Flow[T]:
    """Returns the answer of a call, directly or (202) as the result of a run. The run continues if the waiting ends
    early.

    Raises:
        MeshwrightError: the run failed (its own error's class) or was cancelled, or is not over after `timeout_s`.
    """
    answer = yield from _fetch(call, link)
    if answer.status == ACCEPTED:
        accepted = read_reply(Run, answer, call.request, link.host)
        run = yield from wait(accepted.id, link, observer, timeout_s)
        body = json.dumps(read_result(run, link.host)).encode()
        answer = Answer(200, {"content-type": "application/json"}, body)
    return call.read(answer, link.host)


def _read_bench(run: Run, host: str) -> BenchResult:
    try:
        return BenchResult.model_validate(read_result(run, host))
    except ValidationError as error:
        raise RunFailedError(f"{run.id} succeeded, but its result cannot be read: {error}", host=host) from error


def read_result(run: Run, host: str) -> dict[str, Any]:
    """Returns the result of a finished run.

    Raises:
        RunCancelledError: the run was cancelled.
        ProblemError: the run failed: the class of its problem, or RunFailedError where it has none.
    """
    if run.state == "succeeded":
        return run.result or {}
    if run.error is None and run.state == "cancelled":
        raise RunCancelledError(f"{run.id} was cancelled", hint="submit it again", host=host)
    if run.error is None:
        raise RunFailedError(f"{run.id} failed and does not say why", hint="look at the agent's log", host=host)
    raise build_problem_error(run.error, host=host)
