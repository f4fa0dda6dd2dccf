"""History on a real store: events are numbered through restarts, wait for a store that is down, and are followed."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshwright.wire.health import HealthEvent
from meshwright_agent.health import events as module
from meshwright_agent.health.events import Finding, History
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.store import HEALTH, LIMITS, Document, Limit, Store, StoreUnavailableError
from tests.fakes.stored import EPOCH, ManualClock
from tests.unit.store.opening import full_disk, opened


async def build(store: Store, clock: ManualClock | None = None) -> History:
    history = History(store, clock=clock or ManualClock())
    await history.recall()
    return history


def tell(history: History, component: str = "device:0", code: str = "xid_79") -> None:
    at = history._clock.now()
    history.record_fault(component, code, state="unhealthy", reason="it fell", action="reboot", at=at)


async def read(history: History, **query: Any) -> list[HealthEvent]:
    return list((await history.list_events(**({"after": 0, "limit": 1000} | query))).events)


async def test_each_change_of_a_state_is_one_event_with_what_was_before(store: Store) -> None:
    clock = ManualClock()
    history = await build(store, clock)
    board = HealthRegistry(stale_after_s=60, on_change=history.record_change)
    for state in ("healthy", "healthy", "degraded", "degraded", "healthy"):
        board.report("driver", Finding(state, f"it is {state}", "look"), at=clock.now())  # type: ignore[arg-type]
        clock.advance(1)
    clock.advance(100)
    board.settle(clock.now())
    board.settle(clock.now())
    await history.flush()
    events = await read(history)
    states = ["initializing", "healthy", "degraded", "healthy", "unknown"]
    assert [(event.before, event.state) for event in events] == list(itertools.pairwise(states))
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert "it is degraded" in events[1].reason


async def test_numbers_and_memory_go_on_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "db") as store:
        history = await build(store)
        tell(history)
        history.memory.record_boot("boot-1")
        await history.flush()
    async with opened(tmp_path / "db") as store:
        history = await build(store)
        tell(history)
        await history.flush()
        assert ((await read(history))[-1].seq, history.memory.boot_id) == (2, "boot-1")


async def test_since_when_a_component_is_ill_outlives_the_event_that_told_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, ("events", HEALTH), Limit(1, 10**6))
    clock = ManualClock()

    async def live(store: Store) -> tuple[HealthRegistry, History]:
        history = await build(store, clock)
        board = HealthRegistry(stale_after_s=60, on_change=history.record_change, memory=history.memory)
        board.report("device:0", Finding("unhealthy", "it fell"), at=clock.now())
        await history.flush()
        return board, history

    async with opened(tmp_path / "db") as store:
        _, history = await live(store)
        clock.advance(timedelta(days=40).total_seconds())
        for _ in range(3):  # other news, which leave no room for the old
            tell(history, "device:1")
        await history.flush()
        assert await read(history, component="device:0") == []
    async with opened(tmp_path / "db") as store:
        board, history = await live(store)
        assert board.component("device:0", clock.now()).since == EPOCH
        assert await read(history, component="device:0") == []


async def test_events_that_cannot_be_written_are_lost_and_what_must_be_remembered_is_written_later(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    history = await build(store)
    board = HealthRegistry(stale_after_s=60, on_change=history.record_change, memory=history.memory)
    board.report("device:0", Finding("unhealthy", "it fell"), at=EPOCH)
    with full_disk(store.path, "events"), pytest.raises(StoreUnavailableError):
        await history.flush()
    assert "1 events of health are lost" in caplog.text
    assert await store.get(HEALTH, "memory") is None
    await history.flush()
    assert await read(history) == []
    document = await store.get(HEALTH, "memory")
    assert document is not None
    assert '"device:0"' in document.body
    tell(history)
    await history.flush()
    assert [event.seq for event in await read(history)] == [2]


async def test_what_is_remembered_but_cannot_be_read_is_forgotten_and_the_agent_starts(store: Store) -> None:
    await store.write(Document(HEALTH, "memory", '{"faults": 3}'))
    assert (await build(store)).memory.faults == {}


async def test_events_are_asked_for_by_component_number_and_time(store: Store) -> None:
    clock = ManualClock()
    history = await build(store, clock)
    for number in range(6):
        tell(history, f"device:{number % 2}")
        clock.advance(10)
    await history.flush()

    async def seqs(**query: Any) -> list[int]:
        return [event.seq for event in await read(history, **query)]

    assert await seqs(component="device:1") == [2, 4, 6]
    assert await seqs(after=2, limit=2) == [3, 4]
    assert await seqs(after=None, limit=2) == [5, 6]
    assert await seqs(since=clock.now() - timedelta(seconds=20)) == [5, 6]
    assert await seqs(after=99) == [1, 2, 3, 4, 5, 6]  # a number of a history that is gone
    assert (await history.list_events(after=99, limit=1)).last_seq == 6


async def test_what_is_yet_to_be_written_is_not_passed_over_by_who_goes_on_from_the_last_number(store: Store) -> None:
    history = await build(store)
    assert (await history.list_events(after=None, limit=1)).last_seq == 0
    tell(history)
    await history.flush()
    tell(history)  # noted, not yet written
    known = await history.list_events(after=None, limit=10)
    assert ([event.seq for event in known.events], known.last_seq) == ([1], 1)
    await history.flush()
    assert [event.seq for event in await read(history, after=known.last_seq)] == [2]


async def test_a_number_of_another_history_begins_at_the_first_event_of_this_one(store: Store) -> None:
    history = await build(store)
    for _ in range(3):
        tell(history)
    await history.flush()
    history.end_following()
    assert [event.seq async for event in history.follow(3)] == []
    assert [event.seq async for event in history.follow(4)] == [1, 2, 3]


async def test_a_tick_that_fails_does_not_end_the_history(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    faults = iter((RuntimeError("a bug"),))

    def look(now: object) -> None:
        if fault := next(faults, None):
            raise fault

    history = await build(store)
    writing = asyncio.create_task(history.run(look))
    tell(history)
    while not await read(history):  # noqa: ASYNC110 -- nobody tells
        await asyncio.sleep(0.01)
    writing.cancel()
