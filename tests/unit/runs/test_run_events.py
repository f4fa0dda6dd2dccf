"""Events of runs: followed to the end, and what becomes of them while nothing can be written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.wire.runs import Run, RunEvent
from meshwright_agent.runs import Done, Emit, LiveRun
from meshwright_agent.store import StoreUnavailableError
from tests.fakes.stored import ManualClock, build_record_json, build_run
from tests.unit.staging import Stage, staged, states, until
from tests.unit.store.opening import full_disk

# ---- events ----------------------------------------------------------------------------------------


async def test_an_end_that_comes_while_a_listener_reads_is_not_missed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await stage.submit_running()
    listener = stage.queue.events(run_id)
    heard = [await anext(listener), await anext(listener)]
    has_read, may_answer, read = asyncio.Event(), asyncio.Event(), stage.store.list_events

    async def pause(*args: Any, **kwargs: Any) -> Any:
        events = await read(*args, **kwargs)
        has_read.set()
        await may_answer.wait()
        return events

    monkeypatch.setattr(stage.store, "list_events", pause)
    rest = asyncio.create_task(_collect(listener))
    await has_read.wait()
    stage.bench.finish(run_id)
    await until(lambda: not stage.queue.running)
    may_answer.set()
    assert states([*heard, *await rest]) == ["queued", "running", "succeeded"]


async def _collect(listener: AsyncIterator[RunEvent]) -> list[RunEvent]:
    return [event async for event in listener]


# ---- a store that fails ----------------------------------------------------------------------------


async def test_a_run_that_cannot_be_stored_is_refused_and_not_run(stage: Stage, tmp_path: Path) -> None:
    with full_disk(stage.store.path, "events"), pytest.raises(StoreUnavailableError, match="no space"):
        await stage.submit()
    assert (stage.bench.begun, await stage.queue.list_runs()) == ([], ())
    await stage.submit_running()


@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
async def test_a_run_that_ends_while_nothing_can_be_written_is_stored_whole_when_that_is_over(
    tmp_path: Path, state: str
) -> None:
    async with staged(tmp_path, FIRST_RETRY_S=0.01, STOP_WAIT_S=0.1) as stage:
        run_id, waiting = await stage.submit_running(), await stage.submit()
        await _listen_until(stage, run_id, "running")
        with full_disk(stage.store.path, "events"):
            stage.bench.emits[run_id]({"record": build_record_json()})
            if state == "succeeded":
                stage.bench.finish(run_id, n=1)
            else:
                asked = await stage.queue.cancel(run_id, "by request")
                assert asked.state == "running"  # nothing is reported that is not stored
            await until(lambda: stage.store.failure_count > 3)
            assert (await stage.queue.get(run_id)).state == "running"
        assert (await stage.ended(run_id)).state == state
        events = await stage.events(run_id)
        assert [event.type for event in events] == ["state", "state", "record", "state"]
        assert [event.seq for event in events] == [1, 2, 3, 4]
        assert len((await stage.queue.read_latest_bench()).records) == 1
        await until(lambda: waiting in stage.bench.begun)


async def test_an_agent_that_ends_while_nothing_can_be_written_ends_and_the_next_start_says_so(tmp_path: Path) -> None:
    async with staged(tmp_path, FIRST_RETRY_S=0.01) as stage:
        run_id = await stage.submit_running()
        with full_disk(stage.store.path, "events"):
            stage.bench.finish(run_id)
            await until(lambda: stage.store.failure_count > 1)
            await stage.queue.close("the agent is shutting down")
    async with staged(tmp_path) as stage:
        run = await stage.queue.get(run_id)
        assert run.error is not None
        assert (run.state, "the agent stopped" in run.error.detail) == ("cancelled", True)


# ---- what is pending -------------------------------------------------------------------------------


def test_while_the_disk_is_slow_progress_is_folded_into_its_newest_and_records_all_stay() -> None:
    async def do_nothing(_run: Run, _emit: Emit) -> Done:
        return {}

    live = LiveRun(build_run(), do_nothing, ManualClock())
    live.pending.clear()
    for number in range(1000):
        live.emit({"done": number, "total": 1000, "message": ""})
    live.emit({"record": build_record_json()})
    live.emit({"done": 1000, "total": 1000, "message": "end"})
    live.emit({"record": build_record_json()})
    assert [event.type for event in live.pending] == ["progress", "record", "progress", "record"]
    assert [event.seq for event in live.pending] == [2, 3, 4, 5]
    assert live.pending[0].progress is not None
    assert live.pending[0].progress.done == 999


async def _listen_until(stage: Stage, run_id: str, state: str) -> int:
    async for event in stage.queue.events(run_id):
        if event.state == state:
            return event.seq
    raise AssertionError(f"{run_id} never was {state}")
