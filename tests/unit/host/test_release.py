"""Releases and leases over a worker that does not end: what is answered in time, and whom it names."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import DeviceBusyError
from meshwright.wire.devices import Release
from meshwright.wire.runs import Run
from meshwright_agent.clock import SystemClock
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.watch import ANSWER_RESERVE_S, PROBE_RESERVE_S, RELEASE_LIMIT_S, HostWatch
from meshwright_agent.runs import Emit, Execute, RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store
from meshwright_agent.supervisor.process import ChildSpec, Ending
from meshwright_agent.supervisor.protocol import CallFrame, ResultFrame
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor
from tests.fakes.children import FakeChild, FakeSpawn
from tests.fakes.supervised import FakeSupervisor, Reply, answering, build_watch

SEEN = {"pid": 4711, "name": "python", "command": "python train.py", "devices": ["/dev/vfio/0"], "own": False}
OWN = {"pid": 1001, "name": "python", "command": "python -m …", "devices": ["/dev/vfio/0"], "own": True}


@dataclass
class Scene:
    """A worker without a process, a probe that is told, a real queue."""

    worker: Supervisor
    spawn: FakeSpawn
    probe: FakeSupervisor
    runs: RunQueue
    execute: Execute

    def watch(self, *, has_devices: bool = True, preflight: FakeSupervisor | None = None) -> HostWatch:
        health, clock = HealthRegistry(stale_after_s=60), SystemClock()
        around: Any = {"settings": Settings(), "clock": clock, "runs": self.runs, "stays": not has_devices}
        return build_watch(self.probe, self.worker, health=health, preflight=preflight, **around)  # type: ignore[arg-type]

    async def release(self) -> Release:
        return await self.watch().release()

    async def start(self) -> None:
        """Brings the worker to ready by a call."""
        task = asyncio.create_task(self.worker.call("start", {}, deadline_s=30))
        for _ in iter(lambda: any(isinstance(f, CallFrame) for child in self.spawn.children for f in child.sent), True):
            await asyncio.sleep(0)
        child = self.spawn.children[-1]
        call = next(frame for frame in child.sent if isinstance(frame, CallFrame))
        child.say(ResultFrame(call.id, {}))
        await task

    async def begin_run(self) -> Run:
        """Returns a bench that runs."""
        run = await self.runs.submit("bench", {}, self.execute)
        while run.state != "running":
            await asyncio.sleep(0)
            run = await self.runs.get(run.id)
        return run


@contextlib.asynccontextmanager
async def staged(folder: Path, *, spawn: FakeSpawn | None = None, look: Reply) -> AsyncIterator[Scene]:
    spawning = spawn or FakeSpawn()
    spec = ChildSpec("device", "some.worker", dict, backoff_initial_s=0.0)
    worker = Supervisor(spec, clock=SystemClock(), build_child=spawning)  # type: ignore[arg-type]

    async def execute(_run: Run, _emit: Emit) -> dict[str, Any]:
        return (await worker.call("bench", {}, deadline_s=30)).result

    async with Store.open(folder / "runs.sqlite3", clock=SystemClock()) as store:
        runs = RunQueue(store, clock=SystemClock())
        try:
            yield Scene(worker, spawning, answering(look), runs, execute)
        finally:
            await worker.close()
            await runs.close("over")


def holding_on(until: asyncio.Event) -> type[FakeChild]:
    """Returns children whose end, once asked for, comes when `until` is set."""

    class Slow(FakeChild):
        async def stop(self, *, gently: bool) -> None:
            await until.wait()
            await super().stop(gently=gently)

    return Slow


@pytest.mark.parametrize(("look", "pids"), [
    ({"holders": [SEEN]}, [4711, 1001]), ({"holders": [SEEN, OWN]}, [4711, 1001]), ({"holders": None}, [1001]),
    (CallCancelled("the probe was ended"), [1001]),
])  # fmt: skip
async def test_a_worker_that_does_not_end_is_named_within_the_bound(
    tmp_path: Path, look: Reply, pids: list[int]
) -> None:
    async with staged(tmp_path, look=look) as scene:
        ended = asyncio.Event()
        scene.spawn.kind = holding_on(ended)
        await scene.start()
        duration_s = []
        for _ in range(2):
            began_s = time.monotonic()
            answer = await scene.release()
            duration_s.append(time.monotonic() - began_s)
            assert (answer.released, answer.worker_killed) == (False, True)
            assert answer.holders is not None
            assert [holder.pid for holder in answer.holders] == pids
            assert answer.holders[-1].own
        assert RELEASE_LIMIT_S - ANSWER_RESERVE_S - PROBE_RESERVE_S <= min(duration_s) <= RELEASE_LIMIT_S
        ended.set()
        assert (await scene.release()).released


@pytest.mark.parametrize(("look", "holders", "unknown"), [
    ({"holders": None}, None, "no_permission"),
    (CallCancelled("the probe was ended"), None, "driver_timeout"), ({"holders": []}, (), None),
])  # fmt: skip
async def test_a_release_says_why_nobody_could_look(
    tmp_path: Path, look: Reply, holders: tuple[()] | None, unknown: str | None
) -> None:
    async with staged(tmp_path, look=look) as scene:
        answer = await scene.release()
        assert (answer.holders, answer.holders_unknown) == (holders, unknown)


@pytest.mark.parametrize("is_cleared", [True, False])
async def test_after_a_worker_has_ended_hidden_holders_are_looked_at_again_until_its_memory_is_cleared(
    tmp_path: Path, is_cleared: bool
) -> None:
    async with staged(tmp_path, look={"holders": None}) as scene:
        await scene.start()
        if is_cleared:
            scene.probe.answers.append({"holders": []})
        began_s = time.monotonic()
        answer = await scene.release()
        assert time.monotonic() - began_s <= 2 * RELEASE_LIMIT_S  # the machine may be busy
        assert len(scene.probe.calls) > 1
        assert (answer.holders, answer.holders_unknown) == (((), None) if is_cleared else (None, "no_permission"))


async def test_where_no_worker_was_hidden_holders_are_asked_for_once(tmp_path: Path) -> None:
    async with staged(tmp_path, look={"holders": None}) as scene:
        answer = await scene.release()
        assert (answer.holders, answer.holders_unknown, len(scene.probe.calls)) == (None, "no_permission", 1)


async def test_a_second_look_that_nobody_answers_takes_nothing_back_of_the_first(tmp_path: Path) -> None:
    async with staged(tmp_path, look={"holders": None}) as scene:
        await scene.start()
        scene.probe.answers.append(CallCancelled("the probe was ended"))
        answer = await scene.release()
        assert (answer.holders, answer.holders_unknown, len(scene.probe.calls)) == (None, "no_permission", 2)


async def test_a_worker_that_went_while_the_holders_were_looked_at_is_not_named(tmp_path: Path) -> None:
    async with staged(tmp_path, look={"holders": [SEEN, OWN]}) as scene:
        ended = asyncio.Event()
        scene.spawn.kind = holding_on(ended)
        await scene.start()
        ask = scene.probe.call

        async def end_meanwhile(*args: Any, **kwargs: Any) -> Any:
            ended.set()
            await scene.worker.release()
            return await ask(*args, **kwargs)

        scene.probe.call = end_meanwhile  # type: ignore[method-assign]
        answer = await scene.release()
        assert (answer.released, [holder.pid for holder in answer.holders or ()]) == (True, [4711])


async def test_one_that_was_abandoned_earlier_is_named_by_every_release(tmp_path: Path) -> None:
    spawn = FakeSpawn(ending=Ending(status=None, killed=True))
    async with staged(tmp_path, spawn=spawn, look={"holders": []}) as scene:
        await scene.start()
        for _ in range(2):
            answer = await scene.release()
            assert (answer.released, [holder.pid for holder in answer.holders or ()]) == (False, [1001])
        with pytest.raises(DeviceBusyError, match="process 1001, still holds"):
            await scene.watch().preempt((), "a lease")


async def test_a_preflights_process_that_does_not_end_holds_the_devices_too(tmp_path: Path) -> None:
    async with staged(tmp_path, look={"holders": []}) as scene:
        spec = ChildSpec("preflight", "the.preflight", dict)
        stuck = FakeSupervisor(deque(), pid=77, spec=spec, abandoned_pids=(77,), holding_pids=(77,))
        answer = await scene.watch(preflight=stuck).release()
        assert (answer.released, [holder.pid for holder in answer.holders or ()]) == (False, [77])
        assert answer.holders is not None
        assert answer.holders[0].command == "python -m the.preflight"
        with pytest.raises(DeviceBusyError, match="process 77, still holds"):
            await scene.watch(preflight=stuck).preempt((), "a lease")


@pytest.mark.parametrize(("is_in_the_way", "has_devices"), [(True, True), (True, False), (False, True), (False, False)])
async def test_a_lease_ends_the_benches_that_are_in_its_way_and_no_other(
    tmp_path: Path, is_in_the_way: bool, has_devices: bool
) -> None:
    async with staged(tmp_path, look={"holders": []}) as scene:
        run = await scene.begin_run()
        ids = (run.id,) if is_in_the_way else ()
        gone = await scene.watch(has_devices=has_devices).preempt(ids, "a lease")
        assert gone == ids
        assert (await scene.runs.get(run.id)).state == ("cancelled" if is_in_the_way else "running")
        assert scene.worker.state == ("stopped" if is_in_the_way else "busy")


@pytest.mark.parametrize("has_devices", [True, False])
async def test_a_lease_ends_an_idle_worker_only_where_that_has_accelerators(tmp_path: Path, has_devices: bool) -> None:
    async with staged(tmp_path, look={"holders": []}) as scene:
        await scene.start()
        await scene.watch(has_devices=has_devices).preempt((), "a lease")
        assert scene.worker.state == ("stopped" if has_devices else "ready")
