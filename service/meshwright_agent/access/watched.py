"""A value that comes from files and is read again when they change: a bad new version leaves the last good one.

Rule: the event loop never touches these files; `refresh` is called by a thread, readers take `value`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from meshwright_agent.access.errors import AccessSettingsError

log = logging.getLogger(__name__)
T = TypeVar("T")
Mark = tuple[int, ...]


def read_mark(path: Path) -> Mark | None:
    """Returns what changes when a file does: its identity, size and times; None where it cannot be looked at."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


class Watched(Generic[T]):
    """What `load` makes of some files.

    Attributes:
        value: of the last version that could be used.
        failure: why the version that is there now cannot be used; None if it is the one in use.

    Raises:
        AccessSettingsError: at the first read, from `load`.
    """

    def __init__(self, what: str, paths: Sequence[Path], load: Callable[[], T]) -> None:
        self._what = what
        self._paths = tuple(paths)
        self._load = load
        self._marks = self._read_marks()
        self.value: T = load()
        self.failure: str | None = None

    def refresh(self) -> None:
        """Reads the files again if one has changed, or could not be used: also for what is not in the file, and passes.

        Never raises for what is in them.
        """
        marks = self._read_marks()
        if marks == self._marks and None not in marks and self.failure is None:
            return
        self._marks = marks
        try:
            value = self._load()
        except AccessSettingsError as error:
            self._note_failure(str(error))
            return
        self.value, self.failure = value, None
        log.info("%s read again: %s", self._what, ", ".join(map(str, self._paths)))

    def _note_failure(self, reason: str) -> None:
        if reason != self.failure:
            log.error("%s cannot be used, the last good one stays: %s", self._what, reason)
        self.failure = reason

    def _read_marks(self) -> tuple[Mark | None, ...]:
        return tuple(read_mark(path) for path in self._paths)
