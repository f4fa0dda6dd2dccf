"""The store as a component: a full disk, a file that is gone, one that was set aside."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwright.wire.health import Component
from meshwright_agent.health import monitor as module
from meshwright_agent.health.monitor import MIN_FREE_BYTES, StoreHealth
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.settings import Settings
from meshwright_agent.store import Document, Store, StoreUnavailableError
from tests.fakes.stored import ManualClock
from tests.unit.store.opening import held, opened, recover


def build(store: Store) -> tuple[StoreHealth, HealthRegistry]:
    clock = ManualClock()
    board = HealthRegistry(stale_after_s=60)
    return StoreHealth(store, registry=board, settings=Settings(state_dir=store.path.parent), clock=clock), board


def read(board: HealthRegistry) -> Component:
    return board.component("store", ManualClock().now())


async def test_a_store_that_works_is_healthy_after_a_check_and_not_before(store: Store) -> None:
    own, board = build(store)
    assert (board.names(), read(board).state) == (("store",), "initializing")
    await own.check()
    assert (read(board).state, "MiB are free" in read(board).reason) == ("healthy", True)


async def test_little_room_on_the_disk_is_degraded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(f_bavail=MIN_FREE_BYTES // 4096 - 1, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    own, board = build(store)
    await own.check()
    words = f"256 MiB are free in {tmp_path}; less than the 256 MiB that should be"
    assert (read(board).state, read(board).reason) == ("degraded", words)
    assert str(tmp_path) in read(board).action
    disk.f_bavail += 1
    await own.check()
    assert read(board).state == "healthy"


async def test_a_failure_of_any_call_is_followed_by_a_check_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)

    async def until(board: HealthRegistry, state: str) -> None:
        async with asyncio.timeout(30):
            while read(board).state != state:  # noqa: ASYNC110 -- the board tells nobody
                await asyncio.sleep(0.01)

    async with opened(tmp_path / "db", timeout_s=0.2) as store:
        own, board = build(store)
        running = asyncio.create_task(own.run())
        await until(board, "healthy")
        with held(tmp_path / "db"):
            with pytest.raises(StoreUnavailableError):
                await store.write(Document("plan", "1", "{}"))
            await until(board, "unhealthy")
            assert read(board).action
        await recover(store)
        running.cancel()
        await own.check()
        assert read(board).state == "healthy"
