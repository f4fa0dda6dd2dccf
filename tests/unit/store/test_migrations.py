from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from meshwright_agent.store.migrations import MIGRATIONS, SCHEMA, migrate, read_schema, transaction


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _write_then_fail(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        connection.execute("INSERT INTO t VALUES (2)")
        connection.execute("INSERT INTO nowhere VALUES (3)")


def test_a_new_file_gets_every_table_and_the_newest_number(connection: sqlite3.Connection) -> None:
    assert read_schema(connection) == 0
    migrate(connection)
    assert read_schema(connection) == SCHEMA == len(MIGRATIONS)
    expected = {"runs", "events", "records", "plans", "idempotency_keys", "heartbeat"}
    assert _tables(connection) >= expected


def test_a_step_that_fails_leaves_the_file_as_it_was(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE heartbeat (other TEXT)")  # the last statement of step 1 will fail
    with pytest.raises(sqlite3.OperationalError, match="heartbeat"):
        migrate(connection)
    assert _tables(connection) == {"heartbeat"}
    assert read_schema(connection) == 0


def test_a_transaction_is_whole_or_not_at_all(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE t (n INTEGER)")
    with transaction(connection):
        connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        _write_then_fail(connection)
    assert connection.execute("SELECT n FROM t").fetchall() == [(1,)]
    assert not connection.in_transaction
