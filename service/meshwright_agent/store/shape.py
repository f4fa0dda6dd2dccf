"""Whether what stands in a file is what its schema number says: which tables, columns and indexes, and their counters.

Rule: a file whose number and tables contradict each other is damaged, and no step may be taken on it. Columns are
compared by name and kind, never by the text of SQL, which releases of SQLite write differently. What nobody here made,
such as an operator's own table, is let be.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Mapping
from typing import Final

from meshwright_agent.store.migrations import MIGRATIONS, SCHEMA, read_schema

POSITION_MOST: Final = 1 << 53
"""Of a row's number, and of the counter of rows: from 2^63 - 1 on SQLite takes no more ("database or disk is full")."""

Shape = Mapping[str, tuple[object, ...]]
"""Name of a table or index → what it is of, its columns and foreign keys."""


def find_contradiction(connection: sqlite3.Connection) -> str:
    """Returns what contradicts the file's number in words, "" if nothing does.

    A number that is too high is a newer agent's, unless the tables are those of a schema that is known here: each step
    changes the tables.
    """
    number, there = read_schema(connection), read_shape(connection)
    if number < 0:
        return f"its schema number is {number}"
    known = build_shape(SCHEMA).keys()
    if number > SCHEMA:
        fits = next((older for older in range(1, SCHEMA + 1) if there == build_shape(older)), None)
        return f"its schema number is {number}, its tables are those of schema {fits}" if fits else ""
    wanted = build_shape(number)
    for name in sorted(known | wanted.keys()):
        if name in wanted and name not in there:
            return f"schema {number} has {name}, which is not there"
        if there.get(name) != wanted.get(name):
            return f"{name} is not what it is in schema {number}"
    return _find_bad_counter(connection)


def read_shape(connection: sqlite3.Connection) -> Shape:
    """Returns the tables and indexes of a database, with those that SQLite made for UNIQUE."""
    rows = connection.execute("SELECT type, name, tbl_name FROM sqlite_master ORDER BY name").fetchall()
    return {str(name): (kind, table, *_read_columns(connection, str(kind), str(name))) for kind, name, table in rows}


def _read_columns(connection: sqlite3.Connection, kind: str, name: str) -> list[tuple[object, ...]]:
    asked = "SELECT name FROM pragma_index_info(?) ORDER BY seqno"
    if kind == "table":
        asked = 'SELECT name, upper(type), "notnull", pk FROM pragma_table_info(?) ORDER BY cid'
    keys = 'SELECT "table", "from", "to", on_delete FROM pragma_foreign_key_list(?) ORDER BY id, seq'
    return [*connection.execute(asked, (name,)), *connection.execute(keys, (name,))]


@functools.cache
def build_shape(number: int) -> Shape:
    """Returns the tables and indexes of a file that has taken `number` steps."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for step in MIGRATIONS[:number]:
            for statement in step:
                connection.execute(statement)
        return read_shape(connection)


def _find_bad_counter(connection: sqlite3.Connection) -> str:
    """A counter that was damaged would give numbers again, or none any more; so would a row beyond all numbers."""
    shape = read_shape(connection)
    if "sqlite_sequence" not in shape:
        return ""
    for table, counter in connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall():
        if not isinstance(counter, int) or not 0 <= counter < POSITION_MOST:
            return f"the counter of table {table!r} is {counter!r}"
        if table in shape and (last := _read_last(connection, table)) >= POSITION_MOST:
            return f"the last row of table {table!r} has the number {last}"
    return ""


def _read_last(connection: sqlite3.Connection, table: str) -> int:
    quoted = table.replace('"', '""')
    return connection.execute(f'SELECT MAX(rowid) FROM "{quoted}"').fetchone()[0] or 0
