"""Which workers are ended for what they hold: those that rest, over the limit, and no others."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from meshwright_agent.clock import SystemClock
from meshwright_agent.worker.process import ChildSpec
from meshwright_agent.worker.supervisor import Supervisor
from meshwright_agent.worker.upkeep import retire_large
from tests.fakes.children import FakeSpawn

PAGE_BYTES = resource.getpagesize()
LIMIT_BYTES = 1000 * PAGE_BYTES


def plant(proc: Path, pid: int, own_pages: int) -> None:
    """Writes what the kernel tells of a process: size, resident, shared, … in pages."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "statm").write_text(f"99999 {own_pages + 500} 500 1 0 1 0\n")


@pytest.mark.parametrize(("own_pages", "ends"), [(1000, False), (1001, True)])
def test_a_worker_that_rests_is_ended_over_the_limit_as_if_it_were_idle(
    own_pages: int, ends: bool, tmp_path: Path
) -> None:
    async def act() -> None:
        worker = Supervisor(ChildSpec("fake", "no.module", dict), clock=SystemClock(), spawn=FakeSpawn())
        await worker.start()
        assert worker.pid is not None
        plant(tmp_path, worker.pid, own_pages)
        assert await retire_large(worker, LIMIT_BYTES, proc=tmp_path) is ends
        assert worker.state == ("stopped" if ends else "ready")
        assert worker.last_error is None
        await worker.close()

    asyncio.run(act())


def test_a_worker_that_works_is_never_ended(tmp_path: Path) -> None:
    async def act() -> None:
        worker = Supervisor(ChildSpec("fake", "no.module", dict), clock=SystemClock(), spawn=FakeSpawn())
        await worker.start()
        call = asyncio.create_task(worker.call("bench", {}, deadline_s=30))
        await asyncio.sleep(0)
        assert worker.state == "busy"
        assert worker.pid is not None
        plant(tmp_path, worker.pid, 10_000)
        assert not await retire_large(worker, LIMIT_BYTES, proc=tmp_path)
        assert worker.state == "busy"
        await worker.close()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(act())


def test_without_a_process_or_its_figures_nothing_is_ended(tmp_path: Path) -> None:
    async def act() -> None:
        worker = Supervisor(ChildSpec("fake", "no.module", dict), clock=SystemClock(), spawn=FakeSpawn())
        assert not await retire_large(worker, LIMIT_BYTES, proc=tmp_path)
        await worker.start()
        assert not await retire_large(worker, LIMIT_BYTES, proc=tmp_path)  # no such folder
        assert worker.state == "ready"
        await worker.close()

    asyncio.run(act())
