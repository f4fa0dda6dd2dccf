"""Plans as rows, by fingerprint: the last N that were made. Knows SQL and the wire model, not planning."""

from __future__ import annotations

import sqlite3
from typing import Final

from meshwright.wire.mesh import Plan

_PRUNE: Final = """
    DELETE FROM plans WHERE position IN (
        SELECT position FROM plans ORDER BY position LIMIT MAX(0, (SELECT COUNT(*) FROM plans) - ?)
    )
"""


def put_plan(connection: sqlite3.Connection, plan: Plan, keep: int) -> None:
    """Writes a plan as the newest, in the place of an earlier one; drops the oldest beyond `keep`.

    A plan whose devices were left out never replaces one that has them: ranks fetch it to build a mesh.
    """
    if plan.devices is None and _has_devices(get_plan(connection, plan.fingerprint)):
        return
    connection.execute(
        "INSERT OR REPLACE INTO plans (fingerprint, body) VALUES (?, ?)",
        (plan.fingerprint, plan.model_dump_json()),
    )
    connection.execute(_PRUNE, (keep,))


def get_plan(connection: sqlite3.Connection, fingerprint: str) -> Plan | None:
    """Returns the plan with this fingerprint, None if there is none."""
    row = connection.execute("SELECT body FROM plans WHERE fingerprint = ?", (fingerprint,)).fetchone()
    return None if row is None else Plan.model_validate_json(row[0])


def _has_devices(plan: Plan | None) -> bool:
    return plan is not None and plan.devices is not None
