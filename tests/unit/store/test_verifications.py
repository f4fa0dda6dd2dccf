"""What compilers said: kept under the key of what was compiled, the newest of them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.store.database import Store
from meshwright_agent.store.unreadable import UnreadableRows
from meshwright_agent.store.verifications import get_verification, put_verification
from tests.unit.store.opening import migrated, run_with_store


def test_an_answer_comes_back_by_its_key_also_after_a_restart(tmp_path: Path) -> None:
    async def keep(store: Store) -> None:
        await store.put_verification("mwv1-a", '{"status": "verified"}')
        await store.put_verification("mwv1-a", '{"status": "does_not_fit"}')

    async def read(store: Store) -> None:
        assert await store.get_verification("mwv1-a") == '{"status": "does_not_fit"}'
        assert await store.get_verification("mwv1-b") is None

    run_with_store(tmp_path / "s.sqlite3", keep)
    run_with_store(tmp_path / "s.sqlite3", read)


@given(numbers=st.lists(st.integers(0, 9)), keep=st.integers(1, 5))
def test_the_newest_are_kept_and_no_more_than_asked(numbers: list[int], keep: int) -> None:
    with migrated() as connection:
        for number in numbers:
            put_verification(connection, str(number), str(number), keep)
        newest = list(dict.fromkeys(reversed(numbers)))[:keep]
        assert {number for number in range(10) if get_verification(connection, str(number), UnreadableRows())} == set(
            newest
        )


def test_an_answer_that_the_disk_damaged_is_none(tmp_path: Path) -> None:
    with migrated() as connection:
        put_verification(connection, "a", "{damaged", 1)
        unreadable = UnreadableRows()
        assert get_verification(connection, "a", unreadable) is None
        assert unreadable.names == {"verifications": ("a",)}

    async def read(store: Store) -> None:
        await store.put_verification("a", "{damaged")
        assert await store.get_verification("a") is None

    run_with_store(tmp_path / "s.sqlite3", read)
