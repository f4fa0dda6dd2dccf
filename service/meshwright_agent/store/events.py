"""Events of runs as rows, numbered within their run. Knows SQL and the wire model; nothing of who listens."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from meshwright.wire.runs import RunEvent
from meshwright_agent.store.unreadable import UnreadableRows, require_same


def append_events(connection: sqlite3.Connection, events: Iterable[RunEvent]) -> None:
    """Writes events; one that is there already is written over, so a write may be repeated."""
    rows = ((event.run_id, event.seq, event.model_dump_json()) for event in events)
    connection.executemany("INSERT OR REPLACE INTO events (run_id, seq, body) VALUES (?, ?, ?)", rows)


def events_after(
    connection: sqlite3.Connection, run_id: str, seq: int, limit: int, unreadable: UnreadableRows
) -> tuple[RunEvent, ...]:
    """Returns the first `limit` events of a run whose number is above `seq`, in order."""
    rows = connection.execute(
        "SELECT run_id || '/' || seq, run_id, seq, body FROM events WHERE run_id = ? AND seq > ? ORDER BY seq",
        (run_id, seq),
    )
    return unreadable.take("events", rows, _parse, limit)


def _parse(_name: str, run_id: str, seq: int, body: str) -> RunEvent:
    event = RunEvent.model_validate_json(body)
    require_same(run_id=(event.run_id, run_id), seq=(event.seq, seq))
    return event


def last_seq(connection: sqlite3.Connection, run_id: str) -> int:
    """Returns the number of a run's last event, 0 if it has none."""
    row = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM events WHERE run_id = ?", (run_id,)).fetchone()
    return int(row[0])
