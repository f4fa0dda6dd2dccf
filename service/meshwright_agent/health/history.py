"""The history of health: each change of a state and each reported fault, numbered, stored, and reported to listeners.

Noting an event never waits. One task writes what was noted; events that the store does not take are dropped and
counted, and what must be remembered is written again. Listeners read the store, so that a slow one costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from meshwright.errors import StoreUnavailableError
from meshwright.wire.health import Component, HealthEvent, HealthEvents, State
from meshwright_agent.clock import Clock
from meshwright_agent.health.memory import HealthMemory
from meshwright_agent.health.words import make_sendable
from meshwright_agent.store import HEALTH, Document, Store, StoredEvent, parse_bodies

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""How often observations are checked for their age, which makes events as well."""


class History:
    """Events of one host's health.

    Args:
        store: where they are kept.
        clock: tells the time.

    Attributes:
        memory: what must be remembered; written with the events when it has changed.
        lost_count: events that were dropped because the store did not take them.
        counts: events by component and kind, since the agent started.
    """

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self.memory = HealthMemory()
        self.lost_count = 0
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.last_seq = 0
        self._store = store
        self._clock = clock
        self._waiting: list[HealthEvent] = []
        self._stored_seq = 0
        self._news = asyncio.Event()
        self._is_closed = False

    async def recall(self) -> None:
        """Continues where the agent before this one ended; comes before the first event.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        self.last_seq = self._stored_seq = await self._store.last_seq(HEALTH)
        document = await self._store.get(HEALTH, "memory")
        try:
            self.memory.load(document.body if document else None)
        except ValidationError as error:
            log.error("what was remembered of the host's health cannot be read and is forgotten: %s", error)

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
        self._news.set()

    # writing

    async def run(self, on_tick: Callable[[datetime], None]) -> None:
        """Writes what is noted, for ever.

        Args:
            on_tick: called every second; what it finds out of date is an event.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._news.wait()
            try:
                on_tick(self._clock.now())
                self._news.clear()
                await self.flush()
            except StoreUnavailableError:
                await asyncio.sleep(TICK_S)
            except Exception:
                log.exception("the history of health was not kept")
                await asyncio.sleep(TICK_S)

    async def flush(self) -> None:
        """Writes everything that waits.

        Raises:
            StoreUnavailableError: the store does not take it: the events are dropped, what must be remembered stays.
        """
        if not self._waiting and not self.memory.is_dirty:
            return
        events, self._waiting = self._waiting, []
        documents = [Document(HEALTH, "memory", self.memory.dump())] if self.memory.is_dirty else []
        self.memory.is_dirty = False
        is_written = False
        try:
            await self._store.write(*documents, events=[*map(_build_event, events)])
            is_written = True
        finally:
            if is_written:
                self._stored_seq = events[-1].seq if events else self._stored_seq
            else:
                self.memory.is_dirty = self.memory.is_dirty or bool(documents)
                self.lost_count += len(events)
                if events:
                    log.warning("%d events of health are lost: the store did not take them", len(events))

    def end_following(self) -> None:
        """Ends the streams of listeners when they have everything: the agent shuts down."""
        self._is_closed = True
        self._store.announce()

    # reading

    async def list_events(
        self, *, after: int | None, limit: int, component: str | None = None, since: datetime | None = None
    ) -> HealthEvents:
        """Returns the first `limit` events numbered above `after`, or the newest for None; oldest first.

        `last_seq` is that of the newest stored event: a listener that continues from there misses none that is yet to
        be written.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        stored = self._stored_seq
        found = await self._store.list_events(
            HEALTH,
            after=after,
            limit=limit,
            where=("component", component),
            since=since.timestamp() if since else 0.0,
        )
        events = tuple(parse_bodies(HealthEvent, found))
        seen = (event.seq for event in events)
        known = after if after is not None and after <= self.last_seq else 0
        return HealthEvents(events=events, last_seq=max(stored, known, *seen))

    async def follow(self, after: int, component: str | None = None) -> AsyncIterator[HealthEvent]:
        """Yields events numbered above `after`: those that were, then those that come, until the agent stops.

        A number that was never given here is of another history, whose file is gone: then all that there are.

        Raises:
            StoreUnavailableError: as `list_events`.
        """
        after = after if after <= self.last_seq else 0
        stream = self._store.follow(HEALTH, after, is_live=lambda: not self._is_closed, where=("component", component))
        async with contextlib.aclosing(stream):
            async for row in stream:
                for event in parse_bodies(HealthEvent, [row]):
                    yield event


def _build_event(event: HealthEvent) -> StoredEvent:
    return StoredEvent(HEALTH, event.seq, event.at.timestamp(), event.model_dump_json())
