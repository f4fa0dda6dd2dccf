from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from meshwright_agent.store.database import Store
from meshwright_agent.store.migrations import MIGRATIONS, SCHEMA, migrate
from meshwright_agent.store.shape import find_contradiction
from tests.fakes.databases import NAME, start_on, write_database
from tests.unit.store.opening import migrated, run_with_store


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_database(tmp_path_factory.mktemp("sound"))


def build_older(path: Path, number: int) -> None:
    """Writes the file that an agent of schema `number` left."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for step in MIGRATIONS[:number]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")


@pytest.mark.parametrize("number", range(1, SCHEMA + 1))
def test_a_file_of_every_schema_is_taken_on_and_not_set_aside(tmp_path: Path, number: int) -> None:
    path = tmp_path / "s.sqlite3"
    build_older(path, number)

    async def main(store: Store) -> None:
        assert store.set_aside is None
        await store.check()

    run_with_store(path, main)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        *((f"PRAGMA user_version = {number}", f"{number}") for number in (0, 3, -1, SCHEMA + 1)),
        *(
            (f"DROP TABLE {table}", table)
            for table in ("runs", "records", "leases", "health_memory", "events", "idempotency_keys")
        ),
        ("DROP INDEX leases_by_end", "leases_by_end"),
        ("ALTER TABLE runs RENAME COLUMN body TO text", "runs"),
        ("UPDATE sqlite_sequence SET seq = 'x' WHERE name = 'runs'", "runs"),
        (f"UPDATE sqlite_sequence SET seq = {2**63 - 1} WHERE name = 'health_events'", "health_events"),
        *(
            (f"UPDATE {table} SET {number} = {1 << 53} WHERE {number} = 1", table)
            for table, number in (("runs", "position"), ("leases", "position"), ("health_events", "seq"))
        ),
    ],
)
def test_a_number_that_the_tables_contradict_sets_the_file_aside_and_the_agent_starts(
    sound: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, statement: str, said: str
) -> None:
    shutil.copy(sound, tmp_path / NAME)
    with contextlib.closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as connection:
        connection.execute(statement)
    assert start_on(tmp_path).startswith("degraded: writes and reads, but the file of before was damaged and set aside")
    assert len(list(tmp_path.glob("*.damaged-*Z"))) == 1
    (logged,) = (record.getMessage() for record in caplog.records if "is damaged" in record.getMessage())
    assert said in logged


def test_a_table_that_is_not_ours_contradicts_nothing() -> None:
    with migrated() as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
        assert find_contradiction(connection) == ""


def test_a_row_before_all_others_contradicts_nothing() -> None:
    with migrated() as connection:
        connection.execute("INSERT INTO plans (position, fingerprint, body) VALUES (-1, 'a', '{}'), (7, 'b', '{}')")
        connection.execute(f"UPDATE plans SET position = {(1 << 53) - 1} WHERE position = 7")
        assert find_contradiction(connection) == ""


def test_a_higher_number_with_other_tables_is_a_newer_agents() -> None:
    with migrated() as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        assert f"those of schema {SCHEMA}" in find_contradiction(connection)
        connection.execute("CREATE TABLE future (text TEXT)")
        assert find_contradiction(connection) == ""


def test_an_empty_file_is_a_new_one() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        assert find_contradiction(connection) == ""
        migrate(connection)
        assert find_contradiction(connection) == ""
