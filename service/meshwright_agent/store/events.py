"""Events of runs as rows, numbered within their run. Knows SQL and the wire model; nothing of who listens."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from meshwright.wire.runs import RunEvent


def append_events(connection: sqlite3.Connection, events: Iterable[RunEvent]) -> None:
    """Writes events; one that is there already is written over, so a write may be repeated."""
    rows = ((event.run_id, event.seq, event.model_dump_json()) for event in events)
    connection.executemany("INSERT OR REPLACE INTO events (run_id, seq, body) VALUES (?, ?, ?)", rows)


def events_after(connection: sqlite3.Connection, run_id: str, seq: int, limit: int) -> tuple[RunEvent, ...]:
    """Returns the first `limit` events of a run whose number is above `seq`, in order."""
    rows = connection.execute(
        "SELECT body FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?", (run_id, seq, limit)
    )
    return tuple(RunEvent.model_validate_json(body) for (body,) in rows)


def last_seq(connection: sqlite3.Connection, run_id: str) -> int:
    """Returns the number of a run's last event, 0 if it has none."""
    row = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM events WHERE run_id = ?", (run_id,)).fetchone()
    return int(row[0])
