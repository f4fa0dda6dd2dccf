"""The agent's own parts, on a real store: room on the disk, and a file that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import StoreUnavailableError
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.health.own import MIN_FREE_BYTES, OwnHealth
from meshwright_agent.settings import Settings
from meshwright_agent.store.database import Store
from tests.fakes.stored import ManualClock
from tests.unit.store.opening import run_with_store


class Scene:
    def __init__(self, store: Store, **settings: Any) -> None:
        self.clock = ManualClock()
        self.board = HealthBoard(stale_after_s=60)
        self.writes: list[str] = []
        self.own = OwnHealth(
            store=lambda: store,
            board=self.board,
            settings=Settings(state_dir=store.path.parent, **settings),
            clock=self.clock,
            on_writable=self.write,
        )

    async def write(self) -> None:
        self.writes.append("written")

    def states(self) -> dict[str, str]:
        return {name: self.board.state(name, self.clock.now()) for name in self.board.names()}

    def reason(self, name: str) -> str:
        return self.board.component(name, self.clock.now()).reason


def count_writes(store: Store) -> int:
    """Transactions that were written."""
    return sum(spread.cumulative[-1][1] for spread in store.writes.spreads() if spread.labels == ("written",))


def run(folder: Path, test: Callable[[Store], Awaitable[None]]) -> None:
    run_with_store(folder / "db", test)


def test_what_works_is_healthy_after_a_look_and_not_before(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        scene = Scene(store)
        assert set(scene.states().values()) == {"initializing"}
        await scene.own.look()
        assert scene.states() == {"store": "healthy", "disk": "healthy"}
        assert "MiB are free" in scene.reason("disk")
        assert scene.writes == ["written"]

    run(tmp_path, test)


@pytest.mark.parametrize(("free", "state"), [(MIN_FREE_BYTES, "healthy"), (1 << 20, "degraded"), (0, "unhealthy")])
def test_a_disk_with_less_than_its_minimum_is_degraded_and_a_full_one_unhealthy(
    free: int, state: str, tmp_path: Path
) -> None:
    async def test(store: Store) -> None:
        async def measure() -> int:
            return free

        store.measure_free_bytes = measure  # type: ignore[method-assign]
        scene = Scene(store)
        await scene.own.look()
        assert scene.states()["disk"] == state
        assert f"{free >> 20} MiB are free" in scene.reason("disk")
        assert ("256 MiB that should be" in scene.reason("disk")) is (state == "degraded")

    run(tmp_path, test)


def test_a_disk_that_takes_no_write_is_unhealthy(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        scene = Scene(store)

        async def fail(*, writes: bool) -> None:
            assert writes
            raise StoreUnavailableError("the store does not answer: database or disk is full")

        store.check = fail  # type: ignore[method-assign]
        await scene.own.look()
        assert (scene.states()["store"], scene.states()["disk"]) == ("unhealthy", "unhealthy")
        assert scene.writes == []

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("interval_s", "stale_after_s", "written"),
    [(30.0, 120.0, "100100100"), (30.0, 60.0, "111111111"), (30.0, 61.0, "101010101"), (0.5, 120.0, "100100100")],
)
def test_one_write_is_proof_for_three_looks_and_never_for_longer_than_a_look_holds(
    interval_s: float, stale_after_s: float, written: str, tmp_path: Path
) -> None:
    async def test(store: Store) -> None:
        scene = Scene(store, probe_interval_s=interval_s, stale_after_s=stale_after_s)
        counts = []
        for _ in written:
            before = count_writes(store)
            await scene.own.look()
            await asyncio.sleep(0)
            counts.append(count_writes(store) - before)
            assert scene.states()["store"] == "healthy"
        assert "".join(map(str, counts)) == written

    run(tmp_path, test)


def test_a_failure_of_anything_is_followed_by_looks_that_write_until_one_succeeds(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        scene = Scene(store)
        await scene.own.look()
        await scene.own.look()
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as operator:
            operator.execute("CREATE TRIGGER full BEFORE INSERT ON heartbeat BEGIN SELECT RAISE(ABORT, 'full'); END")
            operator.execute(
                "CREATE TRIGGER none BEFORE INSERT ON verifications BEGIN SELECT RAISE(ABORT, 'full'); END"
            )
            with pytest.raises(StoreUnavailableError):
                await store.put_verification("key", "{}")
            for _ in range(2):
                await scene.own.look()
                assert scene.states()["store"] == "unhealthy"
            operator.execute("DROP TRIGGER full")
        await scene.own.look()
        assert scene.states()["store"] == "healthy"

    run(tmp_path, test)


def test_a_look_that_only_reads_sees_that_what_was_written_is_gone(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        scene = Scene(store)
        await scene.own.look()
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as operator:
            operator.execute("DELETE FROM heartbeat")
        await scene.own.look()
        assert "was not read back" in scene.reason("store")

    run(tmp_path, test)


def test_a_folder_that_is_gone_makes_both_unhealthy(tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        scene = Scene(store)
        store.path = tmp_path / "gone" / "db"
        await scene.own.look()
        assert scene.states()["disk"] == "unhealthy"

    run(tmp_path, test)
