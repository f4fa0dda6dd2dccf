from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import AsyncIterator

import pytest

from meshwright_agent.store.writer import WAITING_MAX, Writer, WriterBusyError


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


@contextlib.asynccontextmanager
async def started(timeout_s: float = 30.0) -> AsyncIterator[Writer]:
    writer = Writer(_connect, sqlite3.Connection.close, timeout_s=timeout_s)
    await writer.start()
    try:
        yield writer
    finally:
        await writer.close()


def test_jobs_run_in_order_in_one_thread_that_is_not_the_callers() -> None:
    async def main() -> None:
        seen: list[tuple[int, int]] = []
        async with started() as writer:
            await asyncio.gather(
                *(writer.call(lambda _, n=n: seen.append((n, threading.get_ident()))) for n in range(50))
            )
        assert [number for number, _ in seen] == list(range(50))
        assert len({thread for _, thread in seen}) == 1
        assert seen[0][1] != threading.get_ident()

    asyncio.run(main())


def test_an_exception_of_a_job_reaches_its_caller_and_nobody_else() -> None:
    async def main() -> None:
        async with started() as writer:
            bad, good = await asyncio.gather(
                writer.call(lambda c: c.execute("NO SQL")),
                writer.call(lambda c: c.execute("SELECT 7").fetchone()[0]),
                return_exceptions=True,
            )
        assert isinstance(bad, sqlite3.OperationalError)
        assert good == 7

    asyncio.run(main())


def test_a_disk_that_hangs_costs_the_caller_its_time_limit_and_the_loop_goes_on() -> None:
    async def main() -> None:
        release = threading.Event()
        done: list[str] = []
        async with started(timeout_s=0.3) as writer:
            with pytest.raises(WriterBusyError, match=r"within 0\.3 s"):
                await writer.call(lambda _: release.wait(30) and done.append("begun"))
            with pytest.raises(WriterBusyError):
                await writer.call(lambda _: done.append("had not begun"))
            release.set()
            async with asyncio.timeout(30):
                while await _answers(writer) is None:
                    pass
        assert done == ["begun"]

    asyncio.run(main())


async def _answers(writer: Writer) -> bool | None:
    with contextlib.suppress(WriterBusyError):
        return await writer.call(lambda _: True)
    return None


def test_while_the_disk_hangs_callers_beyond_the_limit_are_refused_at_once() -> None:
    async def main() -> None:
        begun, release = threading.Event(), threading.Event()

        def hang(_: sqlite3.Connection) -> bool:
            begun.set()
            return release.wait(30)

        async with started() as writer:
            hanging = asyncio.create_task(writer.call(hang))
            await asyncio.to_thread(begun.wait, 30)
            waiting = [asyncio.create_task(writer.call(lambda _: True)) for _ in range(WAITING_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(WriterBusyError, match="wait for the disk"):
                await writer.call(lambda _: True)
            release.set()
            assert all(await asyncio.gather(hanging, *waiting))

    asyncio.run(main())


def test_a_job_whose_caller_was_cancelled_before_it_began_is_not_run() -> None:
    async def main() -> None:
        release = threading.Event()
        done: list[str] = []
        async with started() as writer:
            first = asyncio.create_task(writer.call(lambda _: release.wait(30)))
            second = asyncio.create_task(writer.call(lambda _: done.append("second")))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
            release.set()
            await first
            await writer.call(lambda _: done.append("third"))
        assert done == ["third"]

    asyncio.run(main())


def test_a_connection_that_cannot_be_made_is_the_error_of_start_and_the_thread_ends() -> None:
    def refuse() -> sqlite3.Connection:
        raise PermissionError("not yours")

    async def main() -> None:
        writer = Writer(refuse, sqlite3.Connection.close, timeout_s=30.0)
        with pytest.raises(PermissionError, match="not yours"):
            await writer.start()
        await writer.close()
        with pytest.raises(WriterBusyError, match="closed"):
            await writer.call(lambda _: None)
        async with asyncio.timeout(30):
            while any(thread.name == "meshwright-store" for thread in threading.enumerate()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_connection_that_comes_too_late_is_given_back() -> None:
    async def main() -> None:
        release, given_back = threading.Event(), threading.Event()

        def connect() -> sqlite3.Connection:
            release.wait(30)
            return _connect()

        def disconnect(connection: sqlite3.Connection) -> None:
            connection.close()
            given_back.set()

        writer = Writer(connect, disconnect, timeout_s=0.3)
        with pytest.raises(WriterBusyError):
            await writer.start()
        release.set()
        assert await asyncio.to_thread(given_back.wait, 30)

    asyncio.run(main())


def test_the_start_may_take_longer_than_a_job() -> None:
    def connect() -> sqlite3.Connection:
        time.sleep(1.0)  # the check of a file of gigabytes
        return _connect()

    async def main() -> None:
        writer = Writer(connect, sqlite3.Connection.close, timeout_s=0.3)
        await writer.start(timeout_s=30)
        await writer.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_close_ends_what_waits_before_it_disconnects() -> None:
    async def main() -> None:
        async with started() as writer:
            waiting = [asyncio.create_task(writer.call(lambda c: c.execute("SELECT 1"))) for _ in range(20)]
            await asyncio.sleep(0)
            await writer.close()
            await asyncio.gather(*waiting)

    asyncio.run(main())
