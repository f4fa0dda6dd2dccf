"""A desk of leases over a real store, with devices, benches and time that are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from meshwright.errors import DeviceBusyError, StoreUnavailableError
from meshwright.topology.model import Topology
from meshwright.wire.devices import Device, Devices
from meshwright.wire.leases import Lease, LeaseRequest
from meshwright_agent.leasing.book import LeaseBook
from meshwright_agent.leasing.desk import LeaseDesk
from meshwright_agent.store.database import Store
from tests.fakes.stored import ManualBoot, ManualClock
from tests.unit.bench.hosts import build_host

Result = TypeVar("Result")


class SickStore:
    """A store whose writes fail while `is_down`; what is asked of it goes to the real one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_down = False

    def __getattr__(self, name: str) -> Any:
        if self.is_down:
            return self._fail
        return getattr(self._store, name)

    async def _fail(self, *_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("the disk is gone")


@dataclass
class Scene:
    """A desk and everything around it."""

    desk: LeaseDesk
    book: LeaseBook
    store: SickStore
    boot: ManualBoot
    clock: ManualClock
    benches: dict[str, set[int]]
    stopped: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    holds_on: bool = False

    async def lease(self, devices: Any = "all", *, key: str | None = None, owner: str = "", **fields: Any) -> Lease:
        request = LeaseRequest.model_validate({"devices": devices, "purpose": "test", **fields})
        return (await self.desk.create(request, owner=owner, key=key))[0]

    def find_runs(self, devices: Sequence[Device]) -> tuple[str, ...]:
        wanted = {device.local_index for device in devices}
        return tuple(run for run, opened in self.benches.items() if opened & wanted)

    async def make_way(self, runs: Sequence[str], reason: str) -> tuple[str, ...]:
        await asyncio.sleep(0)
        self.stopped.append((tuple(runs), reason))
        if self.holds_on:
            raise DeviceBusyError("the agent's own worker, process 7, does not let go")
        for run in runs:
            self.benches.pop(run, None)
        return tuple(runs)


@contextlib.asynccontextmanager
async def opened(
    folder: Path, *, boot: ManualBoot | None = None, clock: ManualClock | None = None, host: Devices | None = None
) -> AsyncIterator[Scene]:
    """Yields a desk on a store in `folder`, which one after another may be opened on, as agents are."""
    clock, boot = clock or ManualClock(), boot or ManualBoot()
    store = SickStore(await Store.open(folder / "leases.sqlite3", clock=clock))
    tasks: set[asyncio.Task[Any]] = set()

    def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        tasks.add(task)
        return task

    book = LeaseBook(clock, boot)
    there = host or build_host(4)
    scene: Scene
    desk = LeaseDesk(
        book,
        store=lambda: store,  # type: ignore[arg-type,return-value]
        devices=lambda: there,
        view=lambda: (Topology.of(book.mark(there)), {}),
        find_runs=lambda devices: scene.find_runs(devices),
        make_way=lambda runs, reason: scene.make_way(runs, reason),
        clock=clock,
        spawn=spawn,
    )
    scene = Scene(desk, book, store, boot, clock, {})
    await desk.start()
    try:
        yield scene
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store._store.close()


def run_scene(folder: Path, test: Callable[[Scene], Coroutine[Any, Any, Result]], **options: Any) -> Result:
    """Returns what `test` returns on a desk."""

    async def main() -> Result:
        async with opened(folder, **options) as scene:
            return await test(scene)

    return asyncio.run(main())
