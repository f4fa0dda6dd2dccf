from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from meshwright.errors import (
    StoreUnavailableError,
)
from meshwright.wire.runs import RunEvent
from meshwright_agent.runs.queue import RunQueue
from meshwright_agent.store.database import Store
from tests.fakes.stored import build_record_json
from tests.unit.staging import Stage, play, states, until
from tests.unit.store.opening import held, recover

# ---- events ----------------------------------------------------------------------------------------


def test_a_listener_gets_history_then_what_comes_then_the_end(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        run_id = await stage.submit_running()
        emit = stage.bench.emits[run_id]
        emit({"done": 1, "total": 3, "message": "matmul"})
        emit({"record": build_record_json()})
        heard: list[RunEvent] = []

        async def listen() -> None:
            async for event in stage.queue.events(run_id):
                heard.append(event)

        listener = asyncio.create_task(listen())
        await until(lambda: len(heard) == 4)
        emit({"done": 2, "total": 3, "message": "permute"})
        await until(lambda: len(heard) == 5)
        stage.bench.finish(run_id)
        await listener
        assert [event.type for event in heard] == [
            "state",
            "state",
            "progress",
            "record",
            "progress",
            "state",
        ]
        assert [event.seq for event in heard] == [1, 2, 3, 4, 5, 6]
        assert heard[2].progress is not None
        assert heard[2].progress.message == "matmul"
        assert heard[3].record == build_record_json()
        assert heard[-1].state == "succeeded"
        assert await stage.events(run_id) == heard
        assert await stage.events(run_id, after=4) == heard[4:]
        assert await stage.events(run_id, after=99) == []

    play(tmp_path, act)


def test_progress_and_records_are_seen_while_the_run_is_running(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        run_id = await stage.submit_running()
        stage.bench.emits[run_id]({"done": 1, "total": 2, "message": "half"})
        stage.bench.emits[run_id]({"record": build_record_json(median_s=0.5)})
        run = await stage.queue.get(run_id)
        assert run.progress is not None
        assert (run.progress.done, run.progress.total) == (1, 2)
        async for event in stage.queue.events(run_id):
            if event.type == "record":
                break
        latest = await stage.store.latest_bench()
        assert ([record.median_s for record in latest.records], latest.runs) == ([0.5], (run_id,))

    play(tmp_path, act)


def test_listeners_that_stop_or_never_read_hold_nobody_up(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        run_id = await stage.submit_running()
        slow = stage.queue.events(run_id)
        assert (await anext(slow)).state == "queued"
        gone = asyncio.create_task(stage.events(run_id))
        await asyncio.sleep(0)
        gone.cancel()
        for number in range(300):
            stage.bench.emits[run_id]({"record": build_record_json(size_bytes=4 + number)})
        stage.bench.finish(run_id)
        assert (await stage.ended(run_id)).state == "succeeded"
        rest = [event async for event in slow]
        assert [event.seq for event in rest] == list(range(2, 304))

    play(tmp_path, act)


class PausingStore:
    """A store whose `events_after` has read, but does not answer before it is told to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_pausing = False
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def events_after(self, run_id: str, seq: int) -> tuple[RunEvent, ...]:
        events = await self._store.events_after(run_id, seq)
        if self.is_pausing:
            self.has_read.set()
            await self.may_answer.wait()
        return events


def test_an_end_that_comes_while_a_listener_reads_is_not_missed(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        store = PausingStore(stage.store)
        queue = RunQueue(cast(Store, store), stage.bench.execute, clock=stage.clock)
        await queue.start()
        run, _ = await queue.submit("bench", {})
        listener = queue.events(run.id)
        heard = [await anext(listener), await anext(listener)]
        store.is_pausing = True
        rest = asyncio.create_task(_collect(listener))
        await store.has_read.wait()
        stage.bench.finish(run.id)
        await until(lambda: not queue.running)
        store.may_answer.set()
        assert states([*heard, *await rest]) == ["queued", "running", "succeeded"]
        await queue.close("the test ended")

    play(tmp_path, act)


async def _collect(listener: AsyncIterator[RunEvent]) -> list[RunEvent]:
    return [event async for event in listener]


# ---- a store that fails ----------------------------------------------------------------------------


def test_a_run_that_cannot_be_stored_is_refused_and_not_run(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        with held(tmp_path / "s.sqlite3"), pytest.raises(StoreUnavailableError):
            await stage.submit()
        await recover(stage.store)
        assert stage.bench.begun == []
        assert {run.state for run in await stage.queue.list()} <= {"failed"}
        await stage.submit_running()

    play(tmp_path, act, timeout_s=0.5)


def test_a_run_whose_records_cannot_be_stored_fails_and_says_why_and_its_listeners_end(
    tmp_path: Path,
) -> None:
    async def act(stage: Stage) -> None:
        run_id = await stage.submit_running()
        heard = await _listen_until(stage, run_id, "running")
        with held(tmp_path / "s.sqlite3"):
            stage.bench.emits[run_id]({"record": build_record_json()})
            await until(lambda: not stage.queue.running)
            done = await stage.queue.get(run_id)
        assert (done.state, done.error and done.error.code) == ("failed", "store_unavailable")
        await recover(stage.store)
        assert states(await stage.events(run_id, after=heard))[-1] == "failed"
        assert [run.state for run in await stage.queue.list()] == ["failed"]
        second = await stage.submit_running()
        stage.bench.finish(second)
        assert (await stage.ended(second)).state == "succeeded"

    play(tmp_path, act, timeout_s=0.5)


def test_events_that_could_not_be_stored_are_stored_with_the_end(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        refuse = "CREATE TRIGGER refuse BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'no space'); END"
        run_id = await stage.submit_running()
        await _listen_until(stage, run_id, "running")
        with contextlib.closing(sqlite3.connect(tmp_path / "s.sqlite3", isolation_level=None)) as operator:
            operator.execute(refuse)
            stage.bench.on_cancel = lambda: operator.execute("DROP TRIGGER refuse")
            stage.bench.emits[run_id]({"record": build_record_json()})
            done = await stage.ended(run_id)
        assert done.error is not None
        assert "no space" in done.error.detail
        events = await stage.events(run_id)
        assert [event.type for event in events] == ["state", "state", "record", "state"]
        assert [event.seq for event in events] == [1, 2, 3, 4]
        assert await stage.store.get_run(run_id) == done

    play(tmp_path, act)


async def _listen_until(stage: Stage, run_id: str, state: str) -> int:
    async for event in stage.queue.events(run_id):
        if event.state == state:
            return event.seq
    raise AssertionError(f"{run_id} never was {state}")
