"""How long writes take, as the store counts it: in its thread, whoever waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from pathlib import Path

import pytest

from meshwright.errors import StoreUnavailableError
from meshwright_agent.store.database import Store
from meshwright_agent.store.jobs import READERS_MAX
from meshwright_agent.store.writer import WAITING_MAX
from tests.fakes.stored import ManualClock
from tests.unit.store.opening import held, opened, recover, run_with_store


class SlowClock(ManualClock):
    """A clock on which 3 s pass between any two looks at it."""

    def monotonic(self) -> float:
        self.advance(3.0)
        return super().monotonic()


def count(store: Store) -> Mapping[str, tuple[int, float]]:
    """Returns by outcome how many writes there were, and how long they took together."""
    return {spread.labels[0]: (spread.cumulative[-1][1], spread.total_s) for spread in store.writes.spreads()}


def test_a_write_counts_with_its_time_and_a_read_does_not(tmp_path: Path) -> None:
    async def write(store: Store) -> list[Mapping[str, tuple[int, float]]]:
        seen = [count(store)]
        await store.put_verification("key", "{}")
        seen.append(count(store))
        await store.get_verification("key")
        seen.append(count(store))
        await store.check()
        return [*seen, count(store)]

    once = {"written": (1, 3.0)}
    assert run_with_store(tmp_path / "s", write, clock=SlowClock()) == [{}, once, once, {"written": (2, 6.0)}]


def test_a_write_that_failed_counts_apart(tmp_path: Path) -> None:
    async def fail(store: Store) -> Mapping[str, tuple[int, float]]:
        with pytest.raises(StoreUnavailableError, match="NOT NULL"):
            await store.put_verification("key", None)  # type: ignore[arg-type]
        return count(store)

    assert run_with_store(tmp_path / "s", fail, clock=SlowClock()) == {"failed": (1, 3.0)}


def test_however_many_read_at_once_all_are_answered_and_a_write_is_not_refused_for_them(tmp_path: Path) -> None:
    """300 listeners of one run woke together and filled the thread's line: the run's own progress had no place."""

    async def main(store: Store) -> tuple[list[object], int]:
        read = [asyncio.create_task(store.get_verification("key")) for _ in range(WAITING_MAX + 200)]
        await asyncio.sleep(0)
        await store.put_verification("key", "{}")
        before = sum(each.done() for each in read)
        return list(await asyncio.gather(*read)), before

    answers, before = run_with_store(tmp_path / "s", main)
    assert set(answers) <= {None, "{}"}
    assert before <= 2 * READERS_MAX


@pytest.mark.parametrize("turns", range(6))
def test_a_reader_that_is_cancelled_at_any_moment_ends_as_cancelled(tmp_path: Path, turns: int) -> None:
    """One that dropped it went on, and the stop of an agent waited for it without end."""

    async def main(store: Store) -> list[bool]:
        ends = []
        for read in (lambda: store.get_verification("key"), store.latest_bench):
            reading = asyncio.ensure_future(read())
            for _ in range(turns):
                await asyncio.sleep(0)
            asked = reading.cancel()
            await asyncio.wait({reading})
            ends.append(reading.cancelled() or not asked)
        return ends

    assert run_with_store(tmp_path / "s", main) == [True, True]


def test_whoever_wants_one_row_waits_for_one_list_at_most_however_many_are_asked_for(tmp_path: Path) -> None:
    """30 readers of GET /placement/bench kept a lease waiting until the store did not answer in time."""
    ended: list[str] = []

    async def main(store: Store) -> None:
        async def read(name: str, reading: Awaitable[object]) -> None:
            await reading
            ended.append(name)

        lists = [read("list", store.latest_bench()) for _ in range(10)]
        lists += [read("list", store.list_runs(limit=10)) for _ in range(10)]
        waiting = [asyncio.create_task(each) for each in lists]
        await asyncio.sleep(0)
        await read("row", store.put_verification("key", "{}"))
        await asyncio.gather(*waiting)

    run_with_store(tmp_path / "s", main)
    assert ended.index("row") <= 2


def test_who_lists_while_others_list_is_refused_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "s", timeout_s=0.2) as store, asyncio.timeout(30):
            async with store._jobs._turn:
                with pytest.raises(StoreUnavailableError, match=r"before this, for 0\.2 s"):
                    await store.latest_bench()
            await store.latest_bench()

    asyncio.run(main())


def test_a_write_that_nobody_waits_for_any_more_counts_when_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "s", timeout_s=0.1) as store:
            with held(tmp_path / "s"), pytest.raises(StoreUnavailableError, match=r"within 0\.1 s"):
                await store.put_verification("key", "{}")
            assert count(store) == {}
            await recover(store)
            assert await store.get_verification("key") == "{}"
            assert count(store)["written"][0] >= 2

    asyncio.run(main())
