from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright_agent.packing import is_packed, pack
from meshwright_agent.store.database import Store
from meshwright_agent.store.plans import SMALL_CHARS, get_plan, put_plan
from meshwright_agent.store.unreadable import UnreadableRows
from tests.fakes.stored import build_plan
from tests.unit.store.opening import held, migrated, run_with_store


def write(number: int = 1, code: str = "") -> tuple[str, str]:
    """Returns a plan's fingerprint and its JSON."""
    plan = build_plan(number, code=code)
    return plan.fingerprint, plan.model_dump_json()


LARGE = "x" * SMALL_CHARS
"""Code that makes a plan one that memory does not keep."""


@pytest.mark.parametrize("code", ["mesh = 1", LARGE])
def test_a_plan_comes_back_by_fingerprint_as_it_was_also_after_a_restart(tmp_path: Path, code: str) -> None:
    fingerprint, body = write(1, code)

    async def keep(store: Store) -> None:
        await store.put_plan(fingerprint, body)
        assert await store.get_plan(fingerprint) == body

    async def read(store: Store) -> None:
        assert await store.get_plan(fingerprint) == body
        assert await store.get_plan("mw1-unknown") is None

    run_with_store(tmp_path / "s.sqlite3", keep)
    run_with_store(tmp_path / "s.sqlite3", read)


def test_a_packed_plan_is_kept_as_the_text_that_it_was(tmp_path: Path) -> None:
    fingerprint, body = write(1, LARGE)
    packed = pack(body)
    assert is_packed(packed)

    async def main(store: Store) -> None:
        await store.put_plan(fingerprint, packed)
        await store.put_plan(fingerprint, packed)
        assert await store.get_plan(fingerprint) == body

    run_with_store(tmp_path / "s.sqlite3", main)


def test_a_newer_plan_of_the_same_fingerprint_replaces_the_older(tmp_path: Path) -> None:
    (fingerprint, older), (_, newer) = write(1, "older"), write(1, "newer")

    async def main(store: Store) -> None:
        await store.put_plan(fingerprint, older)
        await store.put_plan(fingerprint, newer)
        assert await store.get_plan(fingerprint) == newer

    async def read(store: Store) -> None:
        assert await store.get_plan(fingerprint) == newer

    run_with_store(tmp_path / "s.sqlite3", main)
    run_with_store(tmp_path / "s.sqlite3", read)


@pytest.mark.parametrize("code", ["", LARGE])
def test_an_equal_plan_put_again_does_not_wait_for_the_disk(tmp_path: Path, code: str) -> None:
    path = tmp_path / "s.sqlite3"

    async def main(store: Store) -> None:
        await store.put_plan(*write(1, code))
        with held(path):
            async with asyncio.timeout(1):
                await store.put_plan(*write(1, code))

    run_with_store(path, main)


@pytest.mark.parametrize(
    "spoilt", ["substr(body, 5)", "'5'", "'null'", "'{}'", "'[1]'", "replace(body, 'mw1-', 'mw2-')", "x'7b7d'"]
)
def test_a_body_that_the_disk_has_spoilt_is_no_plan_and_counted(tmp_path: Path, spoilt: str) -> None:
    path = tmp_path / "s.sqlite3"
    fingerprint, body = write()

    async def keep(store: Store) -> None:
        await store.put_plan(fingerprint, body)

    async def read(store: Store) -> None:
        assert await store.get_plan(fingerprint) is None
        assert store.unreadable == {"plans": (fingerprint,)}
        await store.put_plan(fingerprint, body)
        assert await store.get_plan(fingerprint) == body

    run_with_store(path, keep)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE plans SET body = {spoilt}")
    connection.close()
    run_with_store(path, read)


@settings(max_examples=60)
@given(numbers=st.lists(st.integers(0, 6), max_size=20), keep=st.integers(1, 4))
def test_exactly_the_last_plans_are_kept(numbers: list[int], keep: int) -> None:
    with migrated() as connection:
        for number in numbers:
            put_plan(connection, *write(number), keep)
        newest = list(dict.fromkeys(reversed(numbers)))[:keep]
        there = {n for n in range(7) if get_plan(connection, write(n)[0], UnreadableRows()) is not None}
        assert there == set(newest)


@settings(max_examples=40)
@given(numbers=st.lists(st.integers(0, 6), min_size=1, max_size=12), room=st.integers(0, 4))
def test_large_plans_are_kept_while_there_is_room_and_the_newest_in_any_case(numbers: list[int], room: int) -> None:
    with migrated() as connection:
        size = len(write(0, LARGE)[1])
        for number in numbers:
            put_plan(connection, *write(number, LARGE), 100, keep_chars=room * size)
        newest = list(dict.fromkeys(reversed(numbers)))[: max(1, room)]
        there = {n for n in range(7) if get_plan(connection, write(n)[0], UnreadableRows()) is not None}
        assert there == set(newest)


@pytest.mark.parametrize("size", [2**63 - 1, -(2**63), 1e308, float("inf"), "", "x", b"\xff"])
def test_a_size_that_was_damaged_counts_for_nothing(size: object) -> None:
    with migrated() as connection:
        room = 2 * len(write(0, LARGE)[1])
        for number in range(2):
            put_plan(connection, *write(number, LARGE), 100, keep_chars=room)
        connection.execute("UPDATE plans SET size = ? WHERE position = 2", (size,))
        for number in range(2, 4):
            put_plan(connection, *write(number, LARGE), 100, keep_chars=room)
        there = {n for n in range(4) if get_plan(connection, write(n)[0], UnreadableRows()) is not None}
        assert {2, 3} <= there <= {1, 2, 3}


def test_a_plan_that_gave_way_to_larger_ones_is_written_again_when_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write(1, LARGE), write(2, LARGE)
    monkeypatch.setattr("meshwright_agent.store.plans.KEPT_CHARS", len(first[1]) + 10)

    async def main(store: Store) -> None:
        for fingerprint, body in (first, second, first):
            await store.put_plan(fingerprint, body)
        assert await store.get_plan(first[0]) == first[1]
        assert await store.get_plan(second[0]) is None

    run_with_store(tmp_path / "s.sqlite3", main)


@settings(max_examples=15)
@example(puts=[(0, "a"), (1, "a"), (2, "a"), (0, "b"), (3, "a")])
@example(puts=[(0, "a"), (1, "a"), (2, "a"), (3, LARGE)])
@given(puts=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", LARGE])), min_size=1, max_size=15))
def test_what_memory_answers_is_what_the_file_holds(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, str]]
) -> None:
    path = tmp_path_factory.mktemp("plans") / "s.sqlite3"
    fingerprints = [write(number)[0] for number in range(6)]

    async def keep(store: Store) -> list[object]:
        for number, code in puts:
            await store.put_plan(*write(number, code))
        return [await store.get_plan(fingerprint) for fingerprint in fingerprints]

    async def read(store: Store) -> list[object]:
        return [await store.get_plan(fingerprint) for fingerprint in fingerprints]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright_agent.store.database.KEEP_PLANS", 3)
        assert run_with_store(path, keep) == run_with_store(path, read)
