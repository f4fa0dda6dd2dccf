"""Leases as rows: those that hold, and the last that ended, with the reason. Knows SQL and the wire model, no clock.

Rule: a key stays with its lease also when that has ended, so that a late repetition does not reserve anew.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from meshwright.wire.leases import Lease
from meshwright_agent.store.idempotency import KeyUse
from meshwright_agent.store.unreadable import UnreadableRows, require_same, require_text

KEEP_ENDED: Final = 1000
ROUTE: Final = "leases"
TABLE: Final = "leases"

_COLUMNS: Final = "SELECT id, body, boot_id, until_s, ended FROM leases"
_SAVE: Final = """
    INSERT INTO leases (id, boot_id, until_s, body) VALUES (:id, :boot_id, :until_s, :body)
    ON CONFLICT (id) DO UPDATE
        SET boot_id = excluded.boot_id, until_s = excluded.until_s, body = excluded.body, ended = NULL
"""
_END: Final = """
    UPDATE leases SET ended = ?, position = (SELECT MAX(position) + 1 FROM leases) WHERE id = ? AND ended IS NULL
"""
"""It takes a new place as it ends: one that was held for months is among the last that ended, not the first to go."""
_PRUNE: Final = """
    DELETE FROM leases WHERE ended IS NOT NULL AND position IN (
        SELECT position FROM leases WHERE ended IS NOT NULL ORDER BY position DESC LIMIT -1 OFFSET ?
    )
"""


@dataclass(frozen=True)
class StoredLease:
    """A lease with what decides its end.

    Attributes:
        lease: as it was when it was written.
        boot_id: the start of the machine that `until_s` counts from.
        until_s: seconds since then at which it ends by itself.
        ended: why it has ended; None: it had not when it was written.
    """

    lease: Lease
    boot_id: str
    until_s: float
    ended: str | None = None


def save_lease(connection: sqlite3.Connection, held: StoredLease) -> None:
    """Writes a lease that holds."""
    row = {"id": held.lease.id, "boot_id": held.boot_id, "until_s": held.until_s, "body": held.lease.model_dump_json()}
    connection.execute(_SAVE, row)


def remember_lease_key(connection: sqlite3.Connection, lease_id: str, use: KeyUse) -> None:
    """Writes the key that a lease was made with; of a lease that cannot be read it is taken away."""
    connection.execute("UPDATE leases SET key = NULL WHERE key = ?", (use.key,))
    connection.execute(
        "UPDATE leases SET key = ?, request_sha256 = ? WHERE id = ?", (use.key, use.request_sha256, lease_id)
    )


def end_leases(connection: sqlite3.Connection, ended: Mapping[str, str]) -> None:
    """Writes why leases have ended; of all that have, the last are kept."""
    rows = ((reason, lease_id) for lease_id, reason in ended.items())
    connection.executemany(_END, rows)
    connection.execute(_PRUNE, (KEEP_ENDED,))


def forget_leases(connection: sqlite3.Connection, lease_ids: Iterable[str]) -> None:
    """Deletes leases that were never told to anybody."""
    connection.executemany("DELETE FROM leases WHERE id = ?", ((lease_id,) for lease_id in lease_ids))


def list_held(connection: sqlite3.Connection, unreadable: UnreadableRows) -> tuple[StoredLease, ...]:
    """Returns the leases that have not ended, oldest first."""
    rows = connection.execute(f"{_COLUMNS} WHERE ended IS NULL ORDER BY position")
    return unreadable.take(TABLE, rows, _parse)


def find_lease(connection: sqlite3.Connection, lease_id: str, unreadable: UnreadableRows) -> StoredLease | None:
    """Returns a lease that holds or has ended lately, None if there is none that can be read."""
    row = connection.execute(f"{_COLUMNS} WHERE id = ?", (lease_id,)).fetchone()
    return unreadable.read(TABLE, row, _parse)


def recall_lease_key(
    connection: sqlite3.Connection, key: str, unreadable: UnreadableRows
) -> tuple[KeyUse, StoredLease] | None:
    """Returns what a key was used for and the lease that it made, None for a new key, or one whose lease is damaged."""
    row = connection.execute(
        "SELECT id, body, boot_id, until_s, ended, request_sha256 FROM leases WHERE key = ?", (key,)
    ).fetchone()
    return unreadable.read(TABLE, row, lambda *columns: _parse_key(key, *columns))


def _parse(lease_id: str, body: str, boot_id: str, until_s: float, ended: str | None) -> StoredLease:
    lease = Lease.model_validate_json(body)
    require_same(id=(lease.id, lease_id))
    if not isinstance(until_s, int | float) or not math.isfinite(until_s):
        raise ValueError(f"its until_s is {until_s!r}, not seconds")
    reason = None if ended is None else require_text(ended, "ended")
    return StoredLease(lease, require_text(boot_id, "boot_id"), until_s, reason)


def _parse_key(key: str, *columns: Any) -> tuple[KeyUse, StoredLease]:
    *row, request_sha256 = columns
    return KeyUse(key, ROUTE, require_text(request_sha256, "request_sha256")), _parse(*row)
