"""Rows that cannot be read: passed over and counted by table, each with what is wrong with it.

Rule: no row keeps another from being read, and none is lost in silence: it stays in the file as it is, until it is
replaced or pruned like any other, and log and health name its table. Every table of bodies is read through here. Runs
in the store's thread; whoever asks how many there are may be in another.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

log = logging.getLogger(__name__)

Result = TypeVar("Result")

NAMED_MOST: Final = 1000
"""Of each table: a file of damaged rows must not fill memory. More are passed over all the same."""
LOGGED_MOST: Final = 20
"""Of each table, one line each."""
REASON_CHARS: Final = 300
SHOWN_MOST: Final = 3
SHOWN_CHARS: Final = 40
"""Of names, in one line of health."""


class UnreadableRows:
    """Rows of one file that could not be read since it was opened."""

    def __init__(self) -> None:
        self._names: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the rows by table: an id, a key, a number."""
        return self._names

    def note(self, table: str, name: object, reason: str) -> None:
        """Counts a row; one that is counted already is not counted again."""
        known, shown = self._names.get(table, ()), _show(name)
        if shown in known or len(known) >= NAMED_MOST:
            return
        self._names = MappingProxyType({**self._names, table: (*known, shown)})  # replaced whole: another thread reads
        if len(known) < LOGGED_MOST:
            log.error(
                "row %s of table %s cannot be read and is passed over: %s",
                shown,
                table,
                " ".join(reason.split())[:REASON_CHARS],
            )

    def read(self, table: str, row: tuple[Any, ...] | None, parse: Callable[..., Result]) -> Result | None:
        """Returns what `parse` makes of a row's columns, the first of which names it; None of none, or where it fails.

        `parse` raises ValueError or TypeError, and so does pydantic.
        """
        if row is None:
            return None
        try:
            return parse(*row)
        except (ValueError, TypeError) as error:
            self.note(table, row[0], str(error))
            return None

    def take(
        self, table: str, rows: sqlite3.Cursor, parse: Callable[..., Result], limit: int | None = None
    ) -> tuple[Result, ...]:
        """Returns the first `limit` rows that can be read, in their order; the cursor is closed."""
        found: list[Result] = []
        with contextlib.closing(rows):
            for row in rows:
                if limit is not None and len(found) >= limit:
                    break
                if (result := self.read(table, row, parse)) is not None:
                    found.append(result)
        return tuple(found)


def require_same(**pairs: tuple[object, object]) -> None:
    """Passes if what a body says of itself is what its columns say.

    Raises:
        ValueError: a pair differs: one of the two was damaged.
    """
    for name, (said, there) in pairs.items():
        if type(said) is not type(there) or said != there:
            raise ValueError(f"its body says {name} {said!r}, its column {there!r}")


def require_text(value: object, name: str) -> str:
    """Returns a column that must hold text.

    Raises:
        ValueError: it does not, or the text is no UTF-8.
    """
    if not isinstance(value, str):
        raise ValueError(f"its {name} is {type(value).__name__}, not text")
    value.encode()
    return value


def decode(text: bytes) -> str:
    """Returns text as SQLite has it (`sqlite3.Connection.text_factory`); what is no UTF-8 is refused by the reader.

    Without it a single byte fails the query, and with it all other rows.
    """
    return text.decode("utf-8", "surrogateescape")


def _show(name: object) -> str:
    return ascii(name)[:80] if not isinstance(name, str) else name[:80].encode("utf-8", "replace").decode()


def tell_unreadable(names: Mapping[str, tuple[str, ...]]) -> str:
    """Returns how many rows of which tables they are, with the names of the first."""
    return ", ".join(_tell_table(table, found) for table, found in names.items())


def _tell_table(table: str, found: tuple[str, ...]) -> str:
    count = f"{len(found)} or more" if len(found) >= NAMED_MOST else str(len(found))
    shown = ", ".join(name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}…" for name in found[:SHOWN_MOST])
    return f"{count} in {table} ({shown}{', …' if len(found) > SHOWN_MOST else ''})"
