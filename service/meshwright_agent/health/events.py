"""Events of health, and what must be remembered through restarts of the agent: states, faults, devices, counters.

Each change of a state and each reported fault is an event: numbered, stored, and sent to listeners. Recording an event
never waits: one task writes them; events that the store does not take are dropped and counted, and what must be
remembered is written again. Listeners read the store, so that a slow one costs nothing.

A state holds until another is recorded for its component; a fault stands until the host is booted anew or an operator
acknowledges it. A restart of the agent changes neither, and a boot changes no state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from meshwright.errors import StoreUnavailableError
from meshwright.wire.health import Component, HealthEvent, HealthEvents, State
from meshwright_agent.clock import Clock
from meshwright_agent.store import HEALTH, Document, Store, StoredEvent, parse_bodies

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fault:
    """Something reported of a component that does not pass by itself.

    Attributes:
        code: "xid_79".
        at: when it was reported last.
        count: how often.
    """

    component: str
    code: str
    state: State
    reason: str
    action: str
    at: datetime
    count: int = 1


@dataclass(frozen=True)
class KnownDevice:
    """A device that was seen here.

    Attributes:
        key: its strongest name.
    """

    key: str
    kind: str = ""
    pci_bus_id: str | None = None


@dataclass(frozen=True)
class Standing:
    """What was told of a component last, and since when that holds."""

    state: State
    since: AwareDatetime


@dataclass
class HealthMemory:
    """What outlives a restart of the agent; written whole, by the history, when it has changed.

    Attributes:
        states: component → what was told of it last; not derived from events, since old ones are deleted.
        wrong_results: device → what a bench computed wrongly on it, until one computes right.
        boot_id: of the boot that faults, baselines and the place in the log belong to.
        log_sequence: the newest record of the kernel log that was looked at.
        faults: component → code → the fault that stands.
        devices: key → the device that was seen here.
        baselines: component → counter → how far it stood when it was first looked at, or acknowledged.
        nvlinks: card → the most of its NVLinks that were up, in any boot: a reboot makes a lost link no new normal.
            0 is an operator's word that it has none.
        had_file: cards whose device file was here, likewise.
    """

    states: dict[str, Standing] = field(default_factory=dict)
    wrong_results: dict[str, str] = field(default_factory=dict)
    boot_id: str | None = None
    log_sequence: int | None = None
    faults: dict[str, dict[str, Fault]] = field(default_factory=dict)
    devices: dict[str, KnownDevice] = field(default_factory=dict)
    baselines: dict[str, dict[str, int]] = field(default_factory=dict)
    nvlinks: dict[str, int] = field(default_factory=dict)
    had_file: set[str] = field(default_factory=set)

    def load(self, text: str) -> None:
        """Takes what `dump` returned, in the place of what is here.

        Raises:
            pydantic.ValidationError: the text is not such a document.
        """
        self.__dict__ |= _MEMORY.validate_json(text).__dict__

    def dump(self) -> str:
        """Returns everything as JSON text."""
        return _MEMORY.dump_json(self).decode()

    def record_boot(self, boot_id: str | None) -> bool:
        """Takes the host's boot; returns whether it is another one, which ends counters, and faults by the caller."""
        before = self.boot_id
        if boot_id is None or boot_id == before:
            return False
        self.boot_id = boot_id
        if before is not None:
            self.log_sequence, self.baselines = None, {}
        return before is not None

    def add_fault(self, fault: Fault) -> None:
        """Keeps a fault, counted with those of its code before it; the newest words count."""
        faults = self.faults.setdefault(fault.component, {})
        before = faults.get(fault.code)
        faults[fault.code] = replace(fault, count=fault.count + (before.count if before else 0))

    def set_baseline(self, component: str, counter: str, value: int) -> None:
        """Keeps how far a counter stands."""
        self.baselines.setdefault(component, {})[counter] = value

    def forget_devices(self, keys: Iterable[str]) -> None:
        """Forgets devices, and what their cards had: they are not expected here any more."""
        for key in keys:
            self.wrong_results.pop(f"device:{key}", None)
            self.devices.pop(key, None)
            self.nvlinks.pop(key, None)
            self.had_file.discard(key)


_MEMORY: Final = TypeAdapter(HealthMemory)


TICK_S: Final = 1.0
"""How often observations are checked for their age, which makes events as well."""


class History:
    """Events of one host's health.

    Args:
        store: where they are kept.
        clock: tells the time.

    Attributes:
        memory: what must be remembered; written with the events when it has changed.
        last_seq: the number of the newest event, whether or not it is stored yet.
    """

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self.memory = HealthMemory()
        self.last_seq = 0
        self._store = store
        self._clock = clock
        self._waiting: list[HealthEvent] = []
        self._stored_seq = 0
        self._written = self.memory.dump()
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
            if document:
                self.memory.load(document.body)
        except ValidationError as error:
            log.error("what was remembered of the host's health cannot be read and is forgotten: %s", error)

    # noting

    def record_change(self, component: Component, before: State, at: datetime) -> None:
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

    def record_fault(self, component: str, code: str, *, state: State, reason: str, action: str, at: datetime) -> None:
        """Notes that driver or kernel reported something; `state` is the component's after it."""
        self._note(component=component, kind="fault", code=code, state=state, reason=reason, action=action, at=at)

    def record_acknowledged(self, component: str, *, state: State, reason: str, at: datetime) -> None:
        """Notes an operator's word."""
        self._note(component=component, kind="acknowledged", state=state, reason=reason, at=at)

    def _note(self, **fields: Any) -> None:
        self.last_seq += 1
        words = {name: make_sendable(fields.get(name, "")) for name in ("reason", "action")}
        self._waiting.append(HealthEvent(seq=self.last_seq, **fields | words))
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
        memory = self.memory.dump()
        if not self._waiting and memory == self._written:
            return
        events = tuple(self._waiting)
        documents = [Document(HEALTH, "memory", memory)] if memory != self._written else []
        try:
            await self._store.write(*documents, events=[*map(_build_event, events)])
        except StoreUnavailableError:
            del self._waiting[: len(events)]
            if events:
                log.warning("%d events of health are lost: the store did not take them", len(events))
            raise
        del self._waiting[: len(events)]
        self._written = memory
        self._stored_seq = events[-1].seq if events else self._stored_seq

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

    def follow(self, after: int, component: str | None = None) -> AsyncGenerator[HealthEvent, None]:
        """Returns events numbered above `after`: those that were, then those that come, until the agent stops.

        A number that was never given here is of another history, whose file is gone: then all that there are.

        Raises:
            StoreUnavailableError: as `list_events`.
        """
        after = after if after <= self.last_seq else 0
        where = ("component", component)
        return self._store.follow(HealthEvent, HEALTH, after, is_live=lambda: not self._is_closed, where=where)


def _build_event(event: HealthEvent) -> StoredEvent:
    return StoredEvent(HEALTH, event.seq, event.at.timestamp(), event.model_dump_json())


def make_sendable(text: str) -> str:
    """Returns the text; of a lone surrogate, as Python keeps a byte that is no UTF-8 (PEP 383), its escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text
