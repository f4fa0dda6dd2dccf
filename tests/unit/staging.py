"""A queue of runs on a stage: what it executes does what the test says, its store is real, its clock is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright.wire.runs import Run, RunEvent
from meshwright_agent import runs as module
from meshwright_agent.runs import Emit, RunQueue
from meshwright_agent.store import Store
from tests.fakes.stored import ManualClock
from tests.unit.store.opening import opened


class Bench:
    """An `execute` that does what the test says: each run waits until `finish` or `fail`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.emits: dict[str, Emit] = {}
        self.ignores_cancel = False
        self._outcomes: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def execute(self, run: Run, emit: Emit) -> dict[str, Any]:
        self.begun.append(run.id)
        self.emits[run.id] = emit
        return await self._wait(self.outcome(run.id))

    async def _wait(self, outcome: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        while True:
            try:
                return await asyncio.shield(outcome)
            except asyncio.CancelledError:
                if not self.ignores_cancel:
                    raise

    def outcome(self, run_id: str) -> asyncio.Future[dict[str, Any]]:
        return self._outcomes.setdefault(run_id, asyncio.get_running_loop().create_future())

    def finish(self, run_id: str, **result: Any) -> None:
        self.outcome(run_id).set_result(result)

    def fail(self, run_id: str, error: BaseException) -> None:
        self.outcome(run_id).set_exception(error)


class Stage:
    """A queue, what it executes, where it writes, and its clock."""

    def __init__(self, queue: RunQueue, bench: Bench, store: Store, clock: ManualClock) -> None:
        self.queue, self.bench, self.store, self.clock = queue, bench, store, clock

    async def submit(self, **request: Any) -> str:
        return (await self.queue.submit("bench", request, self.bench.execute)).id

    async def submit_running(self) -> str:
        run_id = await self.submit()
        await until(lambda: run_id in self.bench.begun)
        return run_id

    async def ended(self, run_id: str) -> Run:
        async for _ in self.queue.events(run_id):
            pass
        return await self.queue.get(run_id)

    async def stored(self, run_id: str) -> Run:
        """Returns a run as the store has it."""
        document = await self.store.get("run", run_id)
        assert document is not None
        return Run.model_validate_json(document.body)

    async def events(self, run_id: str, after: int = 0) -> list[RunEvent]:
        return [event async for event in self.queue.events(run_id, after)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- conditions of several objects, none of which tells
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def staged(tmp_path: Path, **options: Any) -> AsyncIterator[Stage]:
    """Gives a queue, and closes it; options are constants of the module."""
    clock, bench = ManualClock(), Bench()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in options.items():
            patch.setattr(module, name, value)
        async with opened(tmp_path / "s.sqlite3", clock=clock) as store:
            queue = RunQueue(store, clock=clock)
            await queue.finish_interrupted()
            async with asyncio.timeout(60):
                yield Stage(queue, bench, store, clock)
                await queue.close("the test ended")


def states(events: list[RunEvent]) -> list[str]:
    return [event.state for event in events if event.type == "state"]
