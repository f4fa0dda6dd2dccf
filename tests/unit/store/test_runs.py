from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from meshwright.errors import StoreUnavailableError
from meshwright.wire.runs import FINAL_STATES, RunState
from meshwright_agent.store.database import Store
from meshwright_agent.store.events import append_events, events_after, last_seq
from meshwright_agent.store.idempotency import KeyUse
from meshwright_agent.store.runs import (
    build_cancelled,
    get_run,
    list_runs,
    list_unfinished,
    prune_runs,
    save_run,
)
from meshwright_agent.store.unreadable import UnreadableRows
from tests.fakes.stored import EPOCH, ManualClock, build_event, build_record_json, build_run
from tests.unit.store.opening import migrated, run_with_store

STATES = get_args(RunState)


def test_a_run_comes_back_as_it_was_saved_with_result_and_error(tmp_path: Path) -> None:
    failed = build_cancelled(build_run(1), "because", EPOCH)
    done = build_run(2, state="succeeded", result={"records": [1.5, None, "ü"]}, generation=3, finished_at=EPOCH)

    async def main(store: Store) -> None:
        for run in (failed, done):
            await store.save_run(run)
            assert await store.get_run(run.id) == run
        assert await store.get_run("run-9999") is None

    run_with_store(tmp_path / "s.sqlite3", main)


def test_a_run_survives_a_restart_with_its_events_and_records(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    run = build_run(state="succeeded")
    events = [build_event(run, 1), build_event(run, 2, type="record", record=build_record_json())]

    async def write(store: Store) -> None:
        await store.save_run(run, events=events)

    async def read(store: Store) -> None:
        assert await store.get_run(run.id) == run
        assert await store.events_after(run.id, 0) == tuple(events)
        assert (await store.latest_bench()).runs == (run.id,)

    run_with_store(path, write)
    run_with_store(path, read)


def test_nothing_is_written_when_a_part_cannot_be(tmp_path: Path) -> None:
    use = KeyUse.of("key", "bench", {})

    async def main(store: Store) -> None:
        await store.save_run(build_run(1), key=use)
        with pytest.raises(StoreUnavailableError):
            await store.save_run(build_run(2), events=[build_event(build_run(3), 1)], key=use)  # of no run
        assert await store.get_run("run-0002") is None
        assert await store.events_after("run-0002", 0) == ()
        await store.check()

    run_with_store(tmp_path / "s.sqlite3", main)


def test_a_record_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def main(store: Store) -> None:
        with pytest.raises(ValidationError):
            await store.save_run(build_run(), events=[build_event(build_run(), 1, type="record", record={"no": 1})])
        assert await store.get_run("run-0001") is None

    run_with_store(tmp_path / "s.sqlite3", main)


def test_a_row_that_cannot_be_read_is_no_run_and_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"

    async def main(store: Store) -> None:
        await store.save_run(build_run())
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE runs SET body = '{}'")
        await store.save_run(build_run(2))
        for _ in range(2):
            assert await store.get_run("run-0001") is None
            assert [run.id for run in await store.list_runs(limit=1, state=None)] == ["run-0002"]
            assert [run.id for run in await store.list_runs(limit=2, state=None)] == ["run-0002"]
        assert store.unreadable == {"runs": ("run-0001",)}

    run_with_store(path, main)


def test_lists_are_newest_first_bounded_and_of_one_state_if_asked(tmp_path: Path) -> None:
    async def main(store: Store) -> None:
        for number in range(1, 7):
            await store.save_run(build_run(number, state="queued" if number % 2 else "succeeded"))
        await store.save_run(build_run(1, state="running"))
        assert [run.id for run in await store.list_runs(limit=3)] == ["run-0006", "run-0005", "run-0004"]
        assert [run.id for run in await store.list_runs(limit=9, state="queued")] == ["run-0005", "run-0003"]
        assert [run.id for run in await store.list_runs(limit=9, state="running")] == ["run-0001"]
        assert await store.list_runs(limit=9, state="failed") == ()

    run_with_store(tmp_path / "s.sqlite3", main)


def test_a_list_has_no_results_and_all_else(tmp_path: Path) -> None:
    done = build_run(1, state="succeeded", result={"result": [1e300, "ü", None]}, generation=3, finished_at=EPOCH)
    failed = build_cancelled(build_run(2, request={"result": {"kept": "\u0000"}}), "because", EPOCH)

    async def main(store: Store) -> None:
        for run in (done, failed):
            await store.save_run(run)
        assert await store.list_runs(limit=9) == (failed, done.model_copy(update={"result": None}))

    run_with_store(tmp_path / "s.sqlite3", main)


def test_those_of_a_kind_that_succeeded_are_listed_newest_first_and_bounded(tmp_path: Path) -> None:
    kinds = {1: "bench", 2: "plan", 3: "bench", 4: "bench", 5: "bench"}

    async def main(store: Store) -> None:
        for number, kind in kinds.items():
            await store.save_run(build_run(number, kind=kind, state="failed" if number == 4 else "succeeded"))
        found = [run.id for run in await store.list_succeeded("bench", limit=9)]
        assert found == ["run-0005", "run-0003", "run-0001"]
        assert [run.id for run in await store.list_succeeded("bench", limit=1)] == ["run-0005"]
        assert [run.id for run in await store.list_succeeded("plan", limit=9)] == ["run-0002"]

    run_with_store(tmp_path / "s.sqlite3", main)


def test_an_end_that_comes_late_is_written_once_with_its_event_and_only_for_a_run_that_is_there(tmp_path: Path) -> None:
    running, done = build_run(1, state="running"), build_run(2, state="succeeded")

    async def main(store: Store) -> None:
        for run in (running, done):
            await store.save_run(run, events=[build_event(run, seq) for seq in (1, 2)])
        for _ in range(2):
            await store.finish_run(build_cancelled(running, "late", EPOCH))
            await store.finish_run(build_cancelled(done, "late", EPOCH))
            await store.finish_run(build_cancelled(build_run(3), "never stored", EPOCH))
        ended = await store.get_run(running.id)
        assert ended == build_cancelled(running, "late", EPOCH)
        assert [(event.seq, event.state) for event in await store.events_after(running.id, 2)] == [(3, "cancelled")]
        assert await store.get_run(done.id) == done
        assert [run.id for run in await store.list_runs(limit=9)] == [done.id, running.id]

    run_with_store(tmp_path / "s.sqlite3", main)


def test_after_a_restart_nothing_waits_or_runs_and_the_reason_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    waiting, running, done = build_run(1), build_run(2, state="running"), build_run(3, state="succeeded")

    async def write(store: Store) -> None:
        for run in (waiting, running, done):
            await store.save_run(run, events=[build_event(run, seq) for seq in (1, 2)])

    async def restart(store: Store) -> None:
        assert await store.finish_interrupted("the agent was killed") == ("run-0001", "run-0002")
        for run in (waiting, running):
            ended = await store.get_run(run.id)
            assert ended is not None
            assert ended.error is not None
            assert (ended.state, ended.finished_at) == ("cancelled", clock.now())
            assert ended.error.code == "run_cancelled"
            assert "the agent was killed" in ended.error.detail
            assert [(event.seq, event.state) for event in await store.events_after(run.id, 2)] == [(3, "cancelled")]
        assert await store.get_run("run-0003") == done
        assert await store.finish_interrupted("again") == ()

    run_with_store(path, write)
    clock = ManualClock()
    clock.advance(60)
    run_with_store(path, restart, clock=clock)


@settings(max_examples=60)
@given(
    ends=st.lists(st.sampled_from(STATES), max_size=12),
    order=st.randoms(use_true_random=False),
    keep=st.integers(min_value=1, max_value=5),
)
def test_pruning_keeps_what_is_under_way_and_exactly_the_last_that_ended(
    ends: list[RunState], order: Random, keep: int
) -> None:
    with migrated() as connection:
        runs = [build_run(number) for number in range(len(ends))]
        for run in runs:
            save_run(connection, run)
            append_events(connection, [build_event(run, 1)])
        indices = list(range(len(ends)))
        order.shuffle(indices)
        ended: list[str] = []
        for index in indices:
            run = runs[index].model_copy(update={"state": ends[index]})
            for _ in range(2):  # saved twice, as a repeated write is
                save_run(connection, run)
            if ends[index] in FINAL_STATES:
                ended.append(run.id)
            prune_runs(connection, keep)
        alive = {runs[index].id for index in indices if ends[index] not in FINAL_STATES}
        assert {run.id for run in list_runs(connection, 100, None, UnreadableRows())} == alive | set(ended[-keep:])
        assert {run.id for run in list_unfinished(connection, UnreadableRows())} == alive
        for run in runs:
            kept = get_run(connection, run.id, UnreadableRows()) is not None
            assert last_seq(connection, run.id) == (1 if kept else 0)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 1e308, float("inf"), "", "x", b"\xff"])
def test_a_number_that_was_damaged_lets_no_other_run_go_and_keeps_none_from_going(number: object) -> None:
    with migrated() as connection:
        for name in range(1, 9):
            save_run(connection, build_run(name, state="succeeded"))
            if name == 3:
                connection.execute("UPDATE runs SET finished_position = ? WHERE id = 'run-0002'", (number,))
            prune_runs(connection, 4)
            assert name > 4 or len(list_runs(connection, 100, None, UnreadableRows())) == name
        kept = [run.id for run in list_runs(connection, 100, None, UnreadableRows()) if run.id != "run-0002"]
        assert kept in (["run-0008", "run-0007", "run-0006"], ["run-0008", "run-0007", "run-0006", "run-0005"])


def test_a_run_that_has_ended_and_lost_its_number_stays_as_it_ended_and_one_under_way_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"

    async def write(store: Store) -> None:
        await store.save_run(build_run(1, state="succeeded", result={"a": 1}))
        await store.save_run(build_run(2, state="running"))

    async def restart(store: Store) -> None:
        assert await store.finish_interrupted("restarted") == ("run-0002",)
        assert [run.state for run in await store.list_runs(limit=9)] == ["cancelled", "succeeded"]
        assert not store.unreadable

    run_with_store(path, write)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE runs SET finished_position = CASE id WHEN 'run-0002' THEN 5 END")
    run_with_store(path, restart)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT finished_position FROM runs ORDER BY id").fetchall() == [(6,), (5,)]


@settings(max_examples=60)
@given(count=st.integers(0, 20), after=st.integers(0, 25), limit=st.integers(1, 10))
def test_events_come_in_order_after_a_number_and_a_repeated_write_changes_nothing(
    count: int, after: int, limit: int
) -> None:
    with migrated() as connection:
        run = build_run()
        save_run(connection, run)
        events = [build_event(run, seq) for seq in range(1, count + 1)]
        append_events(connection, events)
        append_events(connection, events[count // 2 :])
        assert events_after(connection, run.id, after, limit, UnreadableRows()) == tuple(events[after : after + limit])
        assert last_seq(connection, run.id) == count


def test_a_cancelled_run_says_why_and_keeps_what_it_was_asked() -> None:
    run = build_run(1, state="running", started_at=EPOCH)
    cancelled = build_cancelled(run, "the devices were released", EPOCH)
    assert cancelled.error is not None
    assert "the devices were released" in cancelled.error.detail
    assert cancelled.error.status == 409
    assert (cancelled.request, cancelled.started_at) == (run.request, run.started_at)
    assert run.state == "running"
