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
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from meshwright.errors import StoreUnavailableError
from meshwright.wire.health import Component, HealthEvent, HealthEvents, State
from meshwright_agent.clock import Clock
from meshwright_agent.store import HEALTH, Document, Store, StoredEvent, parse_bodies

log = logging.getLogger(__name__)

CONFIRMED_LOOKS: Final = 3
"""After so many looks, or a restart of the agent, a device that was seen is one that belongs here."""


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
        looks: count up to `CONFIRMED_LOOKS`.
        card: the key of the card that it is or is a part of; None: an earlier release did not write it.
    """

    key: str
    kind: str = ""
    pci_bus_id: str | None = None
    looks: int = 1
    card: str | None = None

    @property
    def is_named_by_place(self) -> bool:
        """True where the driver did not tell its uuid; of a TPU, always."""
        return self.key == self.pci_bus_id


@dataclass(frozen=True)
class Standing:
    """What was told of a component last, and since when that holds."""

    state: State
    since: AwareDatetime


def _read_or_forget(said: Any, read: ValidatorFunctionWrapHandler) -> Mapping[str, Standing]:
    """Returns no states where they cannot be read, such as those of a newer agent: faults are not lost for them."""
    try:
        states: Mapping[str, Standing] = read(said)
    except ValidationError as error:
        log.warning("since when components are in their states cannot be read and is forgotten: %s", error)
        return {}
    return states


@dataclass(frozen=True)
class Remembered:
    """All of it, as it is stored.

    Attributes:
        states: component → what was told of it; not derived from events, since those are deleted when they are old.
        wrong_results: device → what a bench computed wrongly on it, until one computes right.
        boot_id: of the boot that faults, counters and the place in the log belong to.
        log_sequence: the newest record of the kernel log that was looked at.
        counters: component → counter → how far it stood when it was first looked at, or acknowledged.
        nvlinks: card → the most of its NVLinks that were up, in any boot: a reboot makes a lost link no new normal.
            0 is an operator's word that it has none.
        had_file: cards whose device file was here, likewise.
    """

    states: Annotated[Mapping[str, Standing], WrapValidator(_read_or_forget)] = field(default_factory=dict)
    wrong_results: Mapping[str, str] = field(default_factory=dict)
    boot_id: str | None = None
    log_sequence: int | None = None
    faults: tuple[Fault, ...] = ()
    devices: tuple[KnownDevice, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    nvlinks: Mapping[str, int] = field(default_factory=dict)
    had_file: frozenset[str] = frozenset()


_REMEMBERED: Final = TypeAdapter(Remembered)


class HealthMemory:
    """Holds `Remembered` and says when it has changed."""

    def __init__(self) -> None:
        self.value = Remembered()
        self.is_dirty = False
        self._states: dict[str, Standing] = {}  # not in `value`, which is made anew at each change

    def load(self, text: str | None) -> None:
        """Takes what `dump` returned; devices in it have outlived a restart, so they are confirmed.

        What this life has told of a component already holds, whatever the text says of it.

        Raises:
            pydantic.ValidationError: the text is no such thing.
        """
        value = Remembered() if text is None else _REMEMBERED.validate_json(text)
        devices = tuple(replace(device, looks=CONFIRMED_LOOKS) for device in value.devices)
        self.value, self.is_dirty = replace(value, devices=devices, states={}), bool(self._states)
        self._states = {**value.states, **self._states}

    def dump(self) -> str:
        """Returns everything as JSON text."""
        return _REMEMBERED.dump_json(replace(self.value, states=self._states)).decode()

    def _change(self, value: Remembered) -> None:
        if value != self.value:
            self.value, self.is_dirty = value, True

    # states

    def standing(self, component: str) -> Standing | None:
        """Returns what was told of a component last; None: nothing, or it was gone since."""
        return self._states.get(component)

    def list_recorded(self) -> tuple[str, ...]:
        """Returns the components of which something was told."""
        return tuple(self._states)

    def note_state(self, component: str, state: State, since: datetime) -> None:
        """Keeps what is told of a component."""
        self._states[component] = Standing(state, since)
        self.is_dirty = True

    def forget_state(self, component: str) -> None:
        """Forgets what was told of a component: it is gone, and begins anew if it comes back."""
        if self._states.pop(component, None) is not None:
            self.is_dirty = True

    def forget_others(self, components: Collection[str]) -> None:
        """Forgets what was told of all but these components."""
        for component in self._states.keys() - set(components):
            self.forget_state(component)

    # wrong results

    def note_wrong(self, component: str, reason: str) -> None:
        """Keeps that a device computed something wrongly."""
        self._change(replace(self.value, wrong_results={**self.value.wrong_results, component: reason}))

    def clear_wrong(self, component: str) -> None:
        """Forgets what a device computed wrongly."""
        if component in self.value.wrong_results:
            kept = {name: reason for name, reason in self.value.wrong_results.items() if name != component}
            self._change(replace(self.value, wrong_results=kept))

    # boots, and the kernel log

    def note_boot(self, boot_id: str | None) -> bool:
        """Takes the host's boot; returns whether it is another one, which ends faults and counters."""
        before = self.value.boot_id
        if boot_id is None or boot_id == before:
            return False
        if before is None:
            self._change(replace(self.value, boot_id=boot_id))
            return False
        self._change(replace(self.value, boot_id=boot_id, log_sequence=None, faults=(), counters={}))
        return True

    def note_log(self, sequence: int | None) -> None:
        """Takes how far the kernel log was looked at."""
        if sequence is not None:
            self._change(replace(self.value, log_sequence=sequence))

    # faults

    def add_fault(self, fault: Fault) -> Fault:
        """Keeps a fault and returns it with how often it was reported; the newest words of one code count."""
        before = next((f for f in self.value.faults if (f.component, f.code) == (fault.component, fault.code)), None)
        kept = tuple(f for f in self.value.faults if f is not before)
        fault = replace(fault, count=fault.count + (before.count if before else 0))
        self._change(replace(self.value, faults=(*kept, fault)))
        return fault

    def clear_faults(self, component: str) -> None:
        """Forgets the faults of a component."""
        self._change(replace(self.value, faults=tuple(f for f in self.value.faults if f.component != component)))

    # counters that an operator has seen

    def baselines(self, component: str) -> Mapping[str, int]:
        """Returns how far counters stood when they were first looked at, or when an operator dealt with them."""
        return self.value.counters.get(component, {})

    def set_baselines(self, component: str, counters: Mapping[str, int]) -> None:
        """Keeps how far counters stand."""
        if counters:
            kept = {**self.baselines(component), **counters}
            self._change(replace(self.value, counters={**self.value.counters, component: kept}))

    # what cards had

    def note_nvlinks(self, card: str, active: int) -> int:
        """Takes how many NVLinks of a card are up; returns the most that were."""
        most = max(active, self.value.nvlinks.get(card, 0))
        if most > self.value.nvlinks.get(card, 0):
            self._change(replace(self.value, nvlinks={**self.value.nvlinks, card: most}))
        return most

    def accept_nvlinks(self, card: str) -> None:
        """Expects no more NVLinks of a card than come up from now on: an operator's word."""
        self._change(replace(self.value, nvlinks={**self.value.nvlinks, card: 0}))

    def forget_nvlinks(self, card: str) -> None:
        """Forgets what a card had: it is not expected here any more."""
        kept = {key: most for key, most in self.value.nvlinks.items() if key != card}
        self._change(replace(self.value, nvlinks=kept))

    def note_file(self, card: str) -> None:
        """Takes that a card's device file is here."""
        self._change(replace(self.value, had_file=self.value.had_file | {card}))

    def forget_file(self, card: str) -> None:
        """Expects a card's device file no more."""
        self._change(replace(self.value, had_file=self.value.had_file - {card}))

    # devices

    def note_devices(self, seen: Iterable[KnownDevice]) -> None:
        """Takes the devices that a look has listed."""
        known = {device.key: device for device in self.value.devices}
        for device in seen:
            before = known.get(device.key)
            looks = min(CONFIRMED_LOOKS, before.looks + 1) if before else 1
            known[device.key] = replace(device, looks=looks)
        self._change(replace(self.value, devices=tuple(known.values())))

    def forget_devices(self, keys: Iterable[str]) -> None:
        """Forgets devices: they are not expected here any more."""
        gone = set(keys)
        self._change(replace(self.value, devices=tuple(d for d in self.value.devices if d.key not in gone)))
        for key in gone:
            self.forget_nvlinks(key)
            self.forget_file(key)


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


def make_sendable(text: str) -> str:
    """Returns the text; of a lone surrogate, as Python keeps a byte that is no UTF-8 (PEP 383), its escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text
