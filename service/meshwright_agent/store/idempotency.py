"""Idempotency keys as rows: which request a key named, which run that made; kept as long as the run."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright_agent.store.unreadable import UnreadableRows, require_text


@dataclass(frozen=True)
class KeyUse:
    """One use of a key. Two uses with the same `route` and `request_sha256` are the same request."""

    key: str
    route: str
    request_sha256: str

    @classmethod
    def of(cls, key: str, route: str, request: Mapping[str, Any]) -> KeyUse:
        """Returns the use of `key` for a JSON request; the order of its fields does not matter."""
        text = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return cls(key=key, route=route, request_sha256=hashlib.sha256(text.encode()).hexdigest())


def remember_key(connection: sqlite3.Connection, use: KeyUse, run_id: str) -> None:
    """Writes what a key was used for, in the place of a row that cannot be read or whose run cannot."""
    connection.execute(
        "INSERT OR REPLACE INTO idempotency_keys (key, route, request_sha256, run_id) VALUES (?, ?, ?, ?)",
        (use.key, use.route, use.request_sha256, run_id),
    )


def recall_key(connection: sqlite3.Connection, key: str, unreadable: UnreadableRows) -> tuple[KeyUse, str] | None:
    """Returns what a key was used for and the run that it made, None for a new key."""
    row = connection.execute(
        "SELECT key, route, request_sha256, run_id FROM idempotency_keys WHERE key = ?", (key,)
    ).fetchone()
    return unreadable.read("idempotency_keys", row, _parse)


def _parse(*columns: object) -> tuple[KeyUse, str]:
    key, route, request_sha256, run_id = (require_text(column, "columns") for column in columns)
    return KeyUse(key, route, request_sha256), run_id
