"""The store: the data that must survive a restart of the agent, in one SQLite file.

Two tables: `documents` (the newest state of an object, by kind and key) and `events` (numbered within a stream). Bodies
are JSON text that only the callers interpret. One thread owns the connection. A write is stored as a whole or not at
all; a call that fails or takes too long raises StoreUnavailableError.

A file that is damaged or has another schema number is renamed at the start, and a new file is created. Leases and what
health remembers (faults, acknowledgements, devices) are copied: every version keeps them in `documents`, leases with
the kind "lease" and the state "held", the memory with the kind "health".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from meshwright.errors import UnavailableError
from meshwright_agent.clock import Clock

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)

SCHEMA: Final = 100
"""`PRAGMA user_version` of the files that this version writes. Change it with each change of `_TABLES` or of a body."""
TIMEOUT_S: Final = 10.0
OPEN_TIMEOUT_S: Final = 100.0
"""Time limit of the check at the start, which reads the whole file. It is less than systemd's TimeoutStartSec."""
BUSY_TIMEOUT_S: Final = 2.0
"""How long a write waits for another program that writes to the file."""
MAX_SET_ASIDE: Final = 5
RETRY_AFTER_S: Final = 5.0
Where = tuple[str, str | None]
ANY: Final[Where] = ("", None)
BATCH: Final = 256
"""Maximum number of events that a follower reads at once."""

RUN, RECORD, PLAN, COMPILE, LEASE, HEALTH = "run", "record", "plan", "compile", "lease", "health"
HELD: Final = "held"
"""The state of a lease that has not ended."""


class StoreUnavailableError(UnavailableError):
    """The agent's database does not answer."""

    code = "store_unavailable"


class Limit(NamedTuple):
    """Limits of a kind, or of one stream of events. The oldest entries are deleted first."""

    most: int
    size_bytes: int


LIMITS: Final = {
    ("documents", RUN): Limit(1000, 1 << 28),
    ("documents", RECORD): Limit(10_000, 1 << 27),
    ("documents", PLAN): Limit(10_000, 1 << 30),
    ("documents", COMPILE): Limit(10_000, 1 << 27),
    ("documents", LEASE): Limit(1000, 1 << 24),
    ("events", HEALTH): Limit(10_000, 1 << 24),
    ("events", RUN): Limit(10_000, 1 << 24),  # of each run
}
STANDING: Final = ("queued", "running", HELD)
"""States of documents that are never pruned."""

_TABLES: Final = (
    """CREATE TABLE documents (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, key TEXT NOT NULL,
    state TEXT NOT NULL, size INTEGER NOT NULL, body TEXT NOT NULL, UNIQUE (kind, key))""",
    "CREATE INDEX documents_by_state ON documents (kind, state, seq, size)",
    """CREATE TABLE events (stream TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, size INTEGER NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (stream, seq)) WITHOUT ROWID""",
    """CREATE TRIGGER events_end_with_their_document AFTER DELETE ON documents
    BEGIN DELETE FROM events WHERE stream = old.kind || '/' || old.key; END""",
)
_BEGIN: Final = "BEGIN IMMEDIATE"
"""Used inside `with connection`, which commits, or rolls back after an error."""
_PUT: Final = """
    INSERT INTO documents (kind, key, state, size, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT (kind, key) DO UPDATE
    SET seq = CASE WHEN ? THEN seq ELSE (SELECT MAX(seq) FROM documents) + 1 END,
        state = excluded.state, size = excluded.size, body = excluded.body
"""
_PRUNE: Final = """
    DELETE FROM {table} WHERE {column} = :name AND seq IN (
        SELECT seq FROM (
            SELECT seq, ROW_NUMBER() OVER newest AS place, SUM(size) OVER newest AS total FROM {table}
            WHERE {column} = :name AND {which} WINDOW newest AS (ORDER BY seq DESC)
        ) WHERE place > :count OR (total > :size_bytes AND place > 1)
    )
"""
_CARRIED: Final = """
    SELECT kind, key, body, state FROM documents
    WHERE (kind = 'lease' AND state = 'held') OR kind = 'health' ORDER BY seq
"""
"""A query that works on the file of any version."""
_SIDES: Final = ("", "-wal", "-shm")
_DAMAGE: Final = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("CORRUPT", "NOTADB", "ERROR", "FORMAT", "SCHEMA", "TOOBIG", "MISMATCH", "CONSTRAINT")
)
"""Errors at the start that a new file resolves. An overwritten schema causes many errors (sqlite.org/rescode.html)."""


@dataclass(frozen=True)
class Document:
    """The newest state of one object.

    Attributes:
        keeps_place: a rewritten document keeps its place in the order; else it becomes the newest.
    """

    kind: str
    key: str
    body: str
    state: str = ""
    keeps_place: bool = False


@dataclass(frozen=True)
class StoredEvent:
    """One event of a stream; `at` is seconds since 1970."""

    stream: str
    seq: int
    at: float
    body: str


class Store:
    """One open database. Make it with `Store.open`.

    Attributes:
        set_aside: what happened to the previous file, in one sentence; empty if the file was sound.
        failure: why the last call that failed did; empty since a check has succeeded.
        failure_count: calls that failed or timed out.
    """

    def __init__(self, path: Path, *, clock: Clock, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self.set_aside = ""
        self.failure = ""
        self.failure_count = 0
        self._clock = clock
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="meshwright-store")
        self._changed = asyncio.Event()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._lock: int | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, path: Path, *, clock: Clock, timeout_s: float = TIMEOUT_S) -> AsyncIterator[Store]:
        """Opens the store in `path` for a block. Creates the file and its directory (mode 0700) if they are missing.

        Args:
            clock: dates a renamed file.
            timeout_s: how long each call may wait for the disk.

        Raises:
            StoreUnavailableError: another agent uses the file, or it cannot be written.
        """
        store = cls(path, clock=clock, timeout_s=timeout_s)
        try:
            await store._call(store._open, timeout_s=OPEN_TIMEOUT_S)
            yield store
        finally:
            with contextlib.suppress(StoreUnavailableError):
                await store._call(store._close)
            store._thread.shutdown(wait=False, cancel_futures=True)

    # ---- documents ---------------------------------------------------------------------------------------------

    async def write(self, *documents: Document, events: Sequence[StoredEvent] = ()) -> None:
        """Writes documents and events, and deletes entries beyond `LIMITS`.

        A stored event is replaced, so that a write may be repeated.

        Raises:
            StoreUnavailableError: nothing was written; or after a timeout all may be yet.
        """
        if not (documents or events):
            return
        is_given_up = asyncio.Event()

        def job() -> None:
            with self._require_connection() as connection:
                self._require_file()
                connection.execute(_BEGIN)
                for document in documents:
                    _put(connection, document)
                rows = ((each.stream, each.seq, each.at, len(each.body.encode()), each.body) for each in events)
                connection.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?)", rows)
                for kind in {document.kind for document in documents}:
                    _prune(connection, "documents", kind, kind)
                for stream in {event.stream for event in events}:
                    _prune(connection, "events", stream, stream.partition("/")[0])
                if is_given_up.is_set():
                    raise TimeoutError("the caller has given up")

        try:
            await self._call(job)
        finally:
            is_given_up.set()
        if events:
            self.announce()

    async def get(self, kind: str, key: str) -> Document | None:
        """Returns a document; None if it does not exist."""
        found = await self._read("SELECT kind, key, body, state FROM documents WHERE kind = ? AND key = ?", kind, key)
        return next((Document(*row) for row in found), None)

    async def list_documents(
        self,
        kind: str,
        *,
        states: Sequence[str] = (),
        where: Where = ANY,
        limit: int = -1,
        without: str = "",
        newest_first: bool = False,
    ) -> tuple[Document, ...]:
        """Returns documents of a kind in their order.

        Args:
            states: only these; empty: all.
            where: a field of the body and the value that it must have; None: any.
            limit: maximum number of documents; -1: all.
            without: a field of the body to leave out.
        """
        removed, values = f"$.{without}" if without else None, json.dumps(states)
        found = await self._read(
            "SELECT kind, key, CASE WHEN ? IS NULL THEN body ELSE json_remove(body, ?) END, state FROM documents "
            "WHERE kind = ? AND (? = '[]' OR state IN (SELECT value FROM json_each(?))) "
            "AND (? IS NULL OR json_extract(body, ?) = ?) "
            f"ORDER BY seq {'DESC' if newest_first else 'ASC'} LIMIT ?",
            *(removed, removed, kind, values, values, where[1], f"$.{where[0]}", where[1], limit),
        )
        return tuple(Document(*row) for row in found)

    # ---- events ------------------------------------------------------------------------------------------------

    async def last_seq(self, stream: str) -> int:
        """Returns the number of a stream's last event; 0 without events."""
        found = await self._read("SELECT COALESCE(MAX(seq), 0) FROM events WHERE stream = ?", stream)
        return int(found[0][0])

    async def list_events(
        self, stream: str, *, after: int | None, limit: int = BATCH, where: Where = ANY, since: float = 0.0
    ) -> tuple[StoredEvent, ...]:
        """Returns the first `limit` events numbered above `after`, or the newest for None; oldest first.

        Args:
            after, limit: how many, and from where.
            where: a field of the body and the value that it must have; None: any.
            since: only events from this time on, in seconds since 1970.
        """
        found = await self._read(
            "SELECT stream, seq, at, body FROM events WHERE stream = ? AND seq > ? AND at >= ? "
            f"AND (? IS NULL OR json_extract(body, ?) = ?) ORDER BY seq {'DESC' if after is None else 'ASC'} LIMIT ?",
            *(stream, after or 0, since, where[1], f"$.{where[0]}", where[1], limit),
        )
        return tuple(StoredEvent(*row) for row in (reversed(found) if after is None else found))

    async def follow(
        self, model: type[Model], stream: str, after: int, *, is_live: Callable[[], bool]
    ) -> AsyncGenerator[Model, None]:
        """Yields the events numbered above `after`: the stored ones, then new ones while `is_live()`.

        The code that ends a stream calls `announce`. A slow reader does not use memory, because it reads the store.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        while True:
            changed, lives = self._changed, is_live()
            found = await self.list_events(stream, after=after)
            for row in found:
                after = row.seq
                for event in parse_bodies(model, [row]):
                    yield event
            if not found and not lives:
                return
            if not found:
                await changed.wait()

    def announce(self) -> None:
        """Wakes the followers of a stream."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- the file ----------------------------------------------------------------------------------------------

    async def check(self) -> int:
        """Reads from the file and writes to it; returns the free bytes of its disk.

        Raises:
            StoreUnavailableError: the store does not work.
        """

        def job() -> int:
            connection = self._require_connection()
            self._require_file()
            connection.execute("SELECT MAX(seq) FROM documents").fetchone()
            with connection:
                connection.execute(_BEGIN)
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            disk = os.statvfs(self.path.parent)
            return disk.f_bavail * disk.f_frsize

        failures = self.failure_count
        free_bytes = await self._call(job)
        if self.failure_count == failures:  # else an earlier call in the thread has just failed
            self.failure = ""
        return free_bytes

    async def _read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._call(lambda: self._require_connection().execute(statement, values).fetchall())

    async def _call(self, job: Callable[[], Result], *, timeout_s: float | None = None) -> Result:
        """Runs `job` in the thread and translates errors of SQLite and of the disk."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._thread, job)
        except TimeoutError as error:
            raise self._unavailable(TimeoutError(f"no answer from the disk within {limit_s:g} s")) from error
        except (sqlite3.Error, OSError, MemoryError, UnicodeError, RuntimeError) as error:  # RuntimeError: it is closed
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailableError:
        self.failure_count += 1
        self.failure = str(error)
        code = _read_code(error)
        is_damaged = code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
        hints = (
            (isinstance(error, StoreInUseError), "stop that agent, or give this one its own --state-dir"),
            (
                _is_full(self.path, error),
                f"make room on that disk ({self.path.parent}), or name another with --state-dir",
            ),
            (code == sqlite3.SQLITE_BUSY, "another program has the file open and is writing: end that program"),
            (
                isinstance(error, FileNotFoundError) and self._connection is not None,
                f"restart the agent: it makes a new {self.path}, and the leases are lost",
            ),
            (is_damaged, f"restart the agent: it sets a damaged {self.path} aside, and makes a new one"),
            (self._connection is None, "--state-dir (MESHWRIGHT_STATE_DIR) must name a directory that it may write"),
            (True, f"look at the disk that holds {self.path}: is it full, read-only, or gone? (dmesg)"),
        )
        hint = next(text for applies, text in hints if applies)
        detail = f"the store {self.path} cannot be used: {error}"
        return StoreUnavailableError(detail, hint=hint, retry_after_s=RETRY_AFTER_S)

    # in the thread

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _take_lock(self.path)
        fresh = self.path.with_name(f"{self.path.name}.new")
        if fresh.exists() and not self.path.exists():
            fresh.rename(self.path)  # an agent was killed after it renamed the old file
        try:
            connection = self._connection = _connect(self.path)
            if (number := _check_sound(connection)) not in {0, SCHEMA}:
                carried = _read_carried(connection)
                connection.close()
                fresh.unlink(missing_ok=True)
                with contextlib.closing(_connect(fresh)) as other:
                    _create(other, carried or ())
                taken = None if carried is None else sum(each.kind == LEASE for each in carried)
                self._set_aside(f"has the schema {number} and this agent writes {SCHEMA}", taken)
                fresh.rename(self.path)
                connection = self._connection = _connect(self.path)
        except (sqlite3.Error, MemoryError, UnicodeDecodeError) as error:
            if self._connection is not None:
                self._connection.close()
            if not _is_damage(self.path, error):
                raise
            self._set_aside(f"is damaged ({error})", None)
            connection = self._connection = _connect(self.path)
        _create(connection, ())
        self._inode = _identify(self.path)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        lock, self._lock = self._lock, None
        if connection is not None:
            connection.close()
        if lock is not None:
            os.close(lock)

    def _require_file(self) -> None:
        """Raises if the open file is not at its path any more: SQLite would go on with it."""
        if not self.path.exists() or _identify(self.path) != self._inode:
            raise FileNotFoundError("the file was removed or replaced, and what is written now would be lost")

    def _require_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError("it is closed")
        return self._connection

    def _set_aside(self, reason: str, lease_count: int | None) -> None:
        """Renames the file and its SQLite journal files, which must not be replayed into the next file.

        Args:
            lease_count: number of leases that were taken over; None: they could not be read.
        """
        stem = f"{self.path.name}.set-aside-{self._clock.now():%Y%m%dT%H%M%SZ}"
        names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
        target = next(each for each in map(self.path.with_name, names) if not each.exists())
        for side in _SIDES:
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + side).rename(target.with_name(target.name + side))
        kept = f"its {lease_count} lease(s) were taken over" if lease_count else "it had no lease"
        kept = "its leases are lost" if lease_count is None else kept
        self.set_aside = f"the database of before {reason}; it was set aside as {target}; {kept}"
        log.error("%s; its runs and plans are not here", self.set_aside)
        files = self.path.parent.glob(f"{self.path.name}.set-aside-*")
        aside = [file for file in files if not file.name.endswith(_SIDES[1:])]
        for file in sorted(aside, key=lambda each: each.stat().st_ctime_ns)[:-MAX_SET_ASIDE]:
            log.warning("%s is deleted: the last %d databases that were set aside are kept", file, MAX_SET_ASIDE)
            for side in _SIDES:
                file.with_name(file.name + side).unlink(missing_ok=True)


def _identify(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


class StoreInUseError(OSError):
    """Another agent uses the file."""


def _take_lock(path: Path) -> int:
    """Returns a lock on a database file, which ends with its process.

    Raises:
        StoreInUseError: another agent holds the lock.
    """
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        if not isinstance(error, BlockingIOError):
            raise
        detail = f"it is in use by another agent (process {holder}); one agent owns a state directory"
        raise StoreInUseError(detail) from error
    return lock


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may lose the last commits, but does not damage the file.
        # Source: sqlite.org/pragma.html#pragma_synchronous
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_sound(connection: sqlite3.Connection) -> int:
    """Returns the schema number of a file. Raises sqlite3.DatabaseError unless the file is sound."""
    verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _build_damage(str(verdict))
    number = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if number == SCHEMA:
        expected = sorted(" ".join(each.split()) for each in _TABLES)
        found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")
        if sorted(" ".join(str(sql).split()) for (sql,) in found) != expected:
            raise _build_damage("its tables are not those of its schema number")
        for table in ("documents", "events"):
            if connection.execute(f"SELECT 1 FROM {table} WHERE NOT json_valid(body) LIMIT 1").fetchone():
                raise _build_damage(f"a body of {table} is not JSON")
    return number


def _build_damage(reason: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _read_code(error: Exception) -> int:
    """Returns the primary code of an error of SQLite. Errors of Python's module itself do not have a code."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_damage(path: Path, error: Exception) -> bool:
    """Returns whether the file is damaged, so that a new file helps, unlike a disk error or a conflict.

    SQLite reports a file whose header has other format versions as read-only (sqlite.org/fileformat.html, 1.3.3).
    """
    code = _read_code(error)
    is_header = code == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK)
    return is_header or code in _DAMAGE or isinstance(error, MemoryError | UnicodeDecodeError)


def _is_full(path: Path, error: Exception) -> bool:
    """Returns whether the disk is full. SQLite reports "disk I/O error" if its index file cannot grow."""
    if _read_code(error) == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT}:
        return True
    return _read_code(error) == sqlite3.SQLITE_IOERR and path.parent.exists() and os.statvfs(path.parent).f_bavail == 0


def _create(connection: sqlite3.Connection, carried: Sequence[Document]) -> None:
    """Creates the tables of a new file, with what is carried over from the previous one."""
    if connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
        return
    with connection:
        connection.execute(_BEGIN)
        for statement in _TABLES:
            connection.execute(statement)
        for document in carried:
            _put(connection, document)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _read_carried(connection: sqlite3.Connection) -> list[Document] | None:
    try:
        return [Document(*row) for row in connection.execute(_CARRIED)]
    except sqlite3.OperationalError:  # no such table: the file is older than this form
        return None


def read_held_leases(path: Path) -> list[Document] | None:
    """Returns the leases in a file that may be open elsewhere; None if it cannot be read."""
    try:
        path.stat()
        place = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(place, uri=True, timeout=1.0)) as connection:
            return [each for each in _read_carried(connection) or [] if each.kind == LEASE]
    except FileNotFoundError:
        return []
    except (sqlite3.Error, MemoryError, UnicodeDecodeError, OSError):  # a damaged file fails in many ways
        return None


def _put(connection: sqlite3.Connection, document: Document) -> None:
    size = len(document.body.encode())
    row = (document.kind, document.key, document.state, size, document.body, document.keeps_place)
    connection.execute(_PUT, row)


def _prune(connection: sqlite3.Connection, table: str, name: str, kind: str) -> None:
    limit = LIMITS.get((table, kind))
    if limit is None:
        return
    standing = ", ".join(f"'{state}'" for state in STANDING)
    column, which = ("kind", f"state NOT IN ({standing})") if table == "documents" else ("stream", "1")
    statement = _PRUNE.format(table=table, column=column, which=which)
    connection.execute(statement, {"name": name, "count": limit.most, "size_bytes": limit.size_bytes})


def parse_body(model: type[Model], row: Document | StoredEvent) -> Model:
    """Returns the model of a body.

    Raises:
        StoreUnavailableError: the body does not fit the model.
    """
    try:
        return model.model_validate_json(row.body)
    except ValidationError as error:
        detail = f"{row!r:.120} cannot be read from the store: {error}"
        raise StoreUnavailableError(detail, hint="stop the agent and move its database away to begin anew") from error


def parse_bodies(model: type[Model], rows: Sequence[Document | StoredEvent]) -> Iterator[Model]:
    """Yields the models of bodies. Logs and skips a body that cannot be read."""
    for row in rows:
        try:
            yield parse_body(model, row)
        except StoreUnavailableError as error:
            log.error("%s", error.detail)
