"""The queue: the life of one run, lanes, limits, cancelling, closing, and what a start finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import QueueFullError, UnavailableError
from meshwright.wire.runs import Run, RunKind
from meshwright_agent.runs import Done, Emit
from meshwright_agent.store import StoreUnavailableError
from tests.unit.staging import Stage, staged, states, until

# ---- one run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [{"done": 1}, {"record": {"case": "none"}}, 7])
async def test_an_update_that_is_neither_progress_nor_record_fails_the_run_and_nothing_else(
    stage: Stage, update: Any
) -> None:
    run_id = await stage.submit_running()
    stage.bench.emits[run_id](update)
    stage.bench.emits[run_id]({"done": 1, "total": 2, "message": "m"})
    stage.bench.finish(run_id)
    done = await stage.ended(run_id)
    assert (done.state, done.error and done.error.code) == ("failed", "internal")
    second = await stage.submit_running()
    stage.bench.finish(second)
    assert (await stage.ended(second)).state == "succeeded"


# ---- limits -------------------------------------------------------------------------------


async def test_beyond_the_limit_runs_are_refused_with_a_time_to_come_back(tmp_path: Path) -> None:
    async with staged(tmp_path, MAX_WAITING=2) as stage:
        ids = [await stage.submit() for _ in range(3)]
        with pytest.raises(QueueFullError) as caught:
            await stage.submit()
        assert "2 runs wait" in caught.value.detail
        assert caught.value.retry_after_s == 20
        await until(lambda: bool(stage.bench.begun))
        stage.clock.advance(15)
        with pytest.raises(QueueFullError) as caught:
            await stage.submit()
        assert caught.value.retry_after_s == 5
        stage.clock.advance(500)
        with pytest.raises(QueueFullError) as caught:
            await stage.submit()
        assert caught.value.retry_after_s == 1
        assert len(await stage.queue.list_runs()) == 3
        stage.bench.finish(ids[0])
        await stage.ended(ids[0])
        await until(lambda: ids[1] in stage.bench.begun)
        await stage.submit()


async def test_a_run_that_was_cancelled_says_nothing_about_how_long_runs_take(tmp_path: Path) -> None:
    async with staged(tmp_path, MAX_WAITING=1) as stage:
        first = await stage.submit_running()
        stage.clock.advance(8)
        stage.bench.finish(first)
        await stage.ended(first)
        second = await stage.submit_running()
        stage.clock.advance(900)
        await stage.queue.cancel(second, "too slow")
        await stage.submit_running()
        await stage.submit()
        with pytest.raises(QueueFullError) as caught:
            await stage.submit()
        assert caught.value.retry_after_s == 8


async def test_a_caller_that_goes_away_while_submitting_leaves_a_whole_run_or_none(stage: Stage) -> None:
    for turns in range(8):
        caller = asyncio.create_task(stage.submit(turns=turns))
        for _ in range(turns):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
    await stage.submit()  # after all before it
    await until(lambda: bool(stage.bench.begun))
    stored = {run.id for run in await stage.queue.list_runs(limit=99)}
    await stage.queue.cancel_all("enough")
    assert {run.id for run in await stage.queue.list_runs(limit=99, state="cancelled")} >= stored


# ---- cancel ----------------------------------------------------------------------------------------


async def test_a_queued_run_is_cancelled_at_once_and_never_begins(stage: Stage) -> None:
    first, second, third = await stage.submit_running(), await stage.submit(), await stage.submit()
    cancelled = await stage.queue.cancel(second, "changed my mind")
    assert cancelled.state == "cancelled"
    assert cancelled.error is not None
    assert "changed my mind" in cancelled.error.detail
    assert stage.queue.queued_count == 1
    stage.bench.finish(first)
    await until(lambda: third in stage.bench.begun)
    assert second not in stage.bench.begun
    assert states(await stage.events(second)) == ["queued", "cancelled"]


@pytest.mark.parametrize("ending", ["result", "crash"])
async def test_a_run_that_was_asked_to_stop_is_cancelled_however_it_ends(tmp_path: Path, ending: str) -> None:
    async with staged(tmp_path, STOP_WAIT_S=0.01) as stage:
        stage.bench.ignores_cancel = True
        run_id = await stage.submit_running()
        asked = await stage.queue.cancel(run_id, "the first reason")
        assert asked.state == "running"
        await stage.queue.cancel(run_id, "another reason")
        if ending == "result":
            stage.bench.finish(run_id)
        else:
            stage.bench.fail(run_id, UnavailableError("killed after the grace time", code="worker_failed"))
        done = await stage.ended(run_id)
        assert (done.state, done.result) == ("cancelled", None)
        assert done.error is not None
        assert "the first reason" in done.error.detail


async def test_a_second_cancel_does_not_cut_short_how_a_run_ends(tmp_path: Path) -> None:
    cleaned = []

    async def execute(_run: Run, _emit: Emit) -> Done:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            cleaned.append(True)
        raise AssertionError

    async with staged(tmp_path, STOP_WAIT_S=0.01) as stage:
        run = await stage.queue.submit("bench", {}, execute)
        await asyncio.sleep(0.01)
        for _ in range(3):
            await stage.queue.cancel(run.id, "enough")
        assert (await stage.ended(run.id)).state == "cancelled"
        assert cleaned == [True]


async def test_a_run_that_a_lost_write_has_stored_does_not_wait_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = stage.store.write

    async def write_late(*documents: Any, **events: Any) -> None:
        await write(*documents, **events)
        raise StoreUnavailableError("no answer within 2 s") from TimeoutError()

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "write", write_late)
        with pytest.raises(StoreUnavailableError):
            await stage.submit()
    (run,) = await stage.queue.list_runs()
    assert (run.state, (await stage.queue.get(run.id)).state) == ("cancelled", "cancelled")
    assert await stage.queue.list_runs(state="queued") == ()


async def test_a_run_is_listed_by_its_state_though_the_store_took_no_newer_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await stage.submit_running(), await stage.submit()
    write = stage.store.write

    async def refuse_running(*documents: Any, **events: Any) -> None:
        if "running" in {document.state for document in documents}:
            raise StoreUnavailableError("the disk is full")
        await write(*documents, **events)

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "write", refuse_running)
        stage.bench.finish(first)
        await until(lambda: second in stage.bench.begun)
        assert [run.id for run in await stage.queue.list_runs(state="running")] == [second]
        assert [(run.id, run.state) for run in await stage.queue.list_runs(limit=1)] == [(second, "running")]


# ---- close and restart -----------------------------------------------------------------------------


async def test_closing_does_not_wait_for_work_that_will_not_stop(tmp_path: Path) -> None:
    async with staged(tmp_path, STOP_WAIT_S=0.01) as stage:
        stage.bench.ignores_cancel = True
        run_id = await stage.submit_running()
        await stage.queue.close("the agent is shutting down")
        assert (await stage.queue.get(run_id)).state == "cancelled"
        assert (await stage.stored(run_id)).state == "cancelled"
        stage.bench.finish(run_id)


@pytest.mark.parametrize("turns", range(8))
async def test_a_submission_that_races_with_closing_is_cancelled_or_refused_but_never_left(
    stage: Stage, turns: int
) -> None:
    submissions = [asyncio.create_task(stage.submit()) for _ in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    await stage.queue.close("the agent is shutting down")
    answers = await asyncio.gather(*submissions, return_exceptions=True)
    assert all(isinstance(answer, str | UnavailableError) for answer in answers)
    assert {run.state for run in await stage.queue.list_runs(limit=99)} <= {"cancelled"}


# ---- lanes -----------------------------------------------------------------------------------------


async def submit(stage: Stage, kind: RunKind, **request: Any) -> str:
    return (await stage.queue.submit(kind, request, stage.bench.execute)).id


async def test_a_release_of_the_devices_ends_benches_and_leaves_compiles_alone(stage: Stage) -> None:
    bench, plan, waiting = [await submit(stage, kind) for kind in ("bench", "plan", "plan")]
    await until(lambda: {bench, plan} <= set(stage.bench.begun))
    assert await stage.queue.cancel_all("released", lane="device") == (bench,)
    found = [(await stage.queue.get(each)).state for each in (bench, plan, waiting)]
    assert found == ["cancelled", "running", "queued"]
