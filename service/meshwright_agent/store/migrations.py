"""The schema, as numbered steps: `PRAGMA user_version` counts how many a file has taken.

Rule: a step that was released never changes; a change is a new step at the end. Bodies are the wire models'
JSON; a column exists only where SQL asks for it. Knows nothing of what the rows mean.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Final

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE runs (
            position INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            state TEXT NOT NULL,
            finished_position INTEGER,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX runs_by_state ON runs (state, position)",
        "CREATE INDEX runs_by_finish ON runs (finished_position)",
        """CREATE TABLE events (
            run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            seq INTEGER NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (run_id, seq)
        ) WITHOUT ROWID""",
        """CREATE TABLE records (
            position INTEGER PRIMARY KEY AUTOINCREMENT,
            identity TEXT NOT NULL UNIQUE,
            run_id TEXT NOT NULL,
            body TEXT NOT NULL
        )""",
        """CREATE TABLE plans (
            position INTEGER PRIMARY KEY AUTOINCREMENT,
            fingerprint TEXT NOT NULL UNIQUE,
            body TEXT NOT NULL
        )""",
        """CREATE TABLE idempotency_keys (
            key TEXT PRIMARY KEY,
            route TEXT NOT NULL,
            request_sha256 TEXT NOT NULL,
            run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE
        ) WITHOUT ROWID""",
        "CREATE INDEX idempotency_keys_by_run ON idempotency_keys (run_id)",
        "CREATE TABLE heartbeat (id INTEGER PRIMARY KEY CHECK (id = 1), token TEXT NOT NULL)",
    ),
    (  # a plan of thousands of devices has megabytes: their number alone does not bound the file
        "ALTER TABLE plans ADD COLUMN size INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX plans_by_size ON plans (position, size)",
    ),
    (  # what XLA's compilers said, by what was compiled and with which versions
        """CREATE TABLE verifications (
            position INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT NOT NULL UNIQUE,
            body TEXT NOT NULL
        )""",
    ),
    (  # reservations of devices; `until_s` is time since the machine's start that `boot_id` names
        """CREATE TABLE leases (
            position INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            key TEXT UNIQUE,
            request_sha256 TEXT,
            boot_id TEXT NOT NULL,
            until_s REAL NOT NULL,
            ended TEXT,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX leases_by_end ON leases (ended, position)",
    ),
    (  # what happened to components, and what must be remembered of them
        """CREATE TABLE health_events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at_s REAL NOT NULL,
            component TEXT NOT NULL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX health_events_by_component ON health_events (component, seq)",
        "CREATE TABLE health_memory (id INTEGER PRIMARY KEY CHECK (id = 1), body TEXT NOT NULL)",
    ),
)

SCHEMA: Final = len(MIGRATIONS)
"""The schema that this release writes."""


def read_schema(connection: sqlite3.Connection) -> int:
    """Returns how many steps the file has taken; 0 for a new one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Takes the steps that the file lacks, each whole or not at all; the file is not newer than `SCHEMA`."""
    for number in range(read_schema(connection) + 1, SCHEMA + 1):
        with transaction(connection):
            for statement in MIGRATIONS[number - 1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything inside is written, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
