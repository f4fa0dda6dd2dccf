"""The history of health: each change of a state and each reported fault, numbered, stored, told to listeners.

Rule: noting an event never waits. One task writes what was noted, in batches; while the store does not answer, events
wait in memory, and those for which there is no room are counted. Listeners read the store, so that one who never reads
costs nothing. Knows neither checks nor HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from meshwright.errors import StoreUnavailableError
from meshwright.wire.health import Component, HealthEvent, HealthEvents, State
from meshwright_agent.clock import Clock
from meshwright_agent.health.memory import HealthMemory
from meshwright_agent.health.words import make_sendable
from meshwright_agent.store.database import Store
from meshwright_agent.store.health_events import MEMORY

log = logging.getLogger(__name__)

MOST_WAITING: Final = 2000
"""Events in memory that the store has not taken: some 1 MB."""
BATCH: Final = 256
RETRY_S: Final = 1.0
TICK_S: Final = 1.0
"""How often it is looked whether an observation has grown too old, which is an event as well."""


class History:
    """Events of one host's health.

    Args:
        clock: tells the time to `on_tick`.
        keep: events that are kept.
        on_tick: called every second; what it finds out of date is an event.

    Attributes:
        memory: what must be remembered; written with the events when it has changed.
        lost_count: events that were dropped because the store did not answer for too long.
        counts: events by component and kind, since the agent started.
    """

    def __init__(self, *, clock: Clock, keep: int, on_tick: Callable[[datetime], None] | None = None) -> None:
        self.memory = HealthMemory()
        self.lost_count = 0
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.last_seq = 0
        self._clock = clock
        self._keep = keep
        self._on_tick = on_tick
        self._store: Store | None = None
        self._waiting: deque[HealthEvent] = deque()
        self._in_flight = 0
        self._stored_seq = 0
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        """Events that the store has not taken yet."""
        return len(self._waiting)

    async def open(self, store: Store) -> None:
        """Takes up where the agent before this one ended.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        stored = await store.read_health()
        try:
            self.memory.load(stored.memory)
        except ValidationError as error:
            log.error("what was remembered of the host's health cannot be read and is forgotten: %s", error)
            store.note_forgotten(MEMORY, str(error))
        self.last_seq = stored.last_seq + len(self._waiting)
        renumbered = [
            event.model_copy(update={"seq": stored.last_seq + number}) for number, event in enumerate(self._waiting, 1)
        ]
        self._waiting = deque(renumbered)
        self._stored_seq = stored.last_seq
        self._store = store

    # noting

    def note_change(self, component: Component, before: State, at: datetime) -> None:
        """Notes that a component has another state than before."""
        self._note(
            component=component.name,
            kind="state",
            state=component.state,
            before=before,
            reason=component.reason,
            action=component.action,
            permanence=component.permanence,
            at=at,
        )

    def note_fault(self, component: str, code: str, *, state: State, reason: str, action: str, at: datetime) -> None:
        """Notes that driver or kernel reported something; `state` is the component's after it."""
        self._note(component=component, kind="fault", code=code, state=state, reason=reason, action=action, at=at)

    def note_acknowledged(self, component: str, *, state: State, reason: str, at: datetime) -> None:
        """Notes an operator's word."""
        self._note(component=component, kind="acknowledged", state=state, reason=reason, at=at)

    def _note(self, **fields: Any) -> None:
        self.last_seq += 1
        words = {name: make_sendable(fields.get(name, "")) for name in ("reason", "action")}
        self._waiting.append(HealthEvent(seq=self.last_seq, **fields | words))
        self.counts[fields["component"], fields["kind"]] += 1
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[self._in_flight]  # what the store is just being given may be written yet
            self.lost_count += 1
        self._news.set()

    # writing

    async def run(self) -> None:
        """Writes what is noted, for ever; a store that does not answer is tried again."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._news.wait()
            try:
                is_kept = await self._turn()
            except Exception:
                log.exception("the history of health was not kept")
                is_kept = False
            if not is_kept:
                await asyncio.sleep(RETRY_S)

    async def _turn(self) -> bool:
        """Looks at the time, then writes what waits; returns whether that went well."""
        if self._on_tick is not None:
            self._on_tick(self._clock.now())
        self._news.clear()
        return await self.flush()

    async def flush(self) -> bool:
        """Writes everything that waits; returns False, and keeps it, where the store does not take it."""
        while self._waiting or self.memory.is_dirty:
            batch = [self._waiting[place] for place in range(min(BATCH, len(self._waiting)))]
            memory = self.memory.dump() if self.memory.is_dirty else None
            self.memory.is_dirty = False
            is_written = False
            self._in_flight = len(batch)
            try:
                is_written = await self._write(batch, memory)
            finally:
                self._in_flight = 0
                self.memory.is_dirty = self.memory.is_dirty or (memory is not None and not is_written)
            if not is_written:
                return False
            for event in batch:
                self._waiting.popleft()
                self._stored_seq = event.seq
            self._announce()
        return True

    async def _write(self, batch: list[HealthEvent], memory: str | None) -> bool:
        if self._store is None:
            return False
        try:
            await self._store.save_health(batch, memory=memory, keep=self._keep)
        except StoreUnavailableError as error:
            log.warning("%d events of health wait for the store: %s", len(self._waiting), error)
            return False
        return True

    def _announce(self) -> None:
        written, self._written = self._written, asyncio.Event()
        written.set()

    def end_following(self) -> None:
        """Lets listeners go when they have everything: the agent shuts down."""
        self._is_closed = True
        self._announce()

    # reading

    async def list_events(
        self, *, after: int | None, limit: int, component: str | None = None, since: datetime | None = None
    ) -> HealthEvents:
        """Returns the first `limit` events numbered above `after`, or the newest for None; oldest first.

        `last_seq` is of the newest that the store has: who goes on from there misses none that is yet to be written.

        Raises:
            StoreUnavailableError: the store does not answer, or the agent has not started.
        """
        store, stored = self._require_store(), self._stored_seq
        events = await store.list_health_events(after=after, limit=limit, component=component, since=since)
        seen = (event.seq for event in events)
        known = after if after is not None and after <= self.last_seq else 0
        return HealthEvents(events=events, last_seq=max(stored, known, *seen))

    async def follow(self, after: int, component: str | None = None) -> AsyncIterator[HealthEvent]:
        """Yields events numbered above `after`: those that were, then those that come, until the agent stops.

        A number that was never given here is of another history, whose file is gone: then all that there are.

        Raises:
            StoreUnavailableError: as `list_events`.
        """
        store = self._require_store()
        after = after if after <= self.last_seq else 0
        while True:
            written = self._written
            events = await store.list_health_events(after=after, limit=BATCH, component=component)
            for event in events:
                after = event.seq
                yield event
            if not events and self._is_closed:
                return
            if not events:
                await written.wait()

    def require_open(self) -> None:
        """Passes if events can be read.

        Raises:
            StoreUnavailableError: the agent has not started.
        """
        self._require_store()

    def _require_store(self) -> Store:
        if self._store is None:
            raise StoreUnavailableError("the store is not open", hint="wait until GET /readyz answers 200")
        return self._store
