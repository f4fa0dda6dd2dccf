"""What happened to components as rows, and the one document of what must be remembered. Knows SQL and the wire model.

Rule: an event that is there already is written over, so that a write may be repeated; what is kept is bounded in number
and in age.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from meshwright.wire.health import HealthEvent


@dataclass(frozen=True)
class StoredHealth:
    """What a new agent begins with: the number of the last event, and the document; None: there is none."""

    last_seq: int
    memory: str | None


def append_health_events(connection: sqlite3.Connection, events: Iterable[HealthEvent]) -> None:
    """Writes events under their numbers."""
    rows = ((event.seq, event.at.timestamp(), event.component, event.model_dump_json()) for event in events)
    connection.executemany(
        "INSERT OR REPLACE INTO health_events (seq, at_s, component, body) VALUES (?, ?, ?, ?)", rows
    )


def prune_health_events(connection: sqlite3.Connection, *, keep: int, oldest: datetime) -> None:
    """Deletes events beyond the newest `keep`, and those from before `oldest`."""
    row = connection.execute("SELECT seq FROM health_events ORDER BY seq DESC LIMIT 1 OFFSET ?", (keep,)).fetchone()
    if row is not None:
        connection.execute("DELETE FROM health_events WHERE seq <= ?", row)
    connection.execute("DELETE FROM health_events WHERE at_s < ?", (oldest.timestamp(),))


def list_health_events(
    connection: sqlite3.Connection, *, after: int | None, limit: int, component: str | None, since: datetime | None
) -> tuple[HealthEvent, ...]:
    """Returns at most `limit` events, oldest first, of one component and from a time on.

    Those are the first that are numbered above `after`; None: the newest that there are.
    """
    order = "DESC" if after is None else "ASC"
    rows = connection.execute(
        "SELECT body FROM health_events WHERE seq > ? AND (? IS NULL OR component = ?) AND at_s >= ? "
        f"ORDER BY seq {order} LIMIT ?",
        (after or 0, component, component, since.timestamp() if since else float("-inf"), limit),
    )
    events = [HealthEvent.model_validate_json(body) for (body,) in rows]
    return tuple(reversed(events) if after is None else events)


def put_health_memory(connection: sqlite3.Connection, memory: str) -> None:
    """Writes the document in the place of the one before."""
    connection.execute("INSERT OR REPLACE INTO health_memory (id, body) VALUES (1, ?)", (memory,))


def read_health(connection: sqlite3.Connection) -> StoredHealth:
    """Returns what a new agent begins with. Numbers of events that were deleted are not given again."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'health_events'").fetchone()
    memory = connection.execute("SELECT body FROM health_memory WHERE id = 1").fetchone()
    return StoredHealth(int(row[0]) if row else 0, str(memory[0]) if memory else None)
