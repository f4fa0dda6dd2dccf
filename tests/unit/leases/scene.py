"""A service of leases over a real store, with devices, benches and time that the test sets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.errors import DeviceBusyError
from meshwright.planning.request import Inventory
from meshwright.topology.model import Topology
from meshwright.wire.base import DeviceRef
from meshwright.wire.devices import Device
from meshwright.wire.leases import Lease, LeaseRequest
from meshwright_agent.leases import LeaseRegistry, LeaseService, Owner
from meshwright_agent.store import Store
from tests.fakes.stored import ManualBoot, ManualClock
from tests.unit.bench.hosts import build_host

NAME = "leases.sqlite3"


def build_lease(**fields: Any) -> Lease:
    known: dict[str, Any] = {
        "id": "lease-1", "devices": (DeviceRef(host="a", local_index=0, position=0),), "purpose": "job 7",
        "preemptible": False, "expires_in_s": 60.0,
    }  # fmt: skip
    return Lease.model_validate(known | fields)


@dataclass
class Scene:
    """A service and everything around it."""

    service: LeaseService
    registry: LeaseRegistry
    store: Store
    boot: ManualBoot
    clock: ManualClock
    benches: dict[str, set[int]]
    stopped: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    holds_on: bool = False
    number: int = 0

    async def put(
        self, devices: Any = "all", *, lease_id: str = "", owner: str = "", admin: bool = False, **fields: Any
    ) -> tuple[Lease, bool]:
        self.number += 1
        request = LeaseRequest.model_validate({"devices": devices, "purpose": "test", **fields})
        return await self.service.put(lease_id or f"lease-{self.number}", request, by=Owner(owner, admin))

    async def lease(self, devices: Any = "all", **fields: Any) -> Lease:
        lease, is_new = await self.put(devices, **fields)
        assert is_new
        return lease

    async def end(self, lease_id: str, owner: str = "") -> Lease:
        return await self.service.end(lease_id, by=Owner(owner))

    def held(self) -> list[str]:
        return [lease.id for lease in self.service.list_leases()]

    def find_runs(self, devices: Sequence[Device]) -> tuple[str, ...]:
        wanted = {device.local_index for device in devices}
        return tuple(run for run, opened in self.benches.items() if opened & wanted)

    async def free(self, runs: Sequence[str], reason: str) -> tuple[str, ...]:
        await asyncio.sleep(0)
        assert self.registry.active()
        self.stopped.append((tuple(runs), reason))
        if self.holds_on:
            raise DeviceBusyError("the agent's own worker, process 7, does not end")
        for run in runs:
            self.benches.pop(run, None)
        return tuple(runs)

    async def forget_expired(self) -> None:
        """Waits until the store has what ended by itself."""
        async with asyncio.timeout(30):
            while self.registry.list_expired():  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def opened(
    folder: Path, *, boot: ManualBoot | None = None, clock: ManualClock | None = None
) -> AsyncIterator[Scene]:
    """Yields a service on a store in `folder`; services may be opened on it one after another, as agents are."""
    clock, boot = clock or ManualClock(), boot or ManualBoot()
    tasks: set[asyncio.Task[Any]] = set()

    def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        tasks.add(task)
        return task

    registry = LeaseRegistry(boot)
    there = build_host(4)
    scene: Scene
    async with Store.open(folder / NAME, clock=clock) as store:
        service = LeaseService(
            registry, store, devices=lambda: there, here=lambda: Inventory(Topology.of(registry.mark(there))),
            find_runs=lambda devices: scene.find_runs(devices), free=lambda runs, reason: scene.free(runs, reason),
            spawn=spawn,
        )  # fmt: skip
        scene = Scene(service, registry, store, boot, clock, {})
        await service.recall()
        spawn(service.run())
        await asyncio.sleep(0)
        try:
            yield scene
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
