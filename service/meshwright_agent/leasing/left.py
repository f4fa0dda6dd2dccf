"""Leases as an agent wrote them, read beside it or after it: for who looks at a host without an agent.

Rule: nothing is written and nothing is waited for; a store that is not there, or not to be read, tells of no lease.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from meshwright_agent.clock import BootClock, SystemClock
from meshwright_agent.leasing.book import LeaseBook
from meshwright_agent.store.leases import StoredLease, list_held
from meshwright_agent.store.unreadable import UnreadableRows, decode


def read_left_leases(file: Path, boot: BootClock) -> tuple[StoredLease, ...]:
    """Returns the leases of a store that hold now, oldest first."""
    book = LeaseBook(SystemClock(), boot)
    place = f"{file.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(place, uri=True, timeout=1.0)) as connection:
            connection.text_factory = decode
            book.recall(list_held(connection, UnreadableRows()))
    except (sqlite3.Error, MemoryError, UnicodeDecodeError):  # a damaged file fails in many ways
        pass
    return book.active()
