"""Benches on hosts with accelerators: who is looked at, when, and what becomes of a bench that may not open a device.

Worker and probe are told; queue, store and book of leases are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import DeviceLeasedError, RunFailedError, UnavailableError
from meshwright.wire.base import DeviceRef
from meshwright.wire.bench import BenchRequest
from meshwright.wire.devices import DeviceProcess
from meshwright.wire.runs import FINAL_STATES, Run
from meshwright_agent.answers.benches import BENCH_GRACE_S, Benches
from meshwright_agent.facts.model import build_json
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.watch import HostWatch
from meshwright_agent.leases import LeaseRegistry, Owner
from meshwright_agent.runs import RunQueue
from meshwright_agent.settings import Settings
from tests.fakes.codes import has_code
from tests.fakes.machines import Machine, plant_machine
from tests.fakes.stored import ManualBoot, ManualClock
from tests.fakes.supervised import FakeSupervisor, Reply, answering, build_watch
from tests.unit.leases.scene import build_lease
from tests.unit.store.opening import opened

FOREIGN = DeviceProcess(pid=4711, name="python", command="python train.py", used_bytes=2**30, job="slurm 7")


@dataclass
class Scene:
    benches: Benches
    watch: HostWatch
    runs: RunQueue
    registry: LeaseRegistry
    probe: FakeSupervisor
    device: FakeSupervisor
    clock: ManualClock

    async def submit(self, *, owner: str = "", **fields: Any) -> Run:
        return await self.benches.submit(BenchRequest.model_validate(fields), by=Owner(owner))

    async def finish(self, run: Run) -> Run:
        async for _ in self.runs.events(run.id):
            pass
        ended = await self.runs.get(run.id)
        assert ended.state in FINAL_STATES
        return ended

    def lease(self, *indices: int, owner: str = "") -> None:
        named = tuple(DeviceRef(host="a", local_index=index, position=index) for index in indices)
        self.registry.put(self.registry.date(build_lease(devices=named, owner=owner), 60))

    def count(self, supervisor: FakeSupervisor, op: str) -> int:
        return sum(call[0] == op for call in supervisor.calls)


@contextlib.asynccontextmanager
async def staged(folder: Path, looks: list[Reply], answers: list[Reply]) -> AsyncIterator[Scene]:
    clock, tasks = ManualClock(), set[asyncio.Task[Any]]()
    probe, device = answering(*looks), answering(*answers)
    health, settings = HealthRegistry(stale_after_s=60), Settings()

    def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        tasks.add(task)
        return task

    async with opened(folder / "runs.sqlite3") as store:
        registry, runs = LeaseRegistry(ManualBoot()), RunQueue(store, clock=clock)
        watch = build_watch(probe, device, health=health, settings=settings, clock=clock, leases=registry, runs=runs)
        around: Any = {"runs": runs, "registry": registry, "clock": clock, "spawn": spawn}
        benches = Benches(device, watch, **around)  # type: ignore[arg-type]
        await watch.probe()
        try:
            yield Scene(benches, watch, runs, registry, probe, device, clock)
        finally:
            await runs.close("over")
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return plant_machine("dgx-h100", tmp_path_factory.mktemp("dgx"))


def look(dgx: Machine, **changes: Any) -> Reply:
    """Returns one look at a host whose GPUs are idle, but for what is changed of GPU 3."""
    facts = dgx.read()
    idle = [replace(gpu, processes=()) for gpu in facts.gpus]
    gpus = (*idle[:3], replace(idle[3], **changes), *idle[4:])
    return build_json(replace(facts, gpus=gpus))


def view(dgx: Machine) -> Reply:
    """Returns what JAX tells of the host."""
    return dict(dgx.jax or {})


async def test_no_bench_opens_devices_that_nobody_could_look_at(tmp_path: Path, dgx: Machine) -> None:
    silent = UnavailableError("the probe did not answer", code="worker_failed")
    async with staged(tmp_path, [look(dgx), silent], [{}]) as scene:
        with pytest.raises(UnavailableError, match="driver did not answer", check=has_code("not_ready")):
            await scene.submit()
        assert scene.device.calls == []


async def test_facts_are_as_old_as_the_beginning_of_the_look_that_found_them(
    tmp_path: Path, dgx: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path, [look(dgx)], [{}]) as scene:
        probe = scene.watch.probe

        async def look_slowly() -> bool:
            scene.clock.advance(8)
            return await probe()

        monkeypatch.setattr(scene.watch, "probe", look_slowly)
        before = len(scene.probe.calls)
        for _ in range(2):
            await scene.benches._probe_holders()
        assert len(scene.probe.calls) == before + 2


@pytest.mark.parametrize(("changes", "reason"), [
    ({"compute_mode": "prohibited"}, "device 3 .* prohibited"),
    ({"compute_mode": "exclusive_process", "processes": (FOREIGN,)}, "device 3 .* process 4711"),
])  # fmt: skip
async def test_what_closes_a_device_while_a_bench_waits_fails_it_and_opens_nothing(
    tmp_path: Path, dgx: Machine, changes: dict[str, Any], reason: str
) -> None:
    async with staged(tmp_path, [look(dgx), look(dgx), look(dgx, **changes)], [{}]) as scene:
        scene.clock.advance(100)
        first = scene.benches.execute

        async def execute_later(run: Run, emit: Any) -> Any:
            scene.clock.advance(100)  # so that the look at its submission is old
            return await first(run, emit)

        scene.benches.execute = execute_later
        run = await scene.finish(await scene.submit(cases=["matmul", "all_reduce"]))
        assert (run.state, run.result, run.error and run.error.code) == ("failed", None, "device_busy")
        assert re.search(reason, run.error.detail if run.error else "")
        assert scene.device.calls == []


async def test_on_accelerators_any_lease_is_in_the_way(tmp_path: Path, dgx: Machine) -> None:
    async with staged(tmp_path, [look(dgx)], [{}]) as scene:
        scene.lease(7)
        with pytest.raises(DeviceLeasedError, match="device 7 by lease-1"):
            await scene.submit(devices=[0])
        assert scene.device.calls == []


@pytest.mark.parametrize("moment", ["while it waits", "while JAX starts"])
async def test_a_bench_gives_way_to_a_lease_that_comes(tmp_path: Path, dgx: Machine, moment: str) -> None:
    async with staged(tmp_path, [look(dgx)], [view(dgx)]) as scene:
        work, list_jax_devices = scene.benches.execute, scene.watch.list_jax_devices

        async def execute(run: Run, emit: Any) -> Any:
            if moment == "while it waits":
                scene.lease(0)
            return await work(run, emit)

        async def start_jax() -> None:
            await list_jax_devices()
            scene.lease(0)

        scene.benches.execute = execute
        scene.watch.list_jax_devices = start_jax  # type: ignore[method-assign]
        ended = await scene.finish(await scene.submit())
        said = f"{ended.id} was cancelled: preempted by lease lease-1 (job 7)"
        assert (ended.state, ended.error and ended.error.detail) == ("cancelled", said)
        assert scene.count(scene.device, "bench") == 0
        assert scene.count(scene.device, "describe") == (moment == "while JAX starts")


async def test_a_bench_whose_own_lease_has_ended_fails_and_is_not_said_to_be_pre_empted(
    tmp_path: Path, dgx: Machine
) -> None:
    async with staged(tmp_path, [look(dgx)], [{}]) as scene:
        work = scene.benches.execute

        async def execute(run: Run, emit: Any) -> Any:
            scene.registry.remove(*scene.registry.active())
            return await work(run, emit)

        scene.benches.execute = execute
        scene.lease(0)
        ended = await scene.finish(await scene.submit(devices=[0], lease="lease-1"))
        assert (ended.state, ended.error and ended.error.code) == ("failed", "not_found")
        said = "the bench names lease 'lease-1', which is not here or has ended"
        assert (ended.error and ended.error.detail) == said
        assert scene.device.calls == []


async def test_jax_is_asked_again_after_a_bench_whatever_came_of_it(tmp_path: Path, dgx: Machine) -> None:
    """A link that broke fails each case; whoever has the devices is told of it."""
    seen = view(dgx)
    answers: list[Reply] = [seen, RunFailedError("nothing was measured"), seen, {"records": [], "skipped": []}, seen]
    async with staged(tmp_path, [look(dgx)], answers) as scene:
        await scene.watch.list_jax_devices()
        for state in ("failed", "succeeded"):
            looked = scene.count(scene.device, "describe")
            assert (await scene.finish(await scene.submit())).state == state
            await asyncio.sleep(0.05)
            assert scene.count(scene.device, "describe") == looked + 1


async def test_a_bench_that_overruns_its_time_limit_is_ended_a_minute_later(tmp_path: Path, dgx: Machine) -> None:
    async with staged(tmp_path, [look(dgx)], [view(dgx), *[{"records": [], "skipped": []}, view(dgx)] * 3]) as scene:
        await scene.watch.list_jax_devices()
        for fields, limit_s in (({}, 20), ({"suite": "full"}, 300), ({"max_s": 7}, 7)):
            await scene.finish(await scene.submit(**fields))
            deadlines = [deadline_s for op, _, deadline_s in scene.device.calls if op == "bench"]
            assert deadlines[-1] == limit_s + BENCH_GRACE_S


async def await_state(scene: Scene, run_id: str, state: str | None) -> str:
    """Returns the state of a run once it is this one; without one, some time later."""
    await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        while state not in (None, (await scene.runs.get(run_id)).state):  # noqa: ASYNC110 -- the store tells nobody
            await asyncio.sleep(0.01)
    return (await scene.runs.get(run_id)).state


def hold_measuring(scene: Scene) -> tuple[asyncio.Event, asyncio.Event]:
    """Lets benches of the device worker wait; returns what is set when one has begun, and what lets it go on."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    answer = scene.device.call

    async def measure(op: str, arguments: dict[str, Any], **options: Any) -> Any:
        if op == "bench":
            begun.set()
            await go_on.wait()
        return await answer(op, arguments, **options)

    scene.device.call = measure  # type: ignore[method-assign]
    return begun, go_on


async def test_a_bench_ends_when_a_job_has_come_to_hold_a_device(tmp_path: Path, dgx: Machine) -> None:
    own = DeviceProcess(pid=5, command="python -m meshwright_agent.children.device", used_bytes=2**30, own=True)
    free, held = look(dgx, processes=()), look(dgx, processes=(own, FOREIGN))
    async with staged(tmp_path, [free, free, held], [view(dgx)]) as scene:
        begun, go_on = hold_measuring(scene)
        run = await scene.submit(devices=[0])
        await asyncio.wait_for(begun.wait(), 30)
        await scene.watch.probe()  # the agent's own worker, and the job
        assert await await_state(scene, run.id, "cancelled") == "cancelled"
        go_on.set()
        said = str((await scene.finish(run)).error)
        assert "yielded to a job: JAX would open device" in said
        assert "process 4711 (python train.py) in slurm 7" in said


# ---- processes that cannot be seen -----------------------------------------------------------------------------------


async def test_a_bench_goes_on_while_its_own_worker_hides_who_else_is_there(tmp_path: Path, dgx: Machine) -> None:
    free, hidden = look(dgx, processes=()), look(dgx, processes=None, used_bytes=2**30)
    async with staged(tmp_path, [free, free, hidden], [view(dgx)]) as scene:
        begun, go_on = hold_measuring(scene)
        run = await scene.submit(devices=[3])
        await asyncio.wait_for(begun.wait(), 30)
        await scene.watch.probe()
        await asyncio.sleep(0.05)
        state = (await scene.runs.get(run.id)).state
        go_on.set()
        await scene.finish(run)
        assert state == "running"
