"""What happened to components as rows, and the one document of what must be remembered. Knows SQL and the wire model.

Rule: an event that is there already is written over, so that a write may be repeated; their number is bounded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from meshwright.wire.health import HealthEvent
from meshwright_agent.store.unreadable import UnreadableRows, require_same, require_text

MEMORY: Final = "health_memory"


@dataclass(frozen=True)
class StoredHealth:
    """What a new agent begins with.

    Attributes:
        last_seq: the number of the last event; 0: there was none.
        memory: the document; None: there is none.
    """

    last_seq: int
    memory: str | None


def append_health_events(connection: sqlite3.Connection, events: Iterable[HealthEvent]) -> None:
    """Writes events under their numbers."""
    rows = ((event.seq, event.at.timestamp(), event.component, event.model_dump_json()) for event in events)
    connection.executemany(
        "INSERT OR REPLACE INTO health_events (seq, at_s, component, body) VALUES (?, ?, ?, ?)", rows
    )


def prune_health_events(connection: sqlite3.Connection, *, keep: int) -> None:
    """Deletes events beyond the newest `keep`."""
    row = connection.execute("SELECT seq FROM health_events ORDER BY seq DESC LIMIT 1 OFFSET ?", (keep,)).fetchone()
    if row is not None:
        connection.execute("DELETE FROM health_events WHERE seq <= ?", row)


def list_health_events(
    connection: sqlite3.Connection,
    unreadable: UnreadableRows,
    *,
    after: int | None,
    limit: int,
    component: str | None,
    since: datetime | None,
) -> tuple[HealthEvent, ...]:
    """Returns at most `limit` events, oldest first, of one component and from a time on.

    Those are the first that are numbered above `after`; None: the newest that there are.
    """
    order = "DESC" if after is None else "ASC"
    rows = connection.execute(
        "SELECT seq, component, body FROM health_events WHERE seq > ? AND (? IS NULL OR component = ?) AND at_s >= ? "
        f"ORDER BY seq {order}",
        (after or 0, component, component, since.timestamp() if since else float("-inf")),
    )
    events = unreadable.take("health_events", rows, _parse, limit)
    return tuple(reversed(events)) if after is None else events


def _parse(seq: int, component: str, body: str) -> HealthEvent:
    event = HealthEvent.model_validate_json(body)
    require_same(seq=(event.seq, seq), component=(event.component, component))
    return event


def put_health_memory(connection: sqlite3.Connection, memory: str) -> None:
    """Writes the document in the place of the one before."""
    connection.execute("INSERT OR REPLACE INTO health_memory (id, body) VALUES (1, ?)", (memory,))


def read_health(connection: sqlite3.Connection, unreadable: UnreadableRows) -> StoredHealth:
    """Returns what a new agent begins with. Numbers of events that were deleted are not given again."""
    (last_seq,) = connection.execute(
        "SELECT MAX(seq) FROM (SELECT seq FROM sqlite_sequence WHERE name = 'health_events' "
        "UNION ALL SELECT MAX(seq) FROM health_events)"
    ).fetchone()
    memory = connection.execute("SELECT id, body FROM health_memory WHERE id = 1").fetchone()
    text = unreadable.read(MEMORY, memory, lambda _id, body: require_text(body, "body"))
    return StoredHealth(last_seq or 0, text)
