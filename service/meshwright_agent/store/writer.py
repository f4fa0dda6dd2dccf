"""The one thread that owns a connection: jobs go in, answers come out, in order and within a time limit.

The thread is a daemon: a disk that hangs can keep a job for ever, but neither the event loop nor the exit.
Knows nothing of SQL beyond the connection that it hands to each job.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
_Entry = tuple[concurrent.futures.Future[Any], Callable[[], Any]]

WAITING_MAX: Final = 256
"""Jobs that may wait: more means that the disk hangs, and memory must not grow with it."""


class WriterBusyError(Exception):
    """The thread did not take or finish a job in time."""


class Writer:
    """A thread with a connection. `start` makes both, `close` ends both."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        disconnect: Callable[[sqlite3.Connection], None],
        *,
        timeout_s: float,
    ) -> None:
        self._connect = connect
        self._disconnect = disconnect
        self._timeout_s = timeout_s
        self._jobs: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="meshwright-store", daemon=True)
        self._connection: sqlite3.Connection | None = None
        self._open = False

    async def start(self, *, timeout_s: float | None = None) -> None:
        """Starts the thread and connects in it; raises what `connect` raises, or WriterBusyError.

        Args:
            timeout_s: how long that may take; None: as long as any job.
        """
        self._thread.start()
        try:
            await self._submit(self._connect_here, timeout_s)
            self._open = True
        except BaseException:
            self._end()
            raise

    async def call(self, job: Callable[[sqlite3.Connection], Result], *, timeout_s: float | None = None) -> Result:
        """Returns what `job` returns, run in the thread.

        When the caller is cancelled or out of time, a job that has not begun is dropped; one that has, ends.

        Args:
            job: gets the connection.
            timeout_s: how long it may take with those before it; None: as long as any job.

        Raises:
            WriterBusyError: closed, no answer within the time limit, or too many jobs wait already.
        """
        if not self._open:
            raise WriterBusyError("it is closed")
        if self._jobs.qsize() >= WAITING_MAX:
            raise WriterBusyError(f"{WAITING_MAX} jobs wait for the disk already")
        return await self._submit(lambda: job(self._require_connection()), timeout_s)

    async def close(self) -> None:
        """Does what waits, disconnects, ends the thread; leaves a disk that hangs. May be repeated."""
        if self._open:
            self._open = False
            ended = self._end()
            await self._wait(ended)

    def _end(self) -> concurrent.futures.Future[None]:
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._jobs.put((ended, self._disconnect_here))
        self._jobs.put(None)
        return ended

    async def _submit(self, job: Callable[[], Result], timeout_s: float | None = None) -> Result:
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._jobs.put((future, job))
        return await self._wait(future, timeout_s)

    async def _wait(self, future: concurrent.futures.Future[Result], timeout_s: float | None = None) -> Result:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise WriterBusyError(f"no answer from the disk within {limit_s:g} s") from error

    # ---- in the thread ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            future, job = entry
            if future.set_running_or_notify_cancel():
                _fulfil(future, job)

    def _connect_here(self) -> None:
        self._connection = self._connect()

    def _disconnect_here(self) -> None:
        if self._connection is not None:
            self._disconnect(self._connection)

    def _require_connection(self) -> sqlite3.Connection:
        assert self._connection is not None, "`start` connects before any other job"
        return self._connection


def _fulfil(future: concurrent.futures.Future[Result], job: Callable[[], Result]) -> None:
    try:
        result = job()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
