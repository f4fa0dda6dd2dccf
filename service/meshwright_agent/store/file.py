"""The database as a file: whose it is, whether it is sound, what happens when it is not.

Rule: one agent a file (a lock that ends with its holder); a damaged file, or one whose tables are not those of its
schema number, is set aside under a name that says so and a fresh one is started; one that a newer agent wrote is left
alone and refused. Rows that cannot be read are no damage of the file (`unreadable`). Runs in the store's thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Final

from meshwright.errors import StoreUnavailableError
from meshwright_agent.store.migrations import SCHEMA, migrate, read_schema
from meshwright_agent.store.shape import find_contradiction
from meshwright_agent.store.unreadable import decode

log = logging.getLogger(__name__)

_SIDE_FILES: Final = ("", "-wal", "-shm")
KEPT_ASIDE: Final = 5
"""Damaged files: a disk that spoils one at each start must not be filled with them."""
_PRAGMAS: Final = (
    "PRAGMA journal_mode = WAL",
    # A power cut may take the last commits, never the file (sqlite.org/pragma.html#pragma_synchronous).
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = ON",
)


class DatabaseFile:
    """A database file that this process owns. `set_aside` says where `connect` moved a damaged one."""

    def __init__(self, path: Path, *, now: datetime) -> None:
        self.path = path
        self.set_aside: Path | None = None
        self._now = now
        self._lock: int | None = None
        self._inode: tuple[int, int] | None = None

    def connect(self) -> sqlite3.Connection:
        """Returns a connection to a sound file with the newest schema.

        Raises:
            StoreUnavailableError: another agent has the file, a newer one wrote it, or it cannot be written.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            connection = self._connect_or_set_aside()
            self._inode = self._read_inode()
        except (sqlite3.Error, OSError) as error:
            self._release()
            raise _unusable(self.path, error) from error
        except StoreUnavailableError:
            self._release()
            raise
        return connection

    def disconnect(self, connection: sqlite3.Connection) -> None:
        """Closes the connection and lets another agent have the file."""
        try:
            connection.close()
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def verify_in_place(self) -> None:
        """Checks that the path still names the open file: SQLite goes on writing into one that was deleted.

        Raises:
            StoreUnavailableError: it does not.
        """
        try:
            inode = self._read_inode()
        except OSError as error:
            raise _moved(self.path, str(error)) from error
        if inode != self._inode:
            raise _moved(self.path, "another file stands in its place")

    def _read_inode(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_dev, status.st_ino

    def _take_lock(self) -> None:
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise _in_use(self.path, holder or "unknown") from error
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _connect_or_set_aside(self) -> sqlite3.Connection:
        try:
            return _connect(self.path)
        except (sqlite3.Error, MemoryError, UnicodeDecodeError) as error:
            if not _is_damage_at_start(error):
                raise
            self.set_aside = move_aside(self.path, self._now)
            log.error("%s is damaged (%s); kept as %s, started anew", self.path, error, self.set_aside.name)
            forget_oldest_aside(self.path)
            return _connect(self.path)


def is_damage(error: Exception) -> bool:
    """Returns whether SQLite says that the file is no database, or a damaged one."""
    # Errors of Python's module itself have no code; the low byte is the primary (sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _is_damage_at_start(error: Exception) -> bool:
    """Tells damage from trouble of the disk or with others: only what a fresh file would not cure is trouble.

    A header or a schema that was overwritten shows in many ways: as an error of SQL (a table whose text makes no
    sense), as a length that no memory holds (Python says MemoryError), as a limit that is passed, as an error whose own
    text is no UTF-8 since it quotes the damage.
    """
    return isinstance(error, MemoryError | UnicodeDecodeError) or (getattr(error, "sqlite_errorcode", 0) & 0xFF) in {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_CONSTRAINT,
    }


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _verify_header(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.text_factory = decode
    try:
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        _verify_sound(connection)
        if contradiction := find_contradiction(connection):
            raise _build_damage(contradiction)
        _verify_not_newer(path, read_schema(connection))
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _verify_header(path: Path) -> None:
    """Looks at what SQLite would take for a file that may not be written (sqlite.org/fileformat.html, 1.3.3)."""
    with path.open("rb") as file:
        header = file.read(20)
    if len(header) == 20 and (header[18] not in {1, 2} or header[19] not in {1, 2}):
        raise _build_damage(f"its header has the format versions {header[18]} and {header[19]}")


def _verify_sound(connection: sqlite3.Connection) -> None:
    """The whole check: an index that says something else than its table hides rows, or prunes the wrong ones."""
    verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _build_damage(str(verdict))


def _build_damage(reason: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _verify_not_newer(path: Path, schema: int) -> None:
    if schema > SCHEMA:
        detail = f"{path} has schema {schema}, written by a newer agent; this one knows schemas up to {SCHEMA}"
        raise StoreUnavailableError(detail, hint="start the newer agent again, or give this one its own --state-dir")


def move_aside(path: Path, now: datetime) -> Path:
    """Returns the new name of the file; a journal that SQLite left goes along, lest it be replayed into the next."""
    stem = f"{path.name}.damaged-{now:%Y%m%dT%H%M%SZ}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    for side in _SIDE_FILES:
        source = path.with_name(path.name + side)
        if source.exists():
            source.rename(target.with_name(target.name + side))
    return target


def _in_use(path: Path, holder: str) -> StoreUnavailableError:
    detail = f"{path} is in use by another agent (process {holder}); one agent owns a state directory"
    return StoreUnavailableError(detail, hint="stop that agent, or give this one its own --state-dir")


_HINTS: Final = {
    sqlite3.SQLITE_BUSY: "another program has the file open and is writing: end it, then start the agent again",
    sqlite3.SQLITE_LOCKED: "another program has the file open and is writing: end it, then start the agent again",
    sqlite3.SQLITE_FULL: "make room on that disk, or name another with --state-dir (MESHWRIGHT_STATE_DIR)",
    sqlite3.SQLITE_IOERR: "look at that disk: the kernel's log says what failed (dmesg)",
}


def _unusable(path: Path, error: Exception) -> StoreUnavailableError:
    detail = f"{path} cannot be used as the agent's database: {error}"
    hint = "--state-dir (MESHWRIGHT_STATE_DIR) must name a directory that the agent may write"
    code = sqlite3.SQLITE_FULL if _is_full(path, error) else getattr(error, "sqlite_errorcode", 0) & 0xFF
    return StoreUnavailableError(detail, hint=_HINTS.get(code, hint))


def _is_full(path: Path, error: Exception) -> bool:
    """Tells a disk without room, of which SQLite says "disk I/O error" where its index file cannot grow."""
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    with contextlib.suppress(OSError):
        return os.statvfs(path.parent).f_bavail == 0
    return False


def _moved(path: Path, reason: str) -> StoreUnavailableError:
    detail = f"{path} was removed or replaced while the agent used it ({reason}); what is stored now would be lost"
    return StoreUnavailableError(detail, hint="restart the agent: it makes a new file")


def forget_oldest_aside(path: Path) -> None:
    """Deletes all but the last `KEPT_ASIDE` files that were set aside, and says so; one that cannot go stays."""
    with contextlib.suppress(OSError):
        aside = [file for file in path.parent.glob(f"{path.name}.damaged-*") if not file.name.endswith(_SIDE_FILES[1:])]
        for file in sorted(aside, key=lambda file: file.stat().st_ctime_ns)[:-KEPT_ASIDE]:
            log.warning("%s is deleted: of damaged databases the last %d are kept", file, KEPT_ASIDE)
            for side in _SIDE_FILES:
                file.with_name(file.name + side).unlink(missing_ok=True)
