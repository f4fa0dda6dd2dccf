from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import (
    DrainingError,
    IdempotencyConflictError,
    QueueFullError,
    RunNotFoundError,
    WorkerCrashedError,
)
from meshwright_agent.worker.supervisor import CallCancelled
from tests.fakes.stored import EPOCH
from tests.unit.staging import Stage, play, states, until

# ---- one run ---------------------------------------------------------------------------------------


def test_a_run_is_queued_then_running_then_succeeded_with_result_generation_and_times(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        run, created = await stage.queue.submit("bench", {"suite": "quick"})
        assert created
        assert (run.state, run.request, run.created_at) == ("queued", {"suite": "quick"}, EPOCH)
        await until(lambda: run.id in stage.bench.begun)
        (running,) = stage.queue.running
        assert (running.id, running.state, running.started_at) == (run.id, "running", EPOCH)
        stage.clock.advance(3)
        stage.bench.finish(run.id, records=[1])
        done = await stage.ended(run.id)
        assert (done.state, done.result, done.generation) == ("succeeded", {"records": [1]}, 7)
        assert done.finished_at == EPOCH + timedelta(seconds=3)
        assert await stage.store.get_run(run.id) == done
        assert states(await stage.events(run.id)) == ["queued", "running", "succeeded"]
        await until(lambda: not stage.queue.running)

    play(tmp_path, act)


def test_runs_go_one_at_a_time_in_the_order_of_submission(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        ids = [await stage.submit(n=n) for n in range(5)]
        await until(lambda: stage.queue.queued_count == 4)
        for run_id in ids:
            stage.bench.finish(run_id)
            await stage.ended(run_id)
        assert stage.bench.begun == ids == sorted(ids)
        assert stage.bench.busy_count_max == 1
        assert [run.id for run in await stage.queue.list()] == ids[::-1]

    play(tmp_path, act)


def test_a_problem_of_the_work_is_the_runs_error_with_its_code_and_log(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        run_id = await stage.submit_running()
        stage.bench.fail(run_id, WorkerCrashedError("died by signal 6", hint="look at the log", log=["abort"]))
        done = await stage.ended(run_id)
        assert done.state == "failed"
        assert done.error is not None
        assert (done.error.code, done.error.status, done.error.log) == ("worker_crashed", 503, ("abort",))
        assert done.error.hint == "look at the log"

    play(tmp_path, act)


def test_any_other_exception_fails_the_run_as_internal_and_the_next_run_goes_on(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        first, second = await stage.submit(), await stage.submit()
        stage.bench.fail(first, ZeroDivisionError("secret path"))
        done = await stage.ended(first)
        assert done.error is not None
        assert (done.state, done.error.code) == ("failed", "internal")
        assert "ZeroDivisionError" in done.error.detail
        assert "secret" not in done.error.detail
        stage.bench.finish(second)
        assert (await stage.ended(second)).state == "succeeded"

    play(tmp_path, act)


@pytest.mark.parametrize("error", [CallCancelled("devices released"), asyncio.CancelledError()])
def test_work_that_was_given_up_makes_the_run_cancelled(tmp_path: Path, error: BaseException) -> None:
    async def act(stage: Stage) -> None:
        run_id = await stage.submit_running()
        stage.bench.fail(run_id, error)
        done = await stage.ended(run_id)
        assert (done.state, done.error and done.error.code) == ("cancelled", "run_cancelled")
        assert done.error is not None
        assert str(error) in done.error.detail

    play(tmp_path, act)


@pytest.mark.parametrize("update", [{"done": 1}, {"record": {"case": "none"}}, {"record": None}, {}, 7, None])
def test_an_update_that_is_neither_progress_nor_record_fails_the_run_and_nothing_else(
    tmp_path: Path, update: Any
) -> None:
    async def act(stage: Stage) -> None:
        run_id = await stage.submit_running()
        stage.bench.emits[run_id](update)
        stage.bench.emits[run_id]({"done": 1, "total": 2, "message": "m"})
        stage.bench.finish(run_id)
        done = await stage.ended(run_id)
        assert (done.state, done.error and done.error.code) == ("failed", "internal")
        second = await stage.submit_running()
        stage.bench.finish(second)
        assert (await stage.ended(second)).state == "succeeded"

    play(tmp_path, act)


def test_an_unknown_run_is_not_found_by_any_verb(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        with pytest.raises(RunNotFoundError, match="run-nowhere"):
            await stage.queue.get("run-nowhere")
        with pytest.raises(RunNotFoundError):
            await stage.queue.cancel("run-nowhere", "why not")
        with pytest.raises(RunNotFoundError):
            await stage.events("run-nowhere")

    play(tmp_path, act)


def test_lists_show_runs_as_they_stand_in_memory(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        first, second = await stage.submit_running(), await stage.submit()
        assert [run.id for run in await stage.queue.list(state="running")] == [first]
        assert [run.id for run in await stage.queue.list(state="queued")] == [second]
        assert [run.id for run in await stage.queue.list(limit=1)] == [second]

    play(tmp_path, act)


# ---- limits and keys -------------------------------------------------------------------------------


def test_beyond_the_limit_runs_are_refused_with_a_time_to_come_back(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
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
        assert len(await stage.queue.list()) == 3
        stage.bench.finish(ids[0])
        await stage.ended(ids[0])
        await until(lambda: ids[1] in stage.bench.begun)
        await stage.submit()

    play(tmp_path, act, queue_limit=2)


def test_a_run_that_was_cancelled_says_nothing_about_how_long_runs_take(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
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

    play(tmp_path, act, queue_limit=1)


def test_many_at_once_admit_exactly_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        answers = await asyncio.gather(*(stage.submit() for _ in range(20)), return_exceptions=True)
        assert sum(isinstance(answer, str) for answer in answers) == 5
        assert sum(isinstance(answer, QueueFullError) for answer in answers) == 15

    play(tmp_path, act, queue_limit=4)


def test_the_same_key_and_request_give_the_same_run_also_at_once_and_when_the_queue_is_full(
    tmp_path: Path,
) -> None:
    async def act(stage: Stage) -> None:
        answers = await asyncio.gather(
            *(stage.queue.submit("bench", {"a": 1, "b": 2}, key="k") for _ in range(5)),
            stage.queue.submit("bench", {"b": 2, "a": 1}, key="k"),
        )
        assert len({run.id for run, _ in answers}) == 1
        assert sum(created for _, created in answers) == 1
        await stage.submit()
        with pytest.raises(QueueFullError):
            await stage.submit()
        run_id = answers[0][0].id
        await until(lambda: run_id in stage.bench.begun)
        stage.bench.finish(run_id)
        done = await stage.ended(run_id)
        assert await stage.queue.submit("bench", {"a": 1, "b": 2}, key="k") == (done, False)

    play(tmp_path, act, queue_limit=1)


def test_a_key_that_named_another_request_is_a_conflict_and_queues_nothing(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        run, _ = await stage.queue.submit("bench", {"a": 1}, key="k")
        with pytest.raises(IdempotencyConflictError, match=run.id):
            await stage.queue.submit("bench", {"a": 2}, key="k")
        assert len(await stage.queue.list()) == 1

    play(tmp_path, act)


def test_a_caller_that_goes_away_while_submitting_leaves_a_whole_run_or_none(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        for turns in range(8):
            caller = asyncio.create_task(stage.submit(turns=turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait([caller])
        await until(lambda: bool(stage.bench.begun))
        stored = {run.id for run in await stage.store.list_runs(limit=99)}
        await stage.queue.cancel_all("enough")
        assert {run.id for run in await stage.store.list_runs(limit=99, state="cancelled")} >= stored

    play(tmp_path, act)


# ---- cancel ----------------------------------------------------------------------------------------


def test_a_queued_run_is_cancelled_at_once_and_never_begins(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
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

    play(tmp_path, act)


def test_a_running_run_is_cancelled_when_it_has_stopped_and_the_next_one_begins(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        first, second = await stage.submit_running(), await stage.submit()
        cancelled = await stage.queue.cancel(first, "too slow")
        assert (cancelled.state, cancelled.finished_at) == ("cancelled", EPOCH)
        await until(lambda: second in stage.bench.begun)
        assert stage.bench.busy_count_max == 1

    play(tmp_path, act)


@pytest.mark.parametrize("ending", ["result", "crash"])
def test_a_run_that_was_asked_to_stop_is_cancelled_however_it_ends(tmp_path: Path, ending: str) -> None:
    async def act(stage: Stage) -> None:
        stage.bench.ignores_cancel = True
        run_id = await stage.submit_running()
        asked = await stage.queue.cancel(run_id, "the first reason")
        assert asked.state == "running"
        await stage.queue.cancel(run_id, "another reason")
        if ending == "result":
            stage.bench.finish(run_id)
        else:
            stage.bench.fail(run_id, WorkerCrashedError("killed after the grace time"))
        done = await stage.ended(run_id)
        assert (done.state, done.result) == ("cancelled", None)
        assert done.error is not None
        assert "the first reason" in done.error.detail

    play(tmp_path, act, stop_wait_s=0.01)


def test_a_run_that_has_ended_is_returned_as_it_is(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        run_id = await stage.submit_running()
        stage.bench.finish(run_id, n=1)
        done = await stage.ended(run_id)
        assert await stage.queue.cancel(run_id, "too late") == done
        assert (await stage.queue.get(run_id)).state == "succeeded"

    play(tmp_path, act)


def test_cancelling_twice_at_once_ends_the_run_once(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit_running()
        waiting = await stage.submit()
        runs = await asyncio.gather(*(stage.queue.cancel(waiting, f"reason {n}") for n in range(4)))
        assert {run.state for run in runs} == {"cancelled"}
        assert states(await stage.events(waiting)) == ["queued", "cancelled"]

    play(tmp_path, act)


def test_cancel_all_ends_what_runs_and_waits_without_beginning_another(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        ids = [await stage.submit_running(), await stage.submit(), await stage.submit()]
        assert await stage.queue.cancel_all("the devices were released") == tuple(ids)
        assert [(await stage.queue.get(run_id)).state for run_id in ids] == ["cancelled"] * 3
        assert stage.bench.begun == ids[:1]
        assert await stage.queue.cancel_all("nothing left") == ()
        await stage.submit_running()

    play(tmp_path, act)


# ---- close and restart -----------------------------------------------------------------------------


def test_closing_cancels_everything_with_the_reason_and_takes_no_more(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        ids = [await stage.submit_running(), await stage.submit()]
        listeners = [asyncio.create_task(stage.events(run_id)) for run_id in ids]
        await stage.queue.close("the agent is shutting down")
        for run_id, listener in zip(ids, listeners, strict=True):
            stored = await stage.store.get_run(run_id)
            assert stored is not None
            assert stored.error is not None
            assert stored.state == "cancelled"
            assert "shutting down" in stored.error.detail
            assert states(await listener)[-1] == "cancelled"
        with pytest.raises(DrainingError):
            await stage.submit()
        assert not stage.queue.running

    play(tmp_path, act)


def test_closing_does_not_wait_for_work_that_will_not_stop(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.bench.ignores_cancel = True
        run_id = await stage.submit_running()
        await stage.queue.close("the agent is shutting down")
        assert (await stage.queue.get(run_id)).state == "cancelled"
        stored = await stage.store.get_run(run_id)
        assert stored is not None
        assert stored.state == "cancelled"
        stage.bench.finish(run_id)

    play(tmp_path, act, stop_wait_s=0.01)


@pytest.mark.parametrize("turns", range(8))
def test_a_submission_that_races_with_closing_is_cancelled_or_refused_but_never_left(
    tmp_path: Path, turns: int
) -> None:
    async def act(stage: Stage) -> None:
        submissions = [asyncio.create_task(stage.submit()) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await stage.queue.close("the agent is shutting down")
        answers = await asyncio.gather(*submissions, return_exceptions=True)
        assert all(isinstance(answer, str | DrainingError) for answer in answers)
        assert {run.state for run in await stage.store.list_runs(limit=99)} <= {"cancelled"}

    play(tmp_path, act)
