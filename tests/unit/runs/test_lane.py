"""Lanes of the queue: compiles go beside benches, one at a time each; all else is one queue."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from meshwright.errors import IdempotencyConflictError, QueueFullError
from meshwright.wire.runs import Run, RunKind
from meshwright_agent.runs.lane import LANE_OF, USUAL_RUN_S, Lane
from meshwright_agent.runs.live_run import Emit, LiveRun
from tests.fakes.stored import EPOCH, ManualClock, build_run
from tests.unit.staging import Stage, play, states, until


async def submit(stage: Stage, kind: RunKind, **request: Any) -> str:
    run, created = await stage.queue.submit(kind, request)
    assert created
    return run.id


def test_every_kind_of_run_has_its_lane() -> None:
    assert set(LANE_OF) == set(get_args(RunKind))
    assert {kind for kind, lane in LANE_OF.items() if lane == "device"} == {"bench"}


def test_a_compile_runs_beside_a_bench_and_compiles_one_after_the_other(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        bench = await submit(stage, "bench")
        plan, batch = await submit(stage, "plan"), await submit(stage, "batch_size")
        await until(lambda: {bench, plan} <= set(stage.bench.begun))
        assert [run.id for run in stage.queue.running] == [bench, plan]
        assert (stage.queue.queued_count, stage.bench.busy_count_max) == (1, 2)
        stage.bench.finish(plan)
        await until(lambda: batch in stage.bench.begun)
        assert stage.bench.busy_count_max == 2
        assert [run.id for run in await stage.queue.list()] == [batch, plan, bench]

    play(tmp_path, act)


def test_a_full_lane_refuses_and_the_other_takes(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        first = await submit(stage, "plan")
        await until(lambda: first in stage.bench.begun)
        await submit(stage, "batch_size")
        with pytest.raises(QueueFullError) as caught:
            await submit(stage, "plan")
        assert caught.value.retry_after_s == USUAL_RUN_S
        await submit(stage, "bench")

    play(tmp_path, act, queue_limit=1)


def test_a_release_of_the_devices_ends_benches_and_leaves_compiles_alone(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        bench, plan, waiting = [await submit(stage, kind) for kind in ("bench", "plan", "plan")]
        await until(lambda: {bench, plan} <= set(stage.bench.begun))
        assert await stage.queue.cancel_all("released", lane="device") == (bench,)
        assert [(await stage.queue.get(each)).state for each in (bench, plan, waiting)] == [
            "cancelled",
            "running",
            "queued",
        ]

    play(tmp_path, act)


def test_a_queue_that_closes_ends_the_runs_of_all_lanes(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        ids = [await submit(stage, kind) for kind in ("bench", "plan", "plan")]
        await until(lambda: set(ids[:2]) <= set(stage.bench.begun))
        await stage.queue.close("the agent stops")
        assert {(await stage.queue.get(each)).state for each in ids} == {"cancelled"}
        assert stage.queue.running == ()

    play(tmp_path, act)


def test_a_run_is_done_as_its_submission_says(tmp_path: Path) -> None:
    async def execute(run: Run, emit: Emit) -> tuple[dict[str, Any], int | None]:
        emit({"done": 1, "total": 2})
        return {"asked": run.request}, None

    async def act(stage: Stage) -> None:
        run, _ = await stage.queue.submit("plan", {"n": 1}, execute=execute)
        done = await stage.ended(run.id)
        assert (done.state, done.result, done.generation) == ("succeeded", {"asked": {"n": 1}}, None)
        assert states(await stage.events(run.id)) == ["queued", "running", "succeeded"]
        assert stage.bench.begun == []

    play(tmp_path, act)


def test_a_run_that_waits_or_runs_is_shared_by_those_who_submit_the_same_without_a_key(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        async def share(kind: RunKind, text: str | None, key: str | None = None) -> tuple[str, bool]:
            run, created = await stage.queue.submit(kind, {"n": 1}, share=text, key=key)
            return run.id, created

        first, _ = await share("plan", "a")
        assert await share("plan", "a") == (first, False)
        others = [await share("plan", "b"), await share("batch_size", "a"), await share("plan", None)]
        keyed = await share("plan", "a", key="mine")
        assert all(created for _, created in (*others, keyed))
        await stage.queue.cancel(first, "enough")
        assert await share("plan", "a") == (keyed[0], False)
        await stage.queue.cancel(keyed[0], "enough")
        assert (await share("plan", "a"))[1]

    play(tmp_path, act)


def test_of_many_submissions_at_once_that_may_share_a_run_one_is_made(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        answers = await asyncio.gather(*(stage.queue.submit("plan", {"n": 1}, share="a") for _ in range(10)))
        assert len({run.id for run, _ in answers}) == 1
        assert [created for _, created in answers].count(True) == 1
        assert (await stage.queue.submit("plan", {"n": 2}, share="b"))[1]

    play(tmp_path, act, queue_limit=1)


def test_a_run_that_no_worker_did_says_nothing_about_how_long_runs_take(tmp_path: Path) -> None:
    async def known(_run: Run, _emit: Emit) -> tuple[dict[str, Any], int | None]:
        return {}, None

    async def act(stage: Stage) -> None:
        run, _ = await stage.queue.submit("plan", {"n": 1}, execute=known)
        await stage.ended(run.id)
        await submit(stage, "plan", n=2)
        await until(lambda: len(stage.queue.running) == 1)
        await submit(stage, "plan", n=3)
        with pytest.raises(QueueFullError) as caught:
            await submit(stage, "plan", n=4)
        assert caught.value.retry_after_s == USUAL_RUN_S

    play(tmp_path, act, queue_limit=1)


def test_a_key_gives_back_its_run_before_another_is_made(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        assert await stage.queue.recall("plan", {"n": 1}, key="k") is None
        run, _ = await stage.queue.submit("plan", {"n": 1}, key="k")
        recalled = await stage.queue.recall("plan", {"n": 1}, key="k")
        assert recalled is not None
        assert recalled.id == run.id
        for kind, request in (("plan", {"n": 2}), ("batch_size", {"n": 1})):
            with pytest.raises(IdempotencyConflictError):
                await stage.queue.recall(kind, request, key="k")

    play(tmp_path, act)


def test_a_lane_estimates_by_its_last_run_less_what_the_present_one_has_had() -> None:
    lane, clock = Lane(), ManualClock()

    async def execute(_run: Run, _emit: Emit) -> tuple[dict[str, Any], int | None]:
        return {}, None

    live = LiveRun(build_run(started_at=EPOCH, state="running"), execute, clock)
    lane.note_took(60)
    assert lane.estimate_wait_s(EPOCH) == 60
    lane.current = live
    assert lane.estimate_wait_s(EPOCH + timedelta(seconds=50)) == 10
    assert lane.estimate_wait_s(EPOCH + timedelta(seconds=500)) == 1
    assert not lane.remove(live)
    lane.add(live)
    assert lane.remove(live)
