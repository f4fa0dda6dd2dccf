"""Answers of XLA's compilers as rows, by what was compiled: the last N. Knows SQL and bodies of JSON text.

Rule: a key names the job, the versions and the sources that made the answer (`meshwright.compiling.compilers`), so an
answer never grows old; the oldest go where there are too many.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from meshwright_agent.store.unreadable import UnreadableRows, require_text

TABLE: Final = "verifications"

_PRUNE: Final = """
    DELETE FROM verifications WHERE position IN (
        SELECT position FROM verifications ORDER BY position
        LIMIT MAX(0, (SELECT COUNT(*) FROM verifications) - ?)
    )
"""


def put_verification(connection: sqlite3.Connection, key: str, body: str, keep: int) -> None:
    """Writes an answer as the newest, in the place of an earlier one; drops the oldest beyond `keep`."""
    connection.execute("INSERT OR REPLACE INTO verifications (key, body) VALUES (?, ?)", (key, body))
    connection.execute(_PRUNE, (keep,))


def get_verification(connection: sqlite3.Connection, key: str, unreadable: UnreadableRows) -> str | None:
    """Returns the answer to what this key names as JSON text, None if there is none that can be read."""
    row = connection.execute(
        "SELECT key, body, typeof(body) = 'text' AND json_valid(body) FROM verifications WHERE key = ?", (key,)
    ).fetchone()
    return unreadable.read(TABLE, row, _parse)


def _parse(_key: str, body: str, is_json: int) -> str:
    if not is_json:
        raise ValueError("its body is no JSON")
    return require_text(body, "body")
