"""The way to the file: what is read and written is a job of the one thread that owns it.

Rule: what a job writes is written as a whole or not at all, and how long that took is counted; whatever the disk does,
the caller gets an answer or a StoreUnavailableError, with what to do about it, in time. Knows no row.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from meshwright.errors import StoreUnavailableError
from meshwright_agent.clock import Clock
from meshwright_agent.store.file import DatabaseFile, is_damage
from meshwright_agent.store.migrations import transaction
from meshwright_agent.store.writer import Writer, WriterBusyError
from meshwright_agent.telemetry.durations import WRITE_BOUNDS_S, Durations

Result = TypeVar("Result")

READERS_MAX: Final = 64
"""Jobs that only read and may stand in the thread's line, of `WAITING_MAX`: the rest of it is for those that write."""


class Jobs:
    """One database file, its thread, and what is counted of both.

    Attributes:
        path: the file.
        failure_count: jobs that failed, or were not done in time.
        writes: how long transactions took in the thread, `written` or `failed`; also those that nobody waits for now.
        size_bytes: of the file and its log on the disk, at the last `check`; None before the first.
    """

    def __init__(self, path: Path, *, clock: Clock, timeout_s: float) -> None:
        self.path = path
        self.failure_count = 0
        self.writes = Durations(WRITE_BOUNDS_S)
        self.size_bytes: int | None = None
        self._file = DatabaseFile(path, now=clock.now())
        self._writer = Writer(self._file.connect, self._file.disconnect, timeout_s=timeout_s)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._places = asyncio.Semaphore(READERS_MAX)
        self._timeout_s = timeout_s
        self._token = ""  # of the last write of `check`

    @property
    def set_aside(self) -> Path | None:
        """Where a damaged file was moved when this one was opened; None if it was sound."""
        return self._file.set_aside

    async def open(self, *, timeout_s: float) -> None:
        """Starts the thread and opens the file in it, which reads all of it."""
        await self._translate(lambda: self._writer.start(timeout_s=timeout_s))

    async def close(self) -> None:
        """Ends what waits, closes the file and lets another agent have it. May be called again."""
        await self._translate(self._writer.close)

    async def read(self, job: Callable[[sqlite3.Connection], Result], *, timeout_s: float | None = None) -> Result:
        """Returns what a job returns that writes nothing; `timeout_s` where it may take longer than any other.

        Readers wait for a place: however many there are, who writes finds few of them before it.
        """

        async def placed() -> Result:
            await self._take_place()
            try:
                return await self._writer.call(job, timeout_s=timeout_s)
            finally:
                self._places.release()

        return await self._translate(placed)

    async def _take_place(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):  # wait_for may drop a cancellation (Python 3.11)
                await self._places.acquire()
        except TimeoutError as error:
            raise WriterBusyError(f"{READERS_MAX} readers have waited for it for {self._timeout_s:g} s") from error

    async def read_many(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """As `read`, for what reads many rows: one that is waited for at a time, so that few are before who wants one.

        Raises:
            StoreUnavailableError: also where others list much for longer than a job may take.
        """

        async def in_turn() -> Result:
            await self._take_turn()
            try:
                return await self._writer.call(job)
            finally:
                self._turn.release()

        return await self._translate(in_turn)

    async def _take_turn(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._turn.acquire()
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"others who list all runs or measurements were before this, for {self._timeout_s:g} s",
                hint="try again after Retry-After, or ask for less with `limit`",
                retry_after_s=self._timeout_s,
            ) from error

    async def write(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """Returns what a job returns; all that it writes is written, or nothing of it."""

        def whole(connection: sqlite3.Connection) -> Result:
            with self._writing(connection):
                return job(connection)

        return await self._translate(lambda: self._writer.call(whole))

    async def check(self, *, writes: bool = True) -> None:
        """As `Store.check`."""
        token = secrets.token_hex(8) if writes else self._token

        def job(connection: sqlite3.Connection) -> str:
            self._file.verify_in_place()
            self.size_bytes = _read_size_bytes(self.path)
            if writes:
                with self._writing(connection):
                    connection.execute("INSERT OR REPLACE INTO heartbeat (id, token) VALUES (1, ?)", (token,))
            found = connection.execute("SELECT token FROM heartbeat").fetchone()
            return "" if found is None else str(found[0])

        if await self._translate(lambda: self._writer.call(job)) != token:
            raise self._unavailable("what was written was not read back")
        self._token = token

    @contextlib.contextmanager
    def _writing(self, connection: sqlite3.Connection) -> Iterator[None]:
        """In the thread: all inside is written, or nothing of it; how long that took is counted on the event loop."""
        began_s, outcome = self._clock.monotonic(), "failed"
        try:
            with transaction(connection):
                yield
            outcome = "written"
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever could ask
                took_s = self._clock.monotonic() - began_s
                self._loop.call_soon_threadsafe(self.writes.observe, (outcome,), took_s)

    async def _translate(self, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await work()
        except (sqlite3.Error, OSError, WriterBusyError, ValidationError) as error:
            self.failure_count += 1
            raise self._unavailable(str(error), error) from error

    def _unavailable(self, reason: str, error: Exception | None = None) -> StoreUnavailableError:
        hint = f"look at the disk that holds {self.path}: is it full, read-only, or gone?"
        if error is not None and is_damage(error):
            hint = "restart the agent: it sets the damaged file aside and starts a new one"
        return StoreUnavailableError(f"the store {self.path} does not answer: {reason}", hint=hint)


def _read_size_bytes(path: Path) -> int:
    """Returns the size of the database with its write-ahead log (file-wal; sqlite.org/wal.html)."""
    parts = (path, path.with_name(f"{path.name}-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())
