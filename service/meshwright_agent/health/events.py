"""Health events, and the memory that survives restarts of the agent: states, faults, devices, counters.

Each state change and each reported fault is an event: numbered, stored, and sent to listeners. Recording an event never
waits, because one task writes them. Events that the store does not accept are dropped and counted. The memory is
written again later. Listeners read the store, so that a slow listener does not use memory.

A state lasts until another state is recorded for its component. A fault lasts until the host reboots or an operator
acknowledges it. A restart of the agent changes neither. A reboot does not change states.
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

from meshwright.wire.health import WORST_FIRST, Component, HealthEvent, HealthEvents, Permanence, State
from meshwright_agent.clock import Clock
from meshwright_agent.store import HEALTH, Document, Store, StoredEvent, StoreUnavailableError, parse_bodies

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """The state of a component with the reason and the operator's action."""

    state: State
    reason: str
    action: str = ""
    permanence: Permanence | None = None


@dataclass(frozen=True)
class Fault:
    """A reported fault of a component that does not clear by itself.

    Attributes:
        at: when the fault was last reported.
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
    """A device that was seen on this host.

    Attributes:
        key: the device's strongest name.
    """

    key: str
    kind: str = ""
    pci_bus_id: str | None = None


@dataclass(frozen=True)
class Standing:
    """The last reported state of a component, and its start."""

    state: State
    since: AwareDatetime


@dataclass
class HealthMemory:
    """The state that outlives a restart of the agent. The history writes it as a whole after a change.

    Attributes:
        states: component → last reported state; not derived from events, because old events are deleted.
        wrong_results: device → measurement of a bench → its wrong result, until the same measurement is right.
        boot_id: the boot of the faults, the baselines and the position in the log.
        log_sequence: the newest record of the kernel log that was read.
        faults: component → code → the active fault.
        devices: key → the device that was seen on this host.
        baselines: component → counter → its value at the first probe or the last acknowledgement.
        nvlinks: card → the maximum number of its active NVLinks in any boot, so that a reboot does not hide a lost
            link. 0: an operator confirmed that the card does not have NVLinks.
        had_file: cards whose device file existed in any boot.
        nics: place of a network port that was up in any boot → its name.
    """

    states: dict[str, Standing] = field(default_factory=dict)
    wrong_results: dict[str, dict[str, str]] = field(default_factory=dict)
    boot_id: str | None = None
    log_sequence: int | None = None
    faults: dict[str, dict[str, Fault]] = field(default_factory=dict)
    devices: dict[str, KnownDevice] = field(default_factory=dict)
    baselines: dict[str, dict[str, int]] = field(default_factory=dict)
    nvlinks: dict[str, int] = field(default_factory=dict)
    had_file: set[str] = field(default_factory=set)
    nics: dict[str, str] = field(default_factory=dict)

    def load(self, text: str) -> None:
        """Replaces the memory by the output of `dump`.

        Raises:
            pydantic.ValidationError: the text does not have this form.
        """
        self.__dict__ |= _MEMORY.validate_json(text).__dict__

    def dump(self) -> str:
        """Returns everything as JSON text."""
        return _MEMORY.dump_json(self).decode()

    def record_boot(self, boot_id: str | None) -> bool:
        """Records the host's boot and returns whether it is new. A new boot ends counters; the caller ends faults."""
        before = self.boot_id
        if boot_id is None or boot_id == before:
            return False
        self.boot_id = boot_id
        if before is not None:
            self.log_sequence, self.baselines = None, {}
        return before is not None

    def add_fault(self, fault: Fault) -> None:
        """Adds a fault, counted with the earlier ones of its code. The newest text replaces one that is not worse."""
        faults = self.faults.setdefault(fault.component, {})
        before = faults.get(fault.code)
        worst = min((fault, before or fault), key=lambda each: WORST_FIRST.index(each.state))
        faults[fault.code] = replace(worst, at=fault.at, count=fault.count + (before.count if before else 0))

    def set_baseline(self, component: str, counter: str, value: int) -> None:
        """Stores the value of a counter."""
        self.baselines.setdefault(component, {})[counter] = value

    def forget_devices(self, keys: Iterable[str]) -> None:
        """Forgets devices and the records of their cards, because they are no longer expected."""
        for key in keys:
            self.wrong_results.pop(f"device:{key}", None)
            self.devices.pop(key, None)
            self.nvlinks.pop(key, None)
            self.had_file.discard(key)


_MEMORY: Final = TypeAdapter(HealthMemory)


TICK_S: Final = 1.0
"""Interval of the age checks of observations, which also create events."""


class History:
    """Events of one host's health.

    Attributes:
        memory: the state that survives restarts; written with the events when it has changed.
        last_seq: the number of the newest event, stored or not.
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
        """Restores the state of the previous agent. Call it before the first event.

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

    # recording

    def record_change(self, component: Component, before: State, at: datetime) -> None:
        """Records a state change of a component."""
        what = component.model_dump(include={"state", "reason", "action"})
        self._note(component=component.name, kind="state", before=before, at=at, **what)

    def record_fault(self, component: str, code: str, *, state: State, reason: str, action: str, at: datetime) -> None:
        """Records a fault reported by the driver or the kernel. `state` is the component's state after it."""
        self._note(component=component, kind="fault", code=code, state=state, reason=reason, action=action, at=at)

    def record_acknowledged(self, component: str, *, state: State, reason: str, at: datetime) -> None:
        """Records an operator's acknowledgement."""
        self._note(component=component, kind="acknowledged", state=state, reason=reason, at=at)

    def _note(self, **fields: Any) -> None:
        self.last_seq += 1
        words = {name: make_sendable(fields.get(name, "")) for name in ("reason", "action")}
        self._waiting.append(HealthEvent(seq=self.last_seq, **fields | words))
        self._news.set()

    # writing

    async def run(self, on_tick: Callable[[datetime], None]) -> None:
        """Writes recorded events until cancelled.

        Args:
            on_tick: called every second; it records an event for each outdated observation.
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
                log.exception("health events could not be recorded")
                await asyncio.sleep(TICK_S)

    async def flush(self) -> None:
        """Writes all pending events and the memory.

        Raises:
            StoreUnavailableError: the write failed. The events are dropped; the memory stays pending.
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
        """Ends the streams of listeners after their last event, because the agent shuts down."""
        self._is_closed = True
        self._store.announce()

    # reading

    async def list_events(
        self, *, after: int | None, limit: int, component: str | None = None, since: datetime | None = None
    ) -> HealthEvents:
        """Returns the first `limit` events numbered above `after`, or the newest for None; oldest first.

        `last_seq` is that of the newest stored event. A listener that continues from there after the last page does not
        miss pending events.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        stored = self._stored_seq
        after = after if after is None or after <= self.last_seq else 0
        found = await self._store.list_events(
            HEALTH, after=after, limit=limit, where=("component", component), since=since.timestamp() if since else 0.0
        )
        events = tuple(parse_bodies(HealthEvent, found))
        seen = (event.seq for event in events)
        return HealthEvents(events=events, last_seq=max(stored, after or 0, *seen))

    def follow(self, after: int) -> AsyncGenerator[HealthEvent, None]:
        """Returns events numbered above `after`: the stored ones, then new ones, until the agent stops.

        A number above the newest event comes from a deleted history. Then all events are returned.

        Raises:
            StoreUnavailableError: as `list_events`.
        """
        after = after if after <= self.last_seq else 0
        return self._store.follow(HealthEvent, HEALTH, after, is_live=lambda: not self._is_closed)


def _build_event(event: HealthEvent) -> StoredEvent:
    return StoredEvent(HEALTH, event.seq, event.at.timestamp(), event.model_dump_json())


def make_sendable(text: str) -> str:
    """Returns the text with lone surrogates escaped. Python uses these for bytes that are not UTF-8 (PEP 383)."""
    return text.encode(errors="backslashreplace").decode()
