from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.store.database import Store
from meshwright_agent.store.records import build_identity
from tests.fakes.stored import EPOCH, ManualClock, build_event, build_record, build_record_json, build_run
from tests.unit.store.opening import run_with_store

OTHERS: dict[str, Any] = {
    "case": "all_gather",
    "axis": "tp",
    "axis_size": 4,
    "dtype": "bfloat16",
    "size_bytes": 2048,
    "device_indices": (0, 2),
}


async def _save(store: Store, number: int, *records: dict[str, Any], state: str = "running") -> None:
    run = build_run(number, state=state)
    events = [build_event(run, seq, type="record", record=record) for seq, record in enumerate(records, 1)]
    await store.save_run(run, events=events)


def test_the_newest_record_of_each_identity_is_kept_with_the_run_it_came_from(tmp_path: Path) -> None:
    async def main(store: Store) -> None:
        await _save(store, 1, build_record_json(median_s=1.0), build_record_json(size_bytes=4096, median_s=2.0))
        await _save(store, 2, build_record_json(median_s=3.0))
        latest = await store.latest_bench()
        assert [record.median_s for record in latest.records] == [2.0, 3.0]
        assert latest.runs == ("run-0001", "run-0002")

    run_with_store(tmp_path / "s.sqlite3", main)


@pytest.mark.parametrize("field", OTHERS)
def test_records_that_differ_in_one_part_of_the_identity_stand_side_by_side(tmp_path: Path, field: str) -> None:
    async def main(store: Store) -> None:
        await _save(store, 1, build_record_json(), build_record_json(**{field: OTHERS[field]}))
        assert len((await store.latest_bench()).records) == 2

    run_with_store(tmp_path / "s.sqlite3", main)


@given(
    median_s=st.floats(0.001, 10),
    nwrong=st.integers(0, 5),
    name=st.text(max_size=5),
    samples=st.integers(3, 9),
)
def test_the_identity_does_not_depend_on_what_was_measured(
    median_s: float, nwrong: int, name: str, samples: int
) -> None:
    other = build_record(median_s=median_s, nwrong=nwrong, correct=nwrong == 0, name=name, samples_s=(0.1,) * samples)
    assert build_identity(other) == build_identity(build_record())


def test_a_record_carries_its_age_when_it_is_read_and_never_a_negative_one(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main(store: Store) -> None:
        await _save(store, 1, build_record_json())
        clock.advance(90)
        assert (await store.latest_bench()).records[0].age_s == 90
        clock.advance(-500)
        record = (await store.latest_bench()).records[0]
        assert (record.age_s, record.observed_at) == (0, EPOCH)

    run_with_store(tmp_path / "s.sqlite3", main, clock=clock)


def test_the_newest_counts_by_writing_also_when_the_clock_was_set_back(tmp_path: Path) -> None:
    async def main(store: Store) -> None:
        await _save(store, 1, build_record_json(median_s=1.0, observed_at="2026-11-21T09:00:00Z"))
        await _save(store, 2, build_record_json(median_s=2.0, observed_at="2026-11-21T08:00:00Z"))
        assert [record.median_s for record in (await store.latest_bench()).records] == [2.0]

    run_with_store(tmp_path / "s.sqlite3", main)


def test_records_outlive_their_run_but_not_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright_agent.store.database.KEEP_RECORDS", 3)

    async def main(store: Store) -> None:
        for number in range(1, 6):
            await _save(store, number, build_record_json(size_bytes=4 * number), state="succeeded")
        assert [run.id for run in await store.list_runs(limit=9)] == ["run-0005"]
        latest = await store.latest_bench()
        assert [record.size_bytes for record in latest.records] == [12, 16, 20]

    run_with_store(tmp_path / "s.sqlite3", main, keep_runs=1)


def test_without_any_bench_the_answer_is_empty(tmp_path: Path) -> None:
    async def main(store: Store) -> None:
        latest = await store.latest_bench()
        assert (latest.records, latest.runs) == ((), ())

    run_with_store(tmp_path / "s.sqlite3", main)
