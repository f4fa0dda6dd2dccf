"""History on a real store: events are numbered through restarts, wait for a store that is down, and are followed."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import StoreUnavailableError
from meshwright.wire.health import HealthEvent
from meshwright_agent.health import history as module
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.health.history import History
from meshwright_agent.store.database import Store
from tests.fakes.stored import EPOCH, ManualClock
from tests.unit.store.opening import held, opened, run_with_store


def build(clock: ManualClock | None = None, **options: Any) -> History:
    return History(**({"clock": clock or ManualClock(), "keep": 100} | options))


def tell(history: History, component: str = "device:0", code: str = "xid_79") -> None:
    at = history._clock.now()
    history.note_fault(component, code, state="unhealthy", reason="it fell", action="reboot", at=at)


async def until(question: Callable[[], bool]) -> None:
    for _ in range(3000):
        if question():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


async def read(history: History, **query: Any) -> list[HealthEvent]:
    return list((await history.list_events(**({"after": 0, "limit": 1000} | query))).events)


def test_each_change_of_a_state_is_one_event_with_what_was_before(tmp_path: Path) -> None:
    async def test(store: Store) -> list[HealthEvent]:
        clock = ManualClock()
        history = build(clock)
        await history.open(store)
        board = HealthBoard(stale_after_s=60, on_change=history.note_change)
        for state in ("healthy", "healthy", "degraded", "degraded", "healthy"):
            board.report("driver", state, f"it is {state}", at=clock.now(), action="look")  # type: ignore[arg-type]
            clock.advance(1)
        clock.advance(100)
        board.settle(clock.now())
        board.settle(clock.now())
        await history.flush()
        return await read(history)

    events = run_with_store(tmp_path / "db", test)
    states = [(event.before, event.state) for event in events]
    assert states == [
        ("initializing", "healthy"),
        ("healthy", "degraded"),
        ("degraded", "healthy"),
        ("healthy", "unknown"),
    ]
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert "it is degraded" in events[1].reason


def test_numbers_and_memory_go_on_after_a_restart_even_when_all_events_are_gone(tmp_path: Path) -> None:
    async def first(store: Store) -> None:
        history = build()
        await history.open(store)
        tell(history)
        history.memory.note_boot("boot-1")
        assert await history.flush()

    async def second(store: Store) -> tuple[int, str | None]:
        history = build()
        await history.open(store)
        assert await read(history) == []
        tell(history)
        await history.flush()
        return (await read(history))[0].seq, history.memory.value.boot_id

    run_with_store(tmp_path / "db", first)
    with contextlib.closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM health_events")
    assert run_with_store(tmp_path / "db", second) == (2, "boot-1")


def test_since_when_a_component_is_ill_outlives_the_event_that_told_it(tmp_path: Path) -> None:
    clock = ManualClock()

    async def live(store: Store) -> tuple[HealthBoard, History]:
        history = build(clock, keep=1)
        await history.open(store)
        board = HealthBoard(stale_after_s=60, on_change=history.note_change, memory=history.memory)
        board.report("device:0", "unhealthy", "it fell", at=clock.now())
        return board, history

    async def first(store: Store) -> None:
        _, history = await live(store)
        await history.flush()
        clock.advance(timedelta(days=40).total_seconds())
        for _ in range(3):  # other news, which leave no room for the old
            tell(history, "device:1")
        await history.flush()
        assert await read(history, component="device:0") == []

    async def second(store: Store) -> None:
        board, history = await live(store)
        assert board.component("device:0", clock.now()).since == EPOCH
        assert (history.waiting_count, await read(history, component="device:0")) == (0, [])

    run_with_store(tmp_path / "db", first)
    run_with_store(tmp_path / "db", second)


def test_a_state_and_its_event_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    def spoil(statement: str) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "db")) as connection:
            connection.execute(statement)
            connection.commit()

    async def test(store: Store) -> None:
        history = build()
        await history.open(store)
        board = HealthBoard(stale_after_s=60, on_change=history.note_change, memory=history.memory)
        board.report("device:0", "unhealthy", "it fell", at=EPOCH)
        spoil("CREATE TRIGGER full BEFORE INSERT ON health_memory BEGIN SELECT RAISE(ABORT, 'full'); END")
        assert not await history.flush()
        assert await read(history) == []
        spoil("DROP TRIGGER full")
        assert await history.flush()
        assert [event.component for event in await read(history)] == ["device:0"]
        assert '"device:0"' in ((await store.read_health()).memory or "")

    run_with_store(tmp_path / "db", test)


def test_what_is_remembered_but_cannot_be_read_is_forgotten_and_the_agent_starts(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        await store.save_health([], memory='{"faults": 3}', keep=1)
        history = build()
        await history.open(store)
        assert history.memory.value.faults == ()

    run_with_store(tmp_path / "db", test)


def test_events_wait_for_a_store_that_is_down_and_none_is_lost(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "db", timeout_s=0.2) as store:
            history = build()
            await history.open(store)
            with held(tmp_path / "db"):
                for _ in range(3):
                    tell(history)
                assert not await history.flush()
                assert history.waiting_count == 3
            for _ in range(300):
                if await history.flush():
                    break
                await asyncio.sleep(0.1)
            assert [event.seq for event in await read(history)] == [1, 2, 3]
            assert (history.waiting_count, history.lost_count) == (0, 0)

    asyncio.run(test())


def test_events_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    history = build()
    for _ in range(8):
        tell(history)
    assert (history.waiting_count, history.lost_count, history.last_seq) == (5, 3, 8)


def test_an_event_that_the_store_is_just_taking_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)

    async def test(store: Store) -> tuple[list[int], int]:
        history = build()
        await history.open(store)
        for _ in range(3):
            tell(history)
        writing = asyncio.create_task(history.flush())
        await asyncio.sleep(0)  # the first three are on their way
        for _ in range(4):
            tell(history)
        assert [event.seq for event in history._waiting] == [1, 2, 3, 6, 7]
        assert await writing
        return [event.seq for event in await read(history)], history.lost_count

    assert run_with_store(tmp_path / "db", test) == ([1, 2, 3, 6, 7], 2)


def test_only_so_many_events_are_kept(tmp_path: Path) -> None:
    async def test(store: Store) -> list[int]:
        history = build(keep=3)
        await history.open(store)
        for _ in range(10):
            tell(history)
        await history.flush()
        return [event.seq for event in await read(history)]

    assert run_with_store(tmp_path / "db", test) == [8, 9, 10]


def test_events_are_asked_for_by_component_number_and_time(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        clock = ManualClock()
        history = build(clock)
        await history.open(store)
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
        assert (await history.list_events(after=99, limit=1)).last_seq == 6

    run_with_store(tmp_path / "db", test)


def test_what_is_yet_to_be_written_is_not_passed_over_by_who_goes_on_from_the_last_number(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        history = build()
        await history.open(store)
        tell(history)
        await history.flush()
        tell(history)  # noted, not yet written
        known = await history.list_events(after=None, limit=10)
        assert ([event.seq for event in known.events], known.last_seq) == ([1], 1)
        await history.flush()
        assert [event.seq for event in await read(history, after=known.last_seq)] == [2]

    run_with_store(tmp_path / "db", test)


def test_the_last_number_never_goes_back_behind_what_was_asked_for(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        history = build()
        await history.open(store)
        for _ in range(2):
            tell(history)
        await store.save_health(tuple(history._waiting), memory=None, keep=9)
        assert (await history.list_events(after=0, limit=10)).last_seq == 2
        assert (await history.list_events(after=2, limit=10)).last_seq == 2

    run_with_store(tmp_path / "db", test)


def test_a_number_of_another_history_begins_at_the_first_event_of_this_one(tmp_path: Path) -> None:
    async def test(store: Store) -> list[int]:
        history = build()
        await history.open(store)
        for _ in range(3):
            tell(history)
        await history.flush()
        history.end_following()
        assert [event.seq async for event in history.follow(3)] == []
        return [event.seq async for event in history.follow(4)]

    assert run_with_store(tmp_path / "db", test) == [1, 2, 3]


def test_words_that_are_no_utf_8_are_kept_and_do_not_end_the_history(tmp_path: Path) -> None:
    async def test(store: Store) -> list[str]:
        history = build()
        await history.open(store)
        history.note_fault("disk", "x", state="degraded", reason="/a\udcff", action="ls /a\udcff", at=EPOCH)
        assert await history.flush()
        return [event.reason for event in await read(history)]

    assert run_with_store(tmp_path / "db", test) == ["/a\\udcff"]


def test_a_look_that_fails_does_not_end_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    faults = iter((RuntimeError("a bug"),))

    def look(now: object) -> None:
        if fault := next(faults, None):
            raise fault

    async def test(store: Store) -> int:
        history = build(on_tick=look)
        await history.open(store)
        writing = asyncio.create_task(history.run())
        tell(history)
        await until(lambda: not history.waiting_count)
        writing.cancel()
        return len(await read(history))

    assert run_with_store(tmp_path / "db", test) == 1


def test_a_listener_hears_what_was_and_what_comes_and_leaves_with_the_agent(tmp_path: Path) -> None:
    async def test(store: Store) -> list[int]:
        history = build()
        await history.open(store)
        tell(history)
        await history.flush()
        heard: list[int] = []

        async def listen() -> None:
            async for event in history.follow(0):
                heard.append(event.seq)

        listening = asyncio.create_task(listen())
        await until(lambda: bool(heard))
        tell(history)
        tell(history)
        await history.flush()
        history.end_following()
        await asyncio.wait_for(listening, 30)
        return heard

    assert run_with_store(tmp_path / "db", test) == [1, 2, 3]


def test_before_the_store_is_open_nothing_can_be_read_and_what_was_noted_is_kept(tmp_path: Path) -> None:
    async def test(store: Store) -> list[int]:
        history = build()
        tell(history)
        with pytest.raises(StoreUnavailableError):
            history.require_open()
        await history.open(store)
        await history.flush()
        return [event.seq for event in await read(history)]

    assert run_with_store(tmp_path / "db", test) == [1]


def test_the_writer_looks_at_the_time_every_second_and_writes_what_comes(tmp_path: Path) -> None:
    ticks: list[object] = []

    async def test(store: Store) -> None:
        history = build(on_tick=ticks.append)
        await history.open(store)
        writing = asyncio.create_task(history.run())
        tell(history)
        await until(lambda: bool(ticks) and not history.waiting_count)
        writing.cancel()
        assert len(await read(history)) == 1

    run_with_store(tmp_path / "db", test)
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM health_events").fetchone() == (1,)
    connection.close()
