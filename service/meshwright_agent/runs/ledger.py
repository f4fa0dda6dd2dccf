"""What is known of runs: those under way in memory, all in the store, and the ends that the store did not take.

Rule: a state is written down before it is told. Listeners read the store and are woken when it has grown, so a slow one
costs nothing, and history and present are one path. Knows no lane and no work: `runs` says what becomes of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final

from meshwright.errors import IdempotencyConflictError, RunNotFoundError
from meshwright.wire.runs import Run, RunEvent, RunState
from meshwright_agent.clock import Clock
from meshwright_agent.runs.live_run import LiveRun
from meshwright_agent.store.database import Store
from meshwright_agent.store.idempotency import KeyUse

_UNSAVED_MAX: Final = 100


class RunLedger:
    """Runs of one agent, as they are told."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._live: dict[str, LiveRun] = {}
        self._unsaved: dict[str, Run] = {}
        self._changed = asyncio.Event()

    # ---- what is told ----------------------------------------------------------------------------------

    async def get(self, run_id: str) -> Run:
        """Returns a run as it stands.

        Raises:
            RunNotFoundError: there is none with this id, or it is no longer kept.
            StoreUnavailableError: the store does not answer, and the run is not under way.
        """
        run = self._in_memory(run_id) or await self._store.get_run(run_id)
        if run is None:
            detail = f"there is no run {run_id[:80]!r} here; of finished runs only the last are kept"
            raise RunNotFoundError(detail, hint="GET /runs lists those that are there")
        return run

    async def list(self, *, limit: int, state: RunState | None) -> tuple[Run, ...]:
        """Returns at most `limit` runs, newest first, of one state if given; without their results."""
        stored = await self._store.list_runs(limit=limit, state=state)
        runs = (self._in_memory(run.id) or run for run in stored)
        return tuple(run.model_copy(update={"result": None}) for run in runs if state is None or run.state == state)

    def _in_memory(self, run_id: str) -> Run | None:
        live = self._live.get(run_id)
        return live.run if live is not None else self._unsaved.get(run_id)

    async def recall(self, use: KeyUse) -> Run | None:
        """Returns the run that a key made; None for a new key, or one whose run cannot be read any more.

        Raises:
            IdempotencyConflictError: the key was used for another request.
            StoreUnavailableError: the store does not answer.
        """
        known = await self._store.recall_key(use.key)
        if known is None:
            return None
        earlier, run_id = known
        if earlier != use:
            detail = f"the key {use.key!r} was used for another request, {run_id}; one key names one request"
            raise IdempotencyConflictError(detail, hint="send a new Idempotency-Key with a new request")
        return self._in_memory(run_id) or await self._store.get_run(run_id)

    async def events(self, run_id: str, after: int) -> AsyncIterator[RunEvent]:
        """Yields a run's events numbered above `after`: those that were, then those that come, to its end.

        Raises:
            RunNotFoundError, StoreUnavailableError: as `get`.
        """
        await self.get(run_id)
        while True:
            changed, is_live = self._changed, run_id in self._live
            events = await self._store.events_after(run_id, after)
            for event in events:
                after = event.seq
                yield event
            if not events and not is_live:
                break
            if not events:
                await changed.wait()
        if (run := self._unsaved.get(run_id)) is not None:
            yield RunEvent(seq=after + 1, at=self._clock.now(), type="state", run_id=run_id, state=run.state)

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- what is under way -----------------------------------------------------------------------------

    def live(self) -> Iterator[LiveRun]:
        """Yields the runs that have not ended, oldest first."""
        yield from self._live.values()

    def find_live(self, run_id: str) -> LiveRun | None:
        """Returns a run that has not ended."""
        return self._live.get(run_id)

    def add(self, live: LiveRun) -> None:
        """Takes a run that the store has."""
        self._live[live.run.id] = live

    def end(self, live: LiveRun, ended: Run) -> None:
        """Tells the end of a run, which was written down or kept."""
        del self._live[ended.id]
        live.run = ended
        live.ended.set()
        self._announce()

    # ---- what is written -------------------------------------------------------------------------------

    async def write(self, live: LiveRun, run: Run, *, key: KeyUse | None = None) -> None:
        """Writes a run with the events that the store does not have yet; they are kept where it takes none.

        Raises:
            StoreUnavailableError: it cannot be written.
        """
        events = live.take_events()
        if not events:
            return
        try:
            await self._store.save_run(run, events=events, key=key)
        except BaseException:
            live.put_back(events)
            raise
        self._announce()

    def keep(self, ended: Run) -> None:
        """Keeps an end that could not be written, for the agent's life; of many, the newest."""
        self._unsaved[ended.id] = ended
        while len(self._unsaved) > _UNSAVED_MAX:
            del self._unsaved[next(iter(self._unsaved))]

    async def save_kept(self) -> None:
        """Writes the ends that were kept.

        Raises:
            StoreUnavailableError: the store does not work yet.
        """
        for run in tuple(self._unsaved.values()):
            await self._store.finish_run(run)
            self._unsaved.pop(run.id, None)
