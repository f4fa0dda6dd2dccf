"""A database of everything that an agent keeps, damage to it, and a start on it with all that a start reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path

from meshwright.errors import NotFoundError
from meshwright.wire.base import DeviceRef
from meshwright.wire.health import HealthEvent
from meshwright.wire.leases import Lease
from meshwright.wire.runs import Run
from meshwright_agent.agent import Agent
from meshwright_agent.health.events import Fault, HealthMemory
from meshwright_agent.leases import StoredLease, _build_document
from meshwright_agent.settings import Settings
from meshwright_agent.store import (
    COMPILE,
    HEALTH,
    PLAN,
    RECORD,
    RUN,
    Document,
    Store,
    StoredEvent,
    StoreUnavailableError,
)
from tests.fakes.stored import EPOCH, ManualBoot, ManualClock, build_event, build_plan, build_record_json, build_run

NAME = "simulated.sqlite3"
RUNS = 12
LEASES = 4
EVENTS = 40


def build_lease(number: int) -> Lease:
    return Lease(
        id=f"lease-{number:016x}", devices=(DeviceRef(host="a", local_index=number, position=number),),
        purpose=f"job {number}", preemptible=False, owner="slurm", expires_in_s=3600.0,
    )  # fmt: skip


def build_health_event(seq: int) -> HealthEvent:
    return HealthEvent(
        seq=seq, at=EPOCH, component=f"device:{seq % 8}", kind="fault", code="xid_79", state="unhealthy", reason="fell"
    )


def build_memory() -> str:
    memory = HealthMemory()
    memory.record_boot("boot-1")
    memory.add_fault(Fault("device:3", "xid_79", "unhealthy", "fell off the bus", "reset it", EPOCH))
    return memory.dump()


async def fill(store: Store) -> None:
    """Writes documents of every kind and events of every stream."""
    for number in range(1, RUNS + 1):
        queued = build_run(number)
        run = queued if number == RUNS else _end(queued)
        event = StoredEvent(f"{RUN}/{run.id}", 1, EPOCH.timestamp(), build_event(queued, 1).model_dump_json())
        await store.write(Document(RUN, run.id, run.model_dump_json(), run.state), events=[event])
    for number in range(LEASES):
        held = StoredLease(lease=build_lease(number), boot_id="boot-1", until_s=4000.0)
        await store.write(_build_document(held, "ended by request" if number == LEASES - 1 else ""))
    events = [build_health_event(seq) for seq in range(1, EVENTS + 1)]
    rows = [StoredEvent(HEALTH, each.seq, each.at.timestamp(), each.model_dump_json()) for each in events]
    await store.write(Document(HEALTH, "memory", build_memory()), events=rows)
    for number in range(1, 6):
        plan = build_plan(number)
        await store.write(
            Document(PLAN, f"mw1-{number:032x}", plan.model_dump_json()),
            Document(COMPILE, f"key-{number}", '{"status": "verified"}'),
            Document(RECORD, f"[{number}]", json.dumps({"run_id": "run-0001", "record": build_record_json()})),
        )


def _end(queued: Run) -> Run:
    return queued.model_copy(update={"state": "succeeded", "finished_at": EPOCH, "kind": "plan", "result": {}})


def write_database(folder: Path) -> Path:
    """Returns a file with something of everything, closed, its journal folded in."""

    async def main() -> None:
        async with Store.open(folder / NAME, clock=ManualClock()) as store:
            await fill(store)

    asyncio.run(main())
    return folder / NAME


def spoil(path: Path, seed: int, count: int = 16) -> None:
    """Writes random bytes in a random place of a file, or one by one in many."""
    random_ = random.Random(seed)
    content = bytearray(path.read_bytes())
    if seed % 2:
        place = random_.randrange(len(content) - count)
        content[place : place + count] = random_.randbytes(count)
    else:
        for _ in range(count):
            content[random_.randrange(len(content))] = random_.randrange(256)
    path.write_bytes(content)


def start_on(folder: Path) -> str:
    """Starts an agent on a database and reads what routes read; returns what `store` says of itself then."""

    async def main() -> str:
        settings = Settings(simulate="h100:8", state_dir=folder)
        async with Store.open(settings.database_path, clock=ManualClock()) as store:
            agent = Agent(settings, store, clock=ManualClock(), boot=ManualBoot(), environ={})
            await agent.start()
            try:
                await _read_all(agent)
                return f"{agent.health.state('store', agent.clock.now())}: {_find_reason(agent)}"
            finally:
                await agent.close()

    return asyncio.run(main())


async def _read_all(agent: Agent) -> None:
    await agent.runs.list_runs(limit=100)
    await agent.runs.list_runs(limit=100, state="succeeded")
    await agent.runs.read_latest_bench()
    await agent.history.list_events(after=None, limit=100)
    for number in range(1, RUNS + 1):
        with contextlib.suppress(StoreUnavailableError, NotFoundError):
            await agent.runs.get(f"run-{number:04}")
        await agent.store.get(PLAN, f"mw1-{number:032x}")
        await agent.store.get(COMPILE, f"key-{number}")
    agent.leases.list_leases()
    await agent.store_health.check()


def _find_reason(agent: Agent) -> str:
    return next(each.reason for each in agent.health.view(agent.clock.now()).components if each.name == "store")
