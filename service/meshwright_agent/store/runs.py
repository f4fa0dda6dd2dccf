"""Runs as rows: the newest state of each, the last N that ended. Knows SQL and the wire model, no queue."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from meshwright.errors import RunCancelledError
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import FINAL_STATES, Run, RunKind, RunState
from meshwright_agent.store.unreadable import UnreadableRows, require_same

TABLE = "runs"

_MOST = 1 << 53
_IS_JSON = "typeof(body) = 'text' AND json_valid(body)"
"""Asked before SQLite reads in a body: one that is no JSON fails the whole query, and is for `take` to name."""
_NEXT = f"SELECT COALESCE(MAX(finished_position), 0) + 1 FROM runs WHERE finished_position BETWEEN 0 AND {_MOST}"
"""Whatever stands in a row that was damaged, those that end after it are numbered on."""
_SAVE = f"""
    INSERT INTO runs (id, state, finished_position, body)
    VALUES (
        :id,
        :state,
        CASE WHEN :final THEN ({_NEXT}) END,
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


def get_run(connection: sqlite3.Connection, run_id: str, unreadable: UnreadableRows) -> Run | None:
    """Returns a run, None if there is none that can be read."""
    row = connection.execute("SELECT id, state, body FROM runs WHERE id = ?", (run_id,)).fetchone()
    return unreadable.read(TABLE, row, _parse)


def is_final(connection: sqlite3.Connection, run_id: str) -> bool | None:
    """Returns whether a run has ended, also of one whose body cannot be read; None if there is none."""
    row = connection.execute("SELECT state FROM runs WHERE id = ?", (run_id,)).fetchone()
    return None if row is None else row[0] in FINAL_STATES


def list_runs(
    connection: sqlite3.Connection, limit: int, state: RunState | None, unreadable: UnreadableRows
) -> tuple[Run, ...]:
    """Returns at most `limit` runs, newest first, of one state if given; without results, which may be megabytes."""
    rows = connection.execute(
        f"SELECT id, state, CASE WHEN {_IS_JSON} THEN json_remove(body, '$.result') ELSE body END FROM runs "
        "WHERE :state IS NULL OR state = :state ORDER BY position DESC",
        {"state": state},
    )
    return unreadable.take(TABLE, rows, _parse, limit)


def list_succeeded(
    connection: sqlite3.Connection, kind: RunKind, limit: int, unreadable: UnreadableRows
) -> tuple[Run, ...]:
    """Returns at most `limit` runs of a kind that succeeded, newest first."""
    rows = connection.execute(
        "SELECT id, state, body FROM runs WHERE state = 'succeeded' "
        f"AND CASE WHEN {_IS_JSON} THEN json_extract(body, '$.kind') IS ? ELSE TRUE END ORDER BY position DESC",
        (kind,),
    )
    return unreadable.take(TABLE, rows, _parse, limit)


def prune_runs(connection: sqlite3.Connection, keep: int) -> None:
    """Deletes all but the `keep` runs that ended last, with their events and keys; runs under way stay.

    They are counted and not reckoned from the last number: one that was damaged would let all others go, or none.
    """
    connection.execute(
        "DELETE FROM runs WHERE position IN (SELECT position FROM runs WHERE finished_position IS NOT NULL "
        "ORDER BY finished_position DESC, position DESC LIMIT -1 OFFSET ?)",
        (keep,),
    )


def list_unfinished(connection: sqlite3.Connection, unreadable: UnreadableRows) -> tuple[Run, ...]:
    """Returns the runs that wait or run, oldest first."""
    rows = connection.execute(
        "SELECT id, state, body FROM runs WHERE finished_position IS NULL OR state IN ('queued', 'running') "
        "ORDER BY position"
    )
    return tuple(run for run in unreadable.take(TABLE, rows, _parse) if run.state not in FINAL_STATES)


def finish_unnumbered(connection: sqlite3.Connection) -> None:
    """Numbers what is still unfinished, so that it is pruned like any other.

    That is one that nobody can read, which counts as cancelled, or one that has ended and whose number was lost.
    """
    rows = connection.execute("SELECT position FROM runs WHERE finished_position IS NULL ORDER BY position").fetchall()
    final = ", ".join(f"'{state}'" for state in sorted(FINAL_STATES))
    connection.executemany(
        f"UPDATE runs SET state = CASE WHEN state IN ({final}) THEN state ELSE 'cancelled' END, "
        f"finished_position = ({_NEXT}) WHERE position = ?",
        rows,
    )


def _parse(run_id: str, state: str, body: str) -> Run:
    run = Run.model_validate_json(body)
    require_same(id=(run.id, run_id), state=(run.state, state))
    return run


def build_cancelled(run: Run, reason: str, at: datetime) -> Run:
    """Returns the run as cancelled, with the reason where a caller looks for it."""
    error = RunCancelledError(f"{run.id} was cancelled: {reason}", hint="submit it again")
    return run.model_copy(update={"state": "cancelled", "finished_at": at, "error": build_problem(error)})
