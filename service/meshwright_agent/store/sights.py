"""The last sight of the host as a row. Knows SQL and JSON text; nothing of what was seen.

Rule: there is one, under the key of what it depends on; under another key there is none.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from meshwright_agent.store.unreadable import UnreadableRows, require_text

TABLE: Final = "sight"


def put_sight(connection: sqlite3.Connection, key: str, body: str) -> None:
    """Writes the sight in the place of the one before."""
    connection.execute("INSERT OR REPLACE INTO sight (id, key, body) VALUES (1, ?, ?)", (key, body))


def read_sight(connection: sqlite3.Connection, key: str, unreadable: UnreadableRows) -> str | None:
    """Returns the sight of this key as JSON text, None if there is none."""
    row = connection.execute("SELECT id, body FROM sight WHERE id = 1 AND key = ?", (key,)).fetchone()
    return unreadable.read(TABLE, row, lambda _id, body: require_text(body, "body"))
