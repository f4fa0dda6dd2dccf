"""A database of everything that an agent keeps, damage to it, and a start on it with all that a start reads."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path

from meshwright.wire.health import HealthEvent
from meshwright.wire.leases import Lease, LeasedDevice
from meshwright.wire.runs import Run
from meshwright_agent.agent import Agent
from meshwright_agent.health.memory import Fault, HealthMemory
from meshwright_agent.settings import Settings
from meshwright_agent.store.database import Store
from meshwright_agent.store.idempotency import KeyUse
from meshwright_agent.store.leases import StoredLease
from tests.fakes.stored import EPOCH, ManualBoot, ManualClock, build_event, build_plan, build_record_json, build_run

NAME = "simulated.sqlite3"
RUNS = 12
LEASES = 4
EVENTS = 40


def build_lease(number: int) -> Lease:
    return Lease(
        id=f"lease-{number:016x}",
        devices=(LeasedDevice(local_index=number),),
        purpose=f"job {number}",
        preemptible=False,
        owner="slurm",
        created_at=EPOCH,
        expires_at=EPOCH + timedelta(hours=1),
        expires_in_s=3600.0,
    )


def build_health_event(seq: int) -> HealthEvent:
    return HealthEvent(
        seq=seq, at=EPOCH, component=f"device:{seq % 8}", kind="fault", code="xid_79", state="unhealthy", reason="fell"
    )


def build_memory() -> str:
    memory = HealthMemory()
    memory.note_boot("boot-1")
    memory.add_fault(Fault("device:3", "xid_79", "unhealthy", "fell off the bus", "reset it", EPOCH))
    return memory.dump()


async def fill(store: Store) -> None:
    """Writes rows into every table."""
    for number in range(1, RUNS + 1):
        queued = build_run(number)
        use = KeyUse.of(f"key-{number}", "bench", queued.request)
        await store.save_run(queued, events=[build_event(queued, 1)], key=use)
        if number < RUNS:
            await store.save_run(_end(queued))
    held = [StoredLease(build_lease(number), "boot-1", 4000.0) for number in range(LEASES)]
    for lease in held:
        await store.save_leases([lease], key=KeyUse.of(f"key-{lease.lease.id}", "leases", {}))
    await store.save_leases(ended={held[-1].lease.id: "ended by request"})
    events = [build_health_event(seq) for seq in range(1, EVENTS + 1)]
    await store.save_health(events, memory=build_memory(), keep=1000)
    for number in range(1, 6):
        await store.put_plan(f"mw1-{number:032x}", build_plan(number).model_dump_json())
        await store.put_verification(f"key-{number}", '{"status": "verified"}')
    await store.check()


def _end(queued: Run) -> Run:
    return queued.model_copy(update={"state": "succeeded", "finished_at": EPOCH, "kind": "plan", "result": {}})


def write_database(folder: Path) -> Path:
    """Returns a file with rows in every table, closed, its journal folded in."""

    async def main() -> None:
        store = await Store.open(folder / NAME, clock=ManualClock())
        await fill(store)
        run = build_run(1, state="succeeded", finished_at=EPOCH)
        record = build_event(run, 2, type="record", record=build_record_json())
        await store.save_run(run, events=[record])
        await store.close()

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
        agent = Agent(Settings(simulate="h100:8", state_dir=folder), clock=ManualClock(), boot=ManualBoot(), environ={})
        await agent.start()
        try:
            await _read_all(agent)
            return f"{agent.board.state('store', agent.clock.now())}: {_find_reason(agent)}"
        finally:
            await agent.close()

    return asyncio.run(main())


async def _read_all(agent: Agent) -> None:
    await agent.runs.list(limit=100, state=None)
    await agent.runs.list(limit=100, state="succeeded")
    await agent.store.latest_bench()
    await agent.history.list_events(after=None, limit=100)
    await agent.history.list_events(after=0, limit=100)
    for number in range(1, RUNS + 1):
        await agent.store.events_after(f"run-{number:04}", 0)
        await agent.store.get_plan(f"mw1-{number:032x}")
        await agent.store.get_verification(f"key-{number}")
        await agent.store.recall_key(f"key-{number}")
    agent.leases.list()
    await agent.own_health.look()


def _find_reason(agent: Agent) -> str:
    return next(each.reason for each in agent.health().components if each.name == "store")
