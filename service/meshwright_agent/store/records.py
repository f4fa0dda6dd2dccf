"""Bench records as rows: the newest of each case, axis, size, dtype and set of devices.

Older ones stay with their run. "Newest" is the order of writing, not the wall clock, which may be set back.
"""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from typing import Final

from meshwright.wire.bench import BenchRecord, LatestBench
from meshwright_agent.store.unreadable import UnreadableRows, require_same, require_text

_PRUNE: Final = """
    DELETE FROM records WHERE position IN (
        SELECT position FROM records ORDER BY position LIMIT MAX(0, (SELECT COUNT(*) FROM records) - ?)
    )
"""


def build_identity(record: BenchRecord) -> str:
    """Returns what two records share when the later replaces the earlier."""
    parts = (
        record.case,
        record.axis,
        record.axis_size,
        record.dtype,
        record.size_bytes,
        record.device_indices,
    )
    return json.dumps(parts)


def save_record(connection: sqlite3.Connection, run_id: str, record: BenchRecord) -> None:
    """Writes a record in the place of the one with the same identity."""
    connection.execute(
        "INSERT OR REPLACE INTO records (identity, run_id, body) VALUES (?, ?, ?)",
        (build_identity(record), run_id, record.model_dump_json()),
    )


def read_latest(connection: sqlite3.Connection, now: datetime, unreadable: UnreadableRows) -> LatestBench:
    """Returns the newest records in the order in which they were measured, their age as of `now`."""
    rows = connection.execute("SELECT position, identity, run_id, body FROM records ORDER BY position")
    found = unreadable.take("records", rows, _parse)
    records = tuple(_age(record, now) for _, record in found)
    return LatestBench(records=records, runs=tuple(dict.fromkeys(run_id for run_id, _ in found)))


def _parse(_position: int, identity: str, run_id: str, body: str) -> tuple[str, BenchRecord]:
    record = BenchRecord.model_validate_json(body)
    require_same(identity=(build_identity(record), identity))
    return require_text(run_id, "run_id"), record


def prune_records(connection: sqlite3.Connection, keep: int) -> None:
    """Deletes all but the `keep` newest."""
    connection.execute(_PRUNE, (keep,))


def _age(record: BenchRecord, now: datetime) -> BenchRecord:
    return record.model_copy(update={"age_s": max(0.0, (now - record.observed_at).total_seconds())})
