"""The queue of runs: one at a time in each lane, a bounded number waiting, every end written down before it is told.

Rule: only this module changes a run's state; `ledger` keeps and tells it. Knows neither workers nor benches nor
compiles: how a run is done is the argument `execute`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Collection, Coroutine
from typing import Any, Final, get_args

from meshwright.errors import (
    DrainingError,
    InternalError,
    ProblemError,
    QueueFullError,
    StoreUnavailableError,
)
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import Run, RunEvent, RunKind, RunState
from meshwright_agent.clock import Clock
from meshwright_agent.runs.lane import LANE_OF, Lane, LaneName
from meshwright_agent.runs.ledger import RunLedger
from meshwright_agent.runs.live_run import Emit, Execute, LiveRun, Work, build_run_id
from meshwright_agent.store.database import Store
from meshwright_agent.store.idempotency import KeyUse
from meshwright_agent.store.runs import build_cancelled
from meshwright_agent.telemetry.durations import Durations
from meshwright_agent.worker.supervisor import CallCancelled

__all__ = ["Emit", "Execute", "RunQueue"]

STOP_WAIT_S: Final = 1.5
"""How long a cancel waits for a run to stop: within a release's bound."""
QUEUE_LIMIT: Final = 8
"""Runs that may wait in a lane; more are refused with 429."""

log = logging.getLogger(__name__)


class RunQueue:
    """Runs of one agent: submitted, executed one at a time in each lane, listened to, cancelled.

    Attributes:
        durations: by kind and state, how long they took that ended.
    """

    def __init__(
        self,
        store: Store,
        execute: Execute,
        *,
        clock: Clock,
        queue_limit: int = QUEUE_LIMIT,
        stop_wait_s: float = STOP_WAIT_S,
    ) -> None:
        """Makes a queue; `start` begins to work it off.

        Args:
            store: what must survive; `finish_interrupted` has been called on it.
            execute: does one run, unless its submission says how.
            clock: dates runs and events.
            queue_limit: runs that may wait in a lane beside the one that runs.
            stop_wait_s: how long `cancel`, `cancel_all` and `close` wait for runs to stop.
        """
        self._ledger = RunLedger(store, clock)
        self._execute = execute
        self._clock = clock
        self._queue_limit = queue_limit
        self._stop_wait_s = stop_wait_s
        self._lanes: dict[LaneName, Lane] = {name: Lane() for name in get_args(LaneName)}
        self._last_id = ""
        self._draining = False
        self._admission = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._workers: tuple[asyncio.Task[None], ...] = ()
        self.durations = Durations()

    @property
    def running(self) -> tuple[Run, ...]:
        """The runs that are being executed: at most one of each lane."""
        return tuple(lane.current.run for lane in self._lanes.values() if lane.current is not None)

    @property
    def queued_count(self) -> int:
        """How many runs wait."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    # ---- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to execute runs."""
        self._workers = tuple(asyncio.create_task(self._work(lane)) for lane in self._lanes.values())

    async def close(self, reason: str) -> None:
        """Takes no more runs; ends those that run or wait as cancelled with the reason. May be repeated."""
        self._draining = True
        async with self._admission:  # a submission under way ends first, so that it is cancelled too
            await self.cancel_all(reason)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for lane in self._lanes.values():
            if (live := lane.current) is not None:
                await self._end(live, build_cancelled(live.run, reason, self._clock.now()))
                lane.current = None
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- submit ----------------------------------------------------------------------------------------

    async def submit(
        self,
        kind: RunKind,
        request: dict[str, Any],
        *,
        key: str | None = None,
        execute: Execute | None = None,
        share: str | None = None,
    ) -> tuple[Run, bool]:
        """Returns a queued run and True, or one that was there and False: of this key, or one that is shared.

        A caller that is cancelled meanwhile leaves either a run that is stored and queued, or none.

        Args:
            kind: says which lane the run waits in.
            request: what was asked.
            key: of the caller's; it names a run of its own.
            execute: how this run is done; None: as the queue does runs.
            share: without a key, a run that waits or runs and was submitted with the same text is returned instead,
                also of submissions at once; None: each submission is a run of its own.

        Raises:
            IdempotencyConflictError: the key was used for another request.
            DrainingError: the queue is closing.
            QueueFullError: as many runs wait as may; `retry_after_s` says when to come back.
            StoreUnavailableError: the run cannot be stored, so it is not run.
        """
        use = None if key is None else KeyUse.of(key, kind, request)
        return await asyncio.shield(self._spawn(self._admit(kind, request, use, execute or self._execute, share)))

    async def recall(self, kind: RunKind, request: dict[str, Any], *, key: str) -> Run | None:
        """Returns the run that this key made; None for a new key.

        Raises:
            IdempotencyConflictError: the key was used for another request.
            StoreUnavailableError: the store does not answer.
        """
        return await self._ledger.recall(KeyUse.of(key, kind, request))

    async def _admit(
        self,
        kind: RunKind,
        request: dict[str, Any],
        use: KeyUse | None,
        execute: Execute,
        share: str | None,
    ) -> tuple[Run, bool]:
        async with self._admission:
            earlier = self._find_shared(kind, share) if use is None else await self._ledger.recall(use)
            if earlier is not None:
                return earlier, False
            lane = self._lanes[LANE_OF[kind]]
            self._require_room(lane)
            live = LiveRun(self._build_run(kind, request), execute, self._clock, share=share)
            await self._save_first(live, use)
            self._ledger.add(live)
            lane.add(live)
            return live.run, True

    def _find_shared(self, kind: RunKind, share: str | None) -> Run | None:
        """Returns the oldest run that is to be shared so; not one that was asked to stop."""
        if share is None:
            return None
        found = (live for live in self._ledger.live() if live.stop_reason is None)
        return next((live.run for live in found if (live.run.kind, live.share) == (kind, share)), None)

    async def _save_first(self, live: LiveRun, use: KeyUse | None) -> None:
        try:
            await self._ledger.write(live, live.run, key=use)
        except StoreUnavailableError as error:
            # The disk may have written it after all, later than we waited: it must not seem to wait for ever.
            self._ledger.keep(self._build_failed(live.run, error))
            raise

    def _require_room(self, lane: Lane) -> None:
        if self._draining:
            detail = "the agent is shutting down and takes no more runs"
            raise DrainingError(detail, hint="try again after its restart")
        if len(lane.waiting) >= self._queue_limit:
            detail = f"{len(lane.waiting)} runs wait; at most {self._queue_limit} may, and one runs at a time"
            hint = "try again after Retry-After, or cancel a run"
            raise QueueFullError(detail, hint=hint, retry_after_s=lane.estimate_wait_s(self._clock.now()))

    def _build_run(self, kind: RunKind, request: dict[str, Any]) -> Run:
        now = self._clock.now()
        self._last_id = build_run_id(self._last_id, now, secrets.token_hex(10))
        return Run(id=self._last_id, kind=kind, state="queued", created_at=now, request=request)

    # ---- read ------------------------------------------------------------------------------------------

    async def get(self, run_id: str) -> Run:
        """Returns a run as it stands.

        Raises:
            RunNotFoundError: there is none with this id, or it is no longer kept.
            StoreUnavailableError: the store does not answer, and the run is not under way.
        """
        return await self._ledger.get(run_id)

    async def list(self, *, limit: int = 50, state: RunState | None = None) -> tuple[Run, ...]:
        """Returns at most `limit` runs, newest first, of one state if given; without their results."""
        return await self._ledger.list(limit=limit, state=state)

    def events(self, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        """Yields a run's events numbered above `after`: those that were, then those that come, to its end.

        Raises:
            RunNotFoundError, StoreUnavailableError: as `get`.
        """
        return self._ledger.events(run_id, after)

    # ---- cancel ----------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, reason: str) -> Run:
        """Cancels a run and returns it when it has stopped; one that has ended stays as it is.

        One that does not stop within `stop_wait_s` is returned as it stands, and is cancelled when it stops.

        Raises:
            RunNotFoundError: there is none with this id.
        """
        if (live := self._ledger.find_live(run_id)) is not None:
            self._stop(live, reason)
            await self._wait_for_end((live,))
        return await self.get(run_id)

    def list_live(self, lane: LaneName) -> tuple[Run, ...]:
        """Returns the runs of a lane that wait or run, oldest first."""
        return tuple(live.run for live in self._ledger.live() if LANE_OF[live.run.kind] == lane)

    async def cancel_all(
        self, reason: str, *, lane: LaneName | None = None, only: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Cancels all that run or wait, of one lane and of these ids if given; returns the ids once they have stopped.

        Those that do not stop in time are among them, and are cancelled when they stop.
        """
        found = (live for live in self._ledger.live() if lane in (None, LANE_OF[live.run.kind]))
        stopping = tuple(live for live in found if only is None or live.run.id in only)
        for live in stopping:
            self._stop(live, reason)
        await self._wait_for_end(stopping)
        return tuple(live.run.id for live in stopping)

    def _stop(self, live: LiveRun, reason: str) -> None:
        live.stop(reason)
        if self._lane_of(live).remove(live):
            self._spawn(self._end(live, build_cancelled(live.run, reason, self._clock.now())))

    def _lane_of(self, live: LiveRun) -> Lane:
        return self._lanes[LANE_OF[live.run.kind]]

    async def _wait_for_end(self, stopping: tuple[LiveRun, ...]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_wait_s):
                for live in stopping:
                    await live.ended.wait()

    # ---- execute ---------------------------------------------------------------------------------------

    async def _work(self, lane: Lane) -> None:
        while True:
            await lane.work_here.wait()
            lane.work_here.clear()
            while lane.waiting:
                lane.current = lane.waiting.popleft()
                await self._run(lane.current)
                lane.current = None

    async def _run(self, live: LiveRun) -> None:
        live.run = live.run.model_copy(update={"state": "running", "started_at": self._clock.now()})
        live.note_state(live.run)
        work = asyncio.create_task(live.do(), context=live.context)
        live.begin(work)
        try:
            await self._follow(live, work)
            ended = self._judge(live, work)
        except Exception as error:  # the store, most likely; the queue goes on whatever befalls one run
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            ended = self._build_failed(live.run, error)
        await self._end(live, ended)

    async def _follow(self, live: LiveRun, work: Work) -> None:
        """Writes events as they come, until the work has ended."""
        await self._ledger.write(live, live.run)
        while not work.done():
            await live.news.wait()
            live.news.clear()
            await self._ledger.write(live, live.run)

    def _judge(self, live: LiveRun, work: Work) -> Run:
        """Returns the run as it ended. Asked to stop, it is cancelled in whichever way it stopped."""
        now = self._clock.now()
        error = None if work.cancelled() else work.exception() or live.fault
        if live.stop_reason is not None or work.cancelled():
            return build_cancelled(live.run, live.stop_reason or "its task ended early", now)
        if isinstance(error, CallCancelled):
            return build_cancelled(live.run, str(error), now)
        if error is not None:
            return self._build_failed(live.run, error)
        result, generation = work.result()
        done = {"state": "succeeded", "finished_at": now, "result": result, "generation": generation}
        return live.run.model_copy(update=done)

    def _build_failed(self, run: Run, error: BaseException) -> Run:
        if not isinstance(error, ProblemError):
            log.error("%s failed by a bug", run.id, exc_info=error)
            detail = f"{type(error).__name__} while executing {run.id}; this is a bug of the agent"
            error = InternalError(detail, hint="report it with the run's id; the agent's log has the traceback")
        failed = {"state": "failed", "finished_at": self._clock.now(), "error": build_problem(error)}
        return run.model_copy(update=failed)

    async def _end(self, live: LiveRun, ended: Run) -> None:
        """Writes the final state, then tells it. If that fails, memory keeps it for the agent's life."""
        live.note_state(ended)
        try:
            await self._ledger.write(live, ended)
        except Exception as error:
            log.error("%s ended as %s, which could not be stored: %s", ended.id, ended.state, error)
            self._ledger.keep(ended)
        if ended.started_at and ended.finished_at:
            took_s = (ended.finished_at - ended.started_at).total_seconds()
            self.durations.observe((ended.kind, ended.state), took_s)
            if ended.generation is not None:  # none of it was known already
                self._lane_of(live).note_took(took_s)
        self._ledger.end(live, ended)

    async def save_unsaved(self) -> None:
        """Writes the ends that could not be written when they came; to be called when the store works again.

        Raises:
            StoreUnavailableError: it does not.
        """
        await self._ledger.save_kept()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
