"""Leases as rows: those that hold, and the last that ended, with the reason. Knows SQL and the wire model, no clock.

Rule: a key stays with its lease also when that has ended, so that a late repetition does not reserve anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.wire.leases import Lease
from meshwright_agent.store.idempotency import KeyUse

KEEP_ENDED: Final = 1000
ROUTE: Final = "leases"

_COLUMNS: Final = "SELECT body, boot_id, until_s, ended FROM leases"
_SAVE: Final = """
    INSERT INTO leases (id, boot_id, until_s, body) VALUES (:id, :boot_id, :until_s, :body)
    ON CONFLICT (id) DO UPDATE SET boot_id = excluded.boot_id, until_s = excluded.until_s, body = excluded.body
"""
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
    """Writes the key that a lease was made with; the key must be new."""
    connection.execute(
        "UPDATE leases SET key = ?, request_sha256 = ? WHERE id = ?", (use.key, use.request_sha256, lease_id)
    )


def end_leases(connection: sqlite3.Connection, ended: Mapping[str, str]) -> None:
    """Writes why leases have ended; of all that have, the last are kept."""
    rows = ((reason, lease_id) for lease_id, reason in ended.items())
    connection.executemany("UPDATE leases SET ended = ? WHERE id = ? AND ended IS NULL", rows)
    connection.execute(_PRUNE, (KEEP_ENDED,))


def forget_leases(connection: sqlite3.Connection, lease_ids: Iterable[str]) -> None:
    """Deletes leases that were never told to anybody."""
    connection.executemany("DELETE FROM leases WHERE id = ?", ((lease_id,) for lease_id in lease_ids))


def list_held(connection: sqlite3.Connection) -> tuple[StoredLease, ...]:
    """Returns the leases that have not ended, oldest first."""
    return tuple(map(_parse, connection.execute(f"{_COLUMNS} WHERE ended IS NULL ORDER BY position")))


def find_lease(connection: sqlite3.Connection, lease_id: str) -> StoredLease | None:
    """Returns a lease that holds or has ended lately, None if there is none."""
    row = connection.execute(f"{_COLUMNS} WHERE id = ?", (lease_id,)).fetchone()
    return None if row is None else _parse(row)


def recall_lease_key(connection: sqlite3.Connection, key: str) -> tuple[KeyUse, StoredLease] | None:
    """Returns what a key was used for and the lease that it made, None for a new key."""
    row = connection.execute(
        "SELECT body, boot_id, until_s, ended, request_sha256 FROM leases WHERE key = ?", (key,)
    ).fetchone()
    return None if row is None else (KeyUse(key, ROUTE, row[4]), _parse(row[:4]))


def _parse(row: tuple[str, str, float, str | None]) -> StoredLease:
    body, boot_id, until_s, ended = row
    return StoredLease(Lease.model_validate_json(body), boot_id, until_s, ended)
