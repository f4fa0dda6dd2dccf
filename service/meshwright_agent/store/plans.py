"""Plans as rows, by fingerprint: the last N that were made. Knows SQL and bodies of JSON text, not what stands in them.

Rule: a plan is written with its devices, since ranks fetch it to build a mesh. A body goes in and out as text: to
read 8,960 devices only to write them again would take longer than planning.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Final

from meshwright_agent.packing import is_packed
from meshwright_agent.store.unreadable import UnreadableRows, require_same, require_text

CACHED_PLANS: Final = 256
SMALL_CHARS: Final = 1 << 15
"""Of a plan that memory keeps: some 100 devices. 256 of them are 8 MiB; one plan of 8,960 devices has 2."""
KEPT_CHARS: Final = 1 << 30
"""Of all plans that are kept: 500 of 8,960 devices."""

_PRUNE: Final = """
    DELETE FROM plans WHERE position IN (
        SELECT position FROM plans ORDER BY position LIMIT MAX(0, (SELECT COUNT(*) FROM plans) - ?)
    )
"""
_PRUNE_BY_SIZE: Final = """
    DELETE FROM plans WHERE position IN (
        SELECT position FROM (
            SELECT position, SUM(size) FILTER (WHERE size BETWEEN 0 AND 1 << 40) OVER (ORDER BY position DESC) AS kept
            FROM plans
        )
        WHERE kept > ? AND position < (SELECT MAX(position) FROM plans)
    )
"""
"""A size that no text has was damaged: it counts for nothing, and keeps none from being counted."""


def put_plan(
    connection: sqlite3.Connection, fingerprint: str, body: str, keep: int, *, keep_chars: int = KEPT_CHARS
) -> int:
    """Writes a plan as the newest, in the place of an earlier one; drops the oldest beyond `keep` and `keep_chars`.

    Returns how many went because of `keep_chars`.
    """
    connection.execute(
        "INSERT OR REPLACE INTO plans (fingerprint, body, size) VALUES (?, ?, ?)", (fingerprint, body, len(body))
    )
    connection.execute(_PRUNE, (keep,))
    return connection.execute(_PRUNE_BY_SIZE, (keep_chars,)).rowcount if len(body) > SMALL_CHARS else 0


def get_plan(connection: sqlite3.Connection, fingerprint: str, unreadable: UnreadableRows) -> str | None:
    """Returns the plan with this fingerprint as JSON text, None if there is none that can be read."""
    row = connection.execute(
        # json_extract fails the query where a body is no JSON
        "SELECT fingerprint, body, CASE WHEN typeof(body) = 'text' AND json_valid(body) "
        "THEN coalesce(json_extract(body, '$.fingerprint'), '') END FROM plans WHERE fingerprint = ?",
        (fingerprint,),
    ).fetchone()
    return unreadable.read("plans", row, _parse)


def _parse(fingerprint: str, body: str, said: object) -> str:
    if said is None:
        raise ValueError("its body is no JSON")
    require_same(fingerprint=(said, fingerprint))
    return require_text(body, "body")


class PlanCache:
    """The plans that were written last: small ones whole, large ones by their digest; forgets in the table's order.

    So what is here is also in the table; whoever drops rows for another reason than their number says so (`clear`).
    """

    def __init__(self, keep: int) -> None:
        self._limit = min(CACHED_PLANS, keep)
        self._bodies: dict[str, str | bytes] = {}

    def get(self, fingerprint: str) -> str | None:
        """Returns a plan's text, None where it is not in memory."""
        body = self._bodies.get(fingerprint)
        return body if isinstance(body, str) else None

    def holds(self, fingerprint: str, body: str) -> bool:
        """Returns whether this very text, packed as it is, was written lately."""
        return self._bodies.get(fingerprint) == _shorten(body)

    def put(self, fingerprint: str, body: str) -> None:
        """Remembers what was written just now, as the newest."""
        self._bodies.pop(fingerprint, None)
        self._bodies[fingerprint] = _shorten(body)
        while len(self._bodies) > self._limit:
            del self._bodies[next(iter(self._bodies))]

    def clear(self) -> None:
        """Forgets everything."""
        self._bodies.clear()


def _shorten(body: str) -> str | bytes:
    is_small = len(body) <= SMALL_CHARS and not is_packed(body)
    return body if is_small else hashlib.sha256(body.encode()).digest()
