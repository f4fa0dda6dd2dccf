"""Runs: long work, one at a time in each lane, with its events, its end, and the records of benches.

The task that runs a run owns its live state. A state is stored before it is reported. The task retries to store the end
of its run until it succeeds or the agent ends. In the latter case the next start ends the run as interrupted. The
argument `execute` does the work: this module does not depend on benches or compiles.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
from contextvars import copy_context
from datetime import datetime
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ValidationError

from meshwright.errors import NotFoundError, ProblemError, QueueFullError, RunFailedError, UnavailableError
from meshwright.wire.bench import BenchRecord, LatestBench
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import Progress, Run, RunEvent, RunKind, RunState
from meshwright_agent.clock import Clock
from meshwright_agent.metrics import RUN_DURATION
from meshwright_agent.store import (
    RECORD,
    RUN,
    Document,
    Store,
    StoredEvent,
    StoreUnavailableError,
    parse_bodies,
    parse_body,
)
from meshwright_agent.supervisor.supervisor import CallCancelled

LaneName = Literal["device", "compiler"]
LANE_OF: Final[Mapping[RunKind, LaneName]] = {
    "bench": "device",
    "preflight": "device",
    "plan": "compiler",
    "batch_size": "compiler",
}
"""A bench uses devices and a compile does not, so that both can run at the same time."""

STOP_WAIT_S: Final = 1.5
"""How long a cancel waits for a run to stop. It is less than the time limit of a release."""
MAX_WAITING: Final = 8
"""Maximum number of waiting runs in a lane. Further runs are rejected with 429."""
USUAL_RUN_S: Final = 20.0
"""The expected duration of a run before any run has succeeded: the time limit of the quick suite."""
FIRST_RETRY_S: Final = 0.5
MAX_RETRY_S: Final = 30.0
"""Maximum time between attempts to store the end of a run."""

log = logging.getLogger(__name__)

Done = dict[str, Any]
"""The result of a run as JSON."""
Emit = Callable[[dict[str, Any]], None]
"""Accepts {"done", "total", "message"} or {"record": {…}}, on the event loop. It never raises or waits."""
Execute = Callable[[Run, Emit], Coroutine[Any, Any, Done]]


class StoredRecord(BaseModel):
    """The stored form of a bench record: the newest of each case, axis, size, dtype and set of devices."""

    run_id: str
    record: BenchRecord


class LiveRun:
    """A run between its submission and its end.

    Attributes:
        context: the context of its submission, so that logs and traces of its work name the request.
        task: the task that runs it until its end is stored.
        work: its execution; None while it waits.
        stop_reason: why it was asked to stop; None if it was not.
        fault: an update that was neither progress nor a record: a bug, which fails the run.
        may_start: set when its lane is free for it, or when it is cancelled while it waits.
        changed: set when events wait to be written, or the work has ended.
        ended: set when the final state is stored.
    """

    def __init__(self, run: Run, execute: Execute, clock: Clock) -> None:
        self.run = run
        self.execute = execute
        self.context = copy_context()
        self.task: asyncio.Task[None]
        self.work: asyncio.Task[Done] | None = None
        self.stop_reason: str | None = None
        self.fault: ValidationError | None = None
        self.may_start = asyncio.Event()
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self._clock = clock
        self._seq = 0
        self.pending: list[RunEvent] = []
        self.record_state(run)

    def stop(self, reason: str) -> None:
        """Requests the end of the work, once: a second request would cut short how it ends. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self.work is not None:
                self.work.cancel()

    def emit(self, update: dict[str, Any]) -> None:
        """Adds the event of an update. Of unstored progress, only the newest is kept. A wrong update fails the run."""
        try:
            if isinstance(update, dict) and "record" in update:
                record = BenchRecord.model_validate(update["record"]).model_dump(mode="json")
                self._append("record", record=record)
            else:
                progress = Progress.model_validate(update)
                self.run = self.run.model_copy(update={"progress": progress})
                if self.pending and self.pending[-1].type == "progress":
                    self._seq = self.pending.pop().seq - 1
                self._append("progress", progress=progress)
        except ValidationError as error:
            self.fault = error
        self.changed.set()

    def record_state(self, run: Run) -> None:
        """Adds the event of a new state."""
        self._append("state", state=run.state)

    def _append(self, kind: str, **fields: Any) -> None:
        self._seq += 1
        known = {"seq": self._seq, "at": self._clock.now(), "type": kind}
        event = known | {"run_id": self.run.id, "state": self.run.state} | fields
        self.pending.append(RunEvent.model_validate(event))


class Lane:
    """The waiting runs of one worker, oldest first, and its current run."""

    def __init__(self) -> None:
        self.waiting: deque[LiveRun] = deque()
        self.current: LiveRun | None = None
        self.last_took_s = USUAL_RUN_S

    def advance(self) -> None:
        """Gives the lane to the next run if the lane is free."""
        if self.current is None and self.waiting:
            self.current = self.waiting.popleft()
            self.current.may_start.set()

    def estimate_wait_s(self, now: datetime) -> float:
        """Returns the last run's duration less the current run's time so far, at least 1. A place may then be free."""
        started_at = self.current.run.started_at if self.current else None
        had_s = (now - started_at).total_seconds() if started_at else 0.0
        return max(1.0, self.last_took_s - had_s)


class RunQueue:
    """Runs of one agent: submitted, executed one at a time in each lane, followed, cancelled."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lanes: dict[LaneName, Lane] = {name: Lane() for name in get_args(LaneName)}
        self._live: dict[str, LiveRun] = {}
        self._refused: set[str] = set()
        self._is_closing = asyncio.Event()
        self._admission = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> tuple[Run, ...]:
        """The running runs: at most one of each lane."""
        return tuple(lane.current.run for lane in self._lanes.values() if lane.current is not None)

    @property
    def queued_count(self) -> int:
        """The number of waiting runs."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    async def finish_interrupted(self) -> None:
        """Ends the stored runs with the state waiting or running, because none runs after a start.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        unfinished = await self._store.list_documents(RUN, states=("queued", "running"))
        for run in parse_bodies(Run, unfinished):
            now = self._clock.now()
            ended = _build_cancelled(run, "the agent stopped while this run was under way", now)
            seq = await self._store.last_seq(_name_stream(run.id)) + 1
            event = RunEvent(seq=seq, at=now, type="state", run_id=run.id, state=ended.state)
            await self._store.write(_build_document(ended), events=[_build_event(event)])

    async def close(self, reason: str) -> None:
        """Accepts no more runs. Cancels the running and waiting runs with the reason. Idempotent."""
        self._is_closing.set()
        async with self._admission:  # a current submission ends first, so that it is cancelled too
            await self.cancel_all(reason)
        for live in self._live.values():  # their work does not stop
            live.task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for live in tuple(self._live.values()):
            await self._store_end(live, _build_cancelled(live.run, reason, self._clock.now()))

    # ---- submit ------------------------------------------------------------------------------------------------

    async def submit(self, kind: RunKind, request: dict[str, Any], execute: Execute) -> Run:
        """Returns a queued run.

        If the caller is cancelled meanwhile, the run is either stored and queued, or does not exist.

        Raises:
            UnavailableError: the queue is closing.
            QueueFullError: the lane's queue is full. `retry_after_s` is the time to wait before a retry.
            StoreUnavailableError: the run cannot be stored, so it is not executed.
        """
        return await asyncio.shield(self._spawn(self._admit(kind, request, execute)))

    async def _admit(self, kind: RunKind, request: dict[str, Any], execute: Execute) -> Run:
        async with self._admission:
            lane = self._lanes[LANE_OF[kind]]
            self._require_room(lane)
            now = self._clock.now()
            run_id = f"run-{int(now.timestamp() * 1000):012x}{secrets.token_hex(10)}"
            run = Run(id=run_id, kind=kind, state="queued", created_at=now, request=request)
            live = LiveRun(run, execute, self._clock)
            try:
                await self._store_events(live, run)
            except StoreUnavailableError as error:
                if isinstance(error.__cause__, TimeoutError):
                    self._refused.add(run.id)
                raise
            self._live[run.id] = live
            lane.waiting.append(live)
            lane.advance()
            live.task = self._spawn(self._lead(live, lane))
            return live.run

    def _require_room(self, lane: Lane) -> None:
        if self._is_closing.is_set():
            detail = "the agent is shutting down and takes no more runs"
            raise UnavailableError(detail, hint="try again after its restart")
        if len(lane.waiting) >= MAX_WAITING:
            detail = f"{len(lane.waiting)} runs wait; at most {MAX_WAITING} may, and one runs at a time"
            hint = "try again after Retry-After, or cancel a run"
            raise QueueFullError(detail, hint=hint, retry_after_s=lane.estimate_wait_s(self._clock.now()))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- read --------------------------------------------------------------------------------------------------

    async def get(self, run_id: str) -> Run:
        """Returns the current state of a run.

        Raises:
            NotFoundError: no run has this id, or the run was deleted.
            StoreUnavailableError: the store does not answer, and the run is not live.
        """
        if (live := self._live.get(run_id)) is not None:
            return live.run
        document = await self._store.get(RUN, run_id)
        if document is None:
            detail = f"there is no run {run_id[:80]!r} here; of finished runs only the last are kept"
            raise NotFoundError(detail, hint="GET /runs lists those that are there")
        return self._settle(parse_body(Run, document))

    def _settle(self, run: Run) -> Run:
        """Returns a stored run; one that was refused, since the store did not answer, may be stored nevertheless."""
        reason = "the store did not answer when it was submitted"
        return _build_cancelled(run, reason, run.created_at) if run.id in self._refused else run

    async def list_runs(self, *, limit: int = 50, state: RunState | None = None) -> tuple[Run, ...]:
        """Returns at most `limit` runs, newest first, of one state if given; without their results."""
        documents = await self._store.list_documents(
            RUN, states=[state] if state else (), limit=limit, without="result", newest_first=True
        )
        stored = {run.id: self._settle(run) for run in parse_bodies(Run, documents)}
        live = {run_id: self._live[run_id].run for run_id in reversed(self._live)}
        found = {run_id: run for run_id, run in live.items() if run_id not in stored}  # it has them in another state
        found |= stored | live
        return tuple(run for run in found.values() if state is None or run.state == state)[:limit]

    async def list_succeeded(self, kind: RunKind, *, limit: int) -> tuple[Run, ...]:
        """Returns at most `limit` runs of a kind that succeeded, newest first."""
        documents = await self._store.list_documents(
            RUN, states=["succeeded"], where=("kind", kind), limit=limit, newest_first=True
        )
        return tuple(parse_bodies(Run, documents))

    def events(self, run_id: str, after: int = 0) -> AsyncGenerator[RunEvent, None]:
        """Returns a run's events numbered above `after`: the stored ones, then new ones, to its end.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        return self._store.follow(RunEvent, _name_stream(run_id), after, is_live=lambda: run_id in self._live)

    async def read_latest_bench(self) -> LatestBench:
        """Returns the newest record of each case, axis, axis size, dtype, size and set of devices."""
        now = self._clock.now()
        found = list(parse_bodies(StoredRecord, await self._store.list_documents(RECORD)))
        records = tuple(
            each.record.model_copy(update={"age_s": max(0.0, (now - each.record.observed_at).total_seconds())})
            for each in found
        )
        return LatestBench(records=records)

    # ---- cancel ------------------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, reason: str) -> Run:
        """Cancels a run and returns it when it has stopped. An ended run does not change.

        A run that does not stop within `STOP_WAIT_S` is returned in its current state. It is cancelled when it stops.

        Raises:
            NotFoundError: no run has this id.
        """
        if run_id in self._live:
            await self.cancel_all(reason, only=(run_id,))
        return await self.get(run_id)

    def list_live(self, lane: LaneName) -> tuple[Run, ...]:
        """Returns the waiting and running runs of a lane, oldest first."""
        return tuple(live.run for live in self._live.values() if LANE_OF[live.run.kind] == lane)

    async def cancel_all(
        self, reason: str, *, lane: LaneName | None = None, only: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Cancels the running and waiting runs, of one lane and of these ids if given; returns their ids.

        It returns once they have stopped. Runs that do not stop in time are included, and are cancelled when they stop.
        """
        found = (live for live in self._live.values() if lane in (None, LANE_OF[live.run.kind]))
        stopping = tuple(live for live in found if only is None or live.run.id in only)
        for live in stopping:
            live.stop(reason)
            waiting = self._lanes[LANE_OF[live.run.kind]].waiting
            if live in waiting:
                waiting.remove(live)
                live.may_start.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                for live in stopping:
                    await live.ended.wait()
        return tuple(live.run.id for live in stopping)

    # ---- execute -----------------------------------------------------------------------------------------------

    async def _lead(self, live: LiveRun, lane: Lane) -> None:
        """Runs one run from its turn until its end is stored."""
        await live.may_start.wait()
        try:
            if live.stop_reason is None:
                ended = await self._execute(live)
            else:
                ended = _build_cancelled(live.run, live.stop_reason, self._clock.now())
            await self._store_end(live, ended)
        finally:
            if lane.current is live:
                lane.current = None
                lane.advance()

    async def _execute(self, live: LiveRun) -> Run:
        """Returns the ended run and stores its events as they occur. Events that cannot be stored wait for the end."""
        live.run = live.run.model_copy(update={"state": "running", "started_at": self._clock.now()})
        live.record_state(live.run)
        live.work = work = asyncio.create_task(live.execute(live.run, live.emit), context=live.context)
        work.add_done_callback(lambda _: live.changed.set())
        live.changed.set()
        while not work.done():
            await live.changed.wait()
            live.changed.clear()
            try:
                await self._store_events(live, live.run)
            except StoreUnavailableError as error:
                log.warning("%s goes on, its events wait for the store: %s", live.run.id, error.detail)
        return self._build_ended(live, work)

    def _build_ended(self, live: LiveRun, work: asyncio.Task[Done]) -> Run:
        """Returns the ended run. After a stop request it counts as cancelled, however its work ended."""
        now = self._clock.now()
        error = None if work.cancelled() else work.exception() or live.fault
        if live.stop_reason is not None or work.cancelled():
            return _build_cancelled(live.run, live.stop_reason or "its task ended early", now)
        if isinstance(error, CallCancelled):
            return _build_cancelled(live.run, str(error), now)
        if error is None:
            return live.run.model_copy(update={"state": "succeeded", "finished_at": now, "result": work.result()})
        if not isinstance(error, ProblemError):
            log.error("%s failed by a bug", live.run.id, exc_info=error)
            detail = f"{type(error).__name__} while executing {live.run.id}; this is a bug of the agent"
            error = ProblemError(
                detail, hint="report it with the run's id; the agent's log has the traceback", code="internal"
            )
        failed = {"state": "failed", "finished_at": now, "error": build_problem(error)}
        return live.run.model_copy(update=failed)

    async def _store_end(self, live: LiveRun, ended: Run) -> None:
        """Stores the final state, then reports it. Retries until it succeeds or the agent ends."""
        live.record_state(ended)
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._store_events(live, ended)
                break
            except StoreUnavailableError as error:
                log.error("%s ended as %s, which cannot be stored yet: %s", ended.id, ended.state, error.detail)
            if self._is_closing.is_set():
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    await self._is_closing.wait()
            retry_s = min(2 * retry_s, MAX_RETRY_S)
        if ended.started_at and ended.finished_at:
            duration_s = (ended.finished_at - ended.started_at).total_seconds()
            RUN_DURATION.labels(ended.kind, ended.state).observe(max(0.0, duration_s))
            if ended.state == "succeeded" and ended.kind != "preflight" and duration_s > 1:  # not a stored result
                self._lanes[LANE_OF[ended.kind]].last_took_s = duration_s
        del self._live[ended.id]
        live.run = ended
        live.ended.set()
        self._store.announce()

    async def _store_events(self, live: LiveRun, run: Run) -> None:
        """Stores a run with its pending events. The events stay pending if the write fails.

        Raises:
            StoreUnavailableError: nothing was stored.
        """
        events, live.pending = live.pending, []
        if not events:
            return
        records = [_build_record(run.id, event.record) for event in events if event.record is not None]
        try:
            await self._store.write(_build_document(run), *records, events=[*map(_build_event, events)])
        except BaseException:
            live.pending = events + live.pending
            raise


def _name_stream(run_id: str) -> str:
    return f"{RUN}/{run_id}"


def _build_document(run: Run) -> Document:
    return Document(RUN, run.id, run.model_dump_json(), run.state, keeps_place=True)


def _build_event(event: RunEvent) -> StoredEvent:
    return StoredEvent(_name_stream(event.run_id), event.seq, event.at.timestamp(), event.model_dump_json())


def _build_record(run_id: str, fields: Mapping[str, Any]) -> Document:
    record = BenchRecord.model_validate(fields)
    key = json.dumps(identify_record(record))
    return Document(RECORD, key, StoredRecord(run_id=run_id, record=record).model_dump_json())


def identify_record(record: BenchRecord) -> tuple[object, ...]:
    """Returns the key of a record. A newer record with the same key replaces it."""
    return record.case, record.axis, record.axis_size, record.dtype, record.size_bytes, record.device_indices


def _build_cancelled(run: Run, reason: str, at: datetime) -> Run:
    """Returns the cancelled run with the reason in its error."""
    error = RunFailedError(f"{run.id} was cancelled: {reason}", hint="submit it again", code="run_cancelled")
    return run.model_copy(update={"state": "cancelled", "finished_at": at, "error": build_problem(error)})
