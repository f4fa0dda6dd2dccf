"""Runs as rows: the newest state of each, the last N that ended. Knows SQL and the wire model, no queue."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from meshwright.errors import RunCancelledError
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import FINAL_STATES, Run, RunKind, RunState

_SAVE = """
    INSERT INTO runs (id, state, finished_position, body)
    VALUES (
        :id,
        :state,
        CASE WHEN :final THEN (SELECT COALESCE(MAX(finished_position), 0) + 1 FROM runs) END,
        :body
    )
    ON CONFLICT (id) DO UPDATE SET
        state = excluded.state,
        finished_position = COALESCE(runs.finished_position, excluded.finished_position),
        body = excluded.body
"""


def save_run(connection: sqlite3.Connection, run: Run) -> None:
    """Writes a run's newest state; its place in the list stays."""
    row = {
        "id": run.id,
        "state": run.state,
        "final": run.state in FINAL_STATES,
        "body": run.model_dump_json(),
    }
    connection.execute(_SAVE, row)


def get_run(connection: sqlite3.Connection, run_id: str) -> Run | None:
    """Returns a run, None if there is none."""
    row = connection.execute("SELECT body FROM runs WHERE id = ?", (run_id,)).fetchone()
    return None if row is None else Run.model_validate_json(row[0])


def list_runs(connection: sqlite3.Connection, limit: int, state: RunState | None) -> tuple[Run, ...]:
    """Returns at most `limit` runs, newest first, of one state if given."""
    rows = connection.execute(
        "SELECT body FROM runs WHERE :state IS NULL OR state = :state ORDER BY position DESC LIMIT :limit",
        {"state": state, "limit": limit},
    )
    return tuple(Run.model_validate_json(body) for (body,) in rows)


def list_succeeded(connection: sqlite3.Connection, kind: RunKind, limit: int) -> tuple[Run, ...]:
    """Returns at most `limit` runs of a kind that succeeded, newest first."""
    rows = connection.execute(
        "SELECT body FROM runs WHERE state = 'succeeded' AND json_extract(body, '$.kind') = ? "
        "ORDER BY position DESC LIMIT ?",
        (kind, limit),
    )
    return tuple(Run.model_validate_json(body) for (body,) in rows)


def prune_runs(connection: sqlite3.Connection, keep: int) -> None:
    """Deletes all but the `keep` runs that ended last, with their events and keys; runs under way stay.

    `finished_position` counts without gaps, since only its smallest are ever deleted.
    """
    connection.execute(
        "DELETE FROM runs WHERE finished_position <= (SELECT MAX(finished_position) FROM runs) - ?", (keep,)
    )


def list_unfinished(connection: sqlite3.Connection) -> tuple[Run, ...]:
    """Returns the runs that wait or run, oldest first."""
    rows = connection.execute("SELECT body FROM runs WHERE finished_position IS NULL ORDER BY position")
    return tuple(Run.model_validate_json(body) for (body,) in rows)


def build_cancelled(run: Run, reason: str, at: datetime) -> Run:
    """Returns the run as cancelled, with the reason where a caller looks for it."""
    error = RunCancelledError(f"{run.id} was cancelled: {reason}", hint="submit it again")
    return run.model_copy(update={"state": "cancelled", "finished_at": at, "error": build_problem(error)})
