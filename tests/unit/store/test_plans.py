from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright_agent.store.database import Store
from meshwright_agent.store.plans import get_plan, put_plan
from tests.fakes.stored import build_plan
from tests.unit.store.opening import held, migrated, run_with_store


def test_a_plan_comes_back_by_fingerprint_also_after_a_restart(tmp_path: Path) -> None:
    plan = build_plan(1, environment={"XLA_FLAGS": "--a=b"}, code="mesh = 1")

    async def write(store: Store) -> None:
        await store.put_plan(plan)
        assert await store.get_plan(plan.fingerprint) == plan

    async def read(store: Store) -> None:
        assert await store.get_plan(plan.fingerprint) == plan
        assert await store.get_plan("mw1-unknown") is None

    run_with_store(tmp_path / "s.sqlite3", write)
    run_with_store(tmp_path / "s.sqlite3", read)


def test_a_newer_plan_of_the_same_fingerprint_replaces_the_older(tmp_path: Path) -> None:
    older, newer = build_plan(1, code="older"), build_plan(1, code="newer")

    async def main(store: Store) -> None:
        await store.put_plan(older)
        await store.put_plan(newer)
        assert await store.get_plan(older.fingerprint) == newer

    async def read(store: Store) -> None:
        assert await store.get_plan(older.fingerprint) == newer

    run_with_store(tmp_path / "s.sqlite3", main)
    run_with_store(tmp_path / "s.sqlite3", read)


def test_a_plan_without_devices_never_replaces_one_that_has_them(tmp_path: Path) -> None:
    whole, bare = build_plan(1), build_plan(1, devices=None)

    async def main(store: Store) -> None:
        await store.put_plan(bare)
        assert await store.get_plan(bare.fingerprint) == bare
        await store.put_plan(whole)
        await store.put_plan(bare)
        assert await store.get_plan(whole.fingerprint) == whole

    async def read(store: Store) -> None:
        assert await store.get_plan(whole.fingerprint) == whole

    run_with_store(tmp_path / "s.sqlite3", main)
    run_with_store(tmp_path / "s.sqlite3", read)


def test_an_equal_plan_put_again_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"

    async def main(store: Store) -> None:
        await store.put_plan(build_plan(1))
        with held(path):
            async with asyncio.timeout(1):
                await store.put_plan(build_plan(1))

    run_with_store(path, main)


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.integers(0, 6), max_size=20), keep=st.integers(1, 4))
def test_exactly_the_last_plans_are_kept(numbers: list[int], keep: int) -> None:
    with migrated() as connection:
        for number in numbers:
            put_plan(connection, build_plan(number), keep)
        newest = list(dict.fromkeys(reversed(numbers)))[:keep]
        there = {n for n in range(7) if get_plan(connection, build_plan(n).fingerprint) is not None}
        assert there == set(newest)


@settings(max_examples=15, deadline=None)
@example(puts=[(0, "a"), (1, "a"), (2, "a"), (0, "b"), (3, "a")])
@given(puts=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab")), min_size=1, max_size=15))
def test_what_memory_answers_is_what_the_file_holds(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, str]]
) -> None:
    path = tmp_path_factory.mktemp("plans") / "s.sqlite3"
    fingerprints = [build_plan(number).fingerprint for number in range(6)]

    async def write(store: Store) -> list[object]:
        for number, code in puts:
            await store.put_plan(build_plan(number, code=code))
        return [await store.get_plan(fingerprint) for fingerprint in fingerprints]

    async def read(store: Store) -> list[object]:
        return [await store.get_plan(fingerprint) for fingerprint in fingerprints]

    assert run_with_store(path, write, keep_plans=3) == run_with_store(path, read, keep_plans=3)
