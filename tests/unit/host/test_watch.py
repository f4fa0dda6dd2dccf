"""The watch on a host that is told: what the probe and the worker answer is a list, and time passes when it is told to.

Facts are those of recorded machines.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.errors import RunFailedError, UnavailableError
from meshwright.wire.devices import DeviceProcess, Devices, WorkerState
from meshwright.wire.health import Component
from meshwright_agent.children import probe
from meshwright_agent.clock import SystemClock
from meshwright_agent.facts.model import KernelLog, build_json
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.watch import HostWatch
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.process import ChildSpec
from meshwright_agent.supervisor.supervisor import Answer, CallCancelled, Supervisor
from tests.fakes.codes import has_code
from tests.fakes.machines import Machine, plant_machine
from tests.fakes.stored import ManualClock, build_record_json
from tests.fakes.supervised import FakeSupervisor, Reply, answering, build_watch, refresh
from tests.fakes.well import write_record, xid

STALE_AFTER_S = 60.0
FOREIGN = DeviceProcess(pid=4711, name="python", devices=("GPU-0",))
OWN = DeviceProcess(pid=12, name="python", devices=("GPU-0",), own=True)
SILENT = UnavailableError("the probe did not answer within 10 s\nand more words", code="worker_failed")


@dataclass
class Scene:
    """A watch, and everything around it."""

    watch: HostWatch
    probe: FakeSupervisor
    device: FakeSupervisor
    health: HealthRegistry
    clock: ManualClock
    settings: Settings

    def look(self) -> None:
        asyncio.run(refresh(self.watch))

    def component(self, name: str) -> Component:
        return next(c for c in self.health.view(self.clock.now()).components if c.name == name)

    def state(self, name: str) -> str:
        return self.health.state(name, self.clock.now())

    def states_of_devices(self) -> dict[str, str]:
        names = [name.removeprefix("device:") for name in self.health.names() if name.startswith("device:")]
        return {name: self.state(f"device:{name}") for name in names}

    def devices(self) -> Devices:
        return self.watch.snapshot.devices(self.clock.now())


def stage(
    probe: Reply | list[Reply], device: Reply | list[Reply], *, cpu_devices: int | None = None, stays: bool = True
) -> Scene:
    def supervise(answers: Reply | list[Reply]) -> FakeSupervisor:
        return answering(*(answers if isinstance(answers, list) else [answers]))

    clock, health = ManualClock(), HealthRegistry(stale_after_s=STALE_AFTER_S)
    settings = Settings(cpu_devices=cpu_devices)
    fakes = supervise(probe), supervise(device)
    watch = build_watch(*fakes, health=health, settings=settings, clock=clock, stays=stays)
    return Scene(watch, *fakes, health, clock, settings)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return plant_machine("cpu-vm", tmp_path_factory.mktemp("cpu"))


@pytest.fixture(scope="module")
def tpu(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return plant_machine("tpu-v5e-8", tmp_path_factory.mktemp("tpu"))


def facts_of(machine: Machine, **changes: Any) -> Reply:
    return build_json(replace(machine.read(), **changes))


def jax_of(machine: Machine) -> Reply:
    assert machine.jax is not None
    return dict(machine.jax)


def stage_cpu(
    cpu: Machine, probe: Reply | list[Reply] | None = None, device: Reply | list[Reply] | None = None
) -> Scene:
    return stage(probe or facts_of(cpu), device or jax_of(cpu), cpu_devices=len(jax_of(cpu)["devices"]))  # type: ignore[index]


def stage_dgx(
    dgx: Machine, probe: Reply | list[Reply] | None = None, device: Reply | list[Reply] | None = None
) -> Scene:
    return stage(probe or facts_of(dgx, holders=()), device or jax_of(dgx), stays=False)


def test_the_fake_has_the_members_and_signatures_of_the_real_one() -> None:
    own = {name for name in vars(answering({})) if not name.startswith("_")} | {"call", "release", "reset", "view"}
    assert own - {"answers", "calls", "releases", "resets", "state_after"} <= set(
        dir(Supervisor(ChildSpec("device", "no.module", dict), clock=SystemClock()))
    )
    for name in ("call", "reset", "view"):
        theirs, ours = (inspect.signature(getattr(cls, name)).parameters for cls in (Supervisor, FakeSupervisor))
        assert [(p.name, p.kind) for p in theirs.values()] == [(p.name, p.kind) for p in ours.values()]


async def test_two_probes_at_once_read_each_line_of_the_kernel_log_once(dgx: Machine) -> None:
    scene = stage_dgx(dgx, [facts_of(dgx, kernel_log=KernelLog((), last)) for last in (7, 9)])
    await asyncio.gather(scene.watch.probe(), scene.watch.probe())
    assert [question["kernel_log_after"] for _, question, _ in scene.probe.calls] == [None, 7]


# ---- before, and on a host whose worker may stay --------------------------------------------------------------------


def test_before_the_first_look_nothing_is_known_and_nothing_is_healthy(cpu: Machine) -> None:
    scene = stage_cpu(cpu)
    assert not scene.watch.snapshot.knows_topology
    assert {scene.state("worker"), scene.state("driver")} == {"initializing"}
    with pytest.raises(UnavailableError, check=has_code("not_ready")) as caught:
        scene.watch.snapshot.require_topology()
    assert caught.value.retry_after_s
    assert "/readyz" in caught.value.hint
    assert (scene.probe.calls, scene.device.calls) == ([], [])


def test_a_worker_that_is_busy_within_its_deadline_is_not_asked_and_is_healthy(cpu: Machine) -> None:
    scene = stage_cpu(cpu)
    scene.look()
    scene.device.state = "busy"
    scene.clock.advance(STALE_AFTER_S + 1)
    scene.look()
    assert len(scene.device.calls) == 1
    assert scene.state("worker") == "healthy"
    scene.device.silent_s = 61.0
    scene.look()
    assert scene.state("worker") == "degraded"
    scene.device.silent_s = 1.0
    assert set(scene.states_of_devices().values()) == {"unknown"}
    scene.watch.report_progress({"record": build_record_json(device_indices=(0, 1))})
    assert [scene.state(f"device:{index}") for index in (0, 1)] == ["healthy", "healthy"]


def test_a_wrong_result_degrades_its_device_until_a_right_one_whatever_jax_lists(cpu: Machine) -> None:
    scene = stage_cpu(cpu)
    scene.look()
    scene.watch.report_progress({"record": build_record_json(device_indices=(0,), correct=False, wrong_elements=3)})
    scene.look()
    device = scene.component("device:0")
    assert (device.state, scene.state("device:1")) == ("degraded", "healthy")
    assert "3 elements" in device.reason
    assert device.action
    scene.watch.report_progress({"record": build_record_json(device_indices=(0,), correct=True, wrong_elements=0)})
    assert scene.state("device:0") == "healthy"


@pytest.mark.parametrize(("name", "visible", "blamed"), [
    ("pcie-l40s", "2,0", 0), ("mig-a100", "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d", 1),
])  # fmt: skip
def test_a_bench_tells_only_of_devices_that_jax_opened(name: str, visible: str, blamed: int, tmp_path: Path) -> None:
    machine = plant_machine(name, tmp_path)
    facts = facts_of(machine, holders=(), environment={"CUDA_VISIBLE_DEVICES": visible})
    scene = stage(facts, jax_of(machine), stays=False)
    scene.look()
    scene.watch.report_progress({"record": build_record_json(correct=False, wrong_elements=3)})
    reasons = [scene.component(device.component).reason for device in scene.devices().devices]
    assert [place for place, reason in enumerate(reasons) if "wrong result" in reason] == [blamed]


def test_a_worker_that_is_up_is_not_called_well_before_it_has_said_on_which_devices(tpu: Machine) -> None:
    scene = stage(facts_of(tpu, holders=()), {**tpu.jax, "platform": "cpu"}, stays=False)  # type: ignore[dict-item]
    scene.device.state = "ready"
    scene.watch.report_worker()  # as its supervisor does
    assert scene.state("worker") == "initializing"
    scene.look()
    assert scene.state("worker") == "degraded"


# ---- the probe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "silence", [SILENT, UnavailableError("died by signal 9", code="worker_failed"), CallCancelled("closing")]
)
def test_a_driver_that_does_not_answer_is_unknown_and_its_facts_stay_and_grow_old(
    cpu: Machine, silence: Exception
) -> None:
    scene = stage_cpu(cpu, probe=[facts_of(cpu), silence])
    scene.look()
    scene.clock.advance(30)
    scene.look()
    driver = scene.component("driver")
    assert (driver.state, driver.age_s) == ("unknown", 0)
    assert "the probe did not answer: " in driver.reason
    assert "\n" not in driver.reason
    assert driver.action
    assert scene.devices().host.age_s == 30
    assert scene.state("worker") == "healthy"


def test_an_xid_is_reported_once_though_the_driver_hangs(
    dgx: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = stage_dgx(dgx)
    scene.look()
    write_record(tmp_path / "kmsg", 1, xid("0000:1b:00", 79))

    def hang() -> None:
        raise SILENT

    async def call(_: str, arguments: dict[str, Any], *, deadline_s: float, on_progress: Any) -> None:
        here = {"root": str(dgx.roots.root), "kernel_log": str(tmp_path / "kmsg")}
        probe.facts(arguments | here, SimpleNamespace(progress=on_progress))  # type: ignore[arg-type]

    monkeypatch.setattr(probe, "find_nvml", lambda: SimpleNamespace(nvmlInit=hang, NVMLError=KeyError))
    monkeypatch.setattr(scene.probe, "call", call)
    for _ in range(2):
        scene.look()
    seen = scene.component(f"device:{dgx.read().gpus[0].uuid}")
    assert (seen.state, "XID 79" in seen.reason, "times" in seen.reason) == ("unhealthy", True, False)
    assert scene.state("kernel_log") == "healthy"


def test_a_driver_that_never_answered_leaves_the_devices_that_jax_shows(cpu: Machine) -> None:
    scene = stage_cpu(cpu, probe=SILENT)
    scene.look()
    assert scene.watch.snapshot.knows_topology
    assert "facts_missing" in [w.code for w in scene.devices().warnings]


def test_a_probe_that_is_given_up_is_asked_again_unless_processes_hang_in_the_driver(cpu: Machine) -> None:
    scene = stage_cpu(cpu)
    scene.probe.state, scene.probe.abandoned_pids = "failed", (99,)
    scene.look()
    assert scene.probe.resets == 0
    scene.probe.state, scene.probe.abandoned_pids = "failed", ()
    scene.look()
    assert scene.probe.resets == 1


def test_while_as_many_probes_hang_as_may_crash_no_more_is_started(cpu: Machine) -> None:
    scene = stage_cpu(cpu)
    most = scene.probe.spec.crash_budget
    for count, calls, state in ((most - 1, 1, "healthy"), (most, 1, "unknown"), (0, 2, "healthy")):
        scene.probe.abandoned_pids = tuple(range(count))
        scene.look()
        assert (len(scene.probe.calls), scene.state("driver")) == (calls, state)


# ---- the worker -----------------------------------------------------------------------------------------------------


def test_a_worker_that_cannot_start_is_unhealthy_and_the_reason_and_log_are_in_the_error(cpu: Machine) -> None:
    scene = stage_cpu(cpu, device=UnavailableError("ImportError: no jaxlib", code="worker_failed"))
    scene.device.state_after, scene.device.log_tail = "failed", tuple(f"line {n}" for n in range(200))
    scene.look()
    worker = scene.component("worker")
    assert worker.state == "unhealthy"
    assert (worker.permanence, "no jaxlib" in worker.reason) == ("permanent", True)
    assert "doctor" in worker.action
    with pytest.raises(UnavailableError, check=has_code("worker_failed")) as caught:
        scene.watch.snapshot.require_topology()
    assert "no jaxlib" in caught.value.detail
    assert caught.value.log[-1] == "line 199"
    assert 10 < len(caught.value.log) < 200
    assert "doctor" in caught.value.hint


@pytest.mark.parametrize("after", ["backoff", "stopped"])
def test_a_worker_that_never_started_is_unhealthy_also_between_its_tries(cpu: Machine, after: WorkerState) -> None:
    scene = stage_cpu(cpu, device=UnavailableError("died by SIGSEGV", log=("the last line",), code="worker_failed"))
    scene.device.state_after = after
    scene.look()
    assert (scene.state("worker"), scene.component("worker").reason) == ("unhealthy", "does not start: died by SIGSEGV")
    with pytest.raises(UnavailableError, match="died by SIGSEGV", check=has_code("worker_failed")) as caught:
        scene.watch.snapshot.require_topology()
    assert caught.value.log == ("the last line",)


def test_a_worker_that_died_after_it_was_seen_leaves_its_view_cached_and_plans_possible(cpu: Machine) -> None:
    scene = stage_cpu(cpu, device=[jax_of(cpu), UnavailableError("died by SIGSEGV", code="worker_failed")])
    scene.look()
    scene.device.state_after = "backoff"
    scene.look()
    scene.watch.snapshot.require_topology()
    assert scene.devices().software.basis == "cached"


def test_a_view_of_an_earlier_worker_is_cached_until_the_new_one_has_been_asked(cpu: Machine) -> None:
    scene = stage_cpu(cpu)
    scene.look()
    scene.device.generation = 2
    assert scene.devices().software.basis == "cached"
    scene.look()
    assert scene.devices().software.basis == "live"


def test_a_living_worker_whose_jax_does_not_list_its_devices_is_not_healthy(cpu: Machine) -> None:
    scene = stage_cpu(cpu, device=RunFailedError("RuntimeError: backend is gone\n  more"))
    scene.device.state = "ready"
    scene.look()
    worker = scene.component("worker")
    assert (worker.state, worker.reason) == ("degraded", "RuntimeError: backend is gone")


def test_a_worker_that_was_let_go_on_purpose_stays_healthy_and_says_so(dgx: Machine) -> None:
    scene = stage_dgx(dgx)
    scene.look()
    assert scene.state("worker") == "healthy"
    scene.device.state = "stopped"
    scene.clock.advance(STALE_AFTER_S + 1)
    scene.look()
    assert scene.state("worker") == "healthy"
    assert "starts on demand" in scene.component("worker").reason
    assert len(scene.device.calls) == 1


@pytest.mark.parametrize("released", [False, True])
def test_a_worker_that_was_killed_is_degraded_until_another_has_started_whatever_comes_between(
    cpu: Machine, released: bool
) -> None:
    scene = stage_cpu(cpu)
    scene.look()
    scene.device.has_crashed, scene.device.last_error = True, "was killed by SIGKILL"
    states: tuple[WorkerState, ...] = ("backoff", "stopped", "starting", "stopping", "stopped")
    for state in states:
        scene.device.state = state
        scene.watch.report_worker()  # as its supervisor does
        if released:
            asyncio.run(scene.watch.release())
        assert scene.component("worker").state == "degraded"
        assert "SIGKILL" in scene.component("worker").reason
    scene.device.state, scene.device.has_crashed = "ready", False
    scene.watch.report_worker()
    assert scene.state("worker") == "healthy"


def test_jax_on_accelerators_is_asked_again_after_a_crash_and_not_after_a_release_too(dgx: Machine) -> None:
    scene = stage_dgx(dgx)
    scene.look()
    scene.device.state, scene.device.has_crashed = "stopped", True
    scene.watch.update(released=True)
    scene.look()
    assert (len(scene.device.calls), scene.state("worker")) == (1, "degraded")
    scene.watch.update(released=False)
    scene.look()
    assert (len(scene.device.calls), scene.state("worker")) == (2, "healthy")


def test_after_a_restart_nothing_is_healthy_before_jax_has_listed_the_devices_again(cpu: Machine) -> None:
    scene = stage_cpu(cpu)
    scene.device.state = "ready"
    scene.watch.report_worker()  # as its supervisor does
    scene.watch.report_progress({"done": 1, "total": 2, "message": ""})  # a bench that did not wait for the first look
    asyncio.run(scene.watch.probe())
    assert scene.state("driver") == "healthy"
    assert scene.health.view(scene.clock.now()).state == "initializing"
    scene.look()
    assert scene.health.view(scene.clock.now()).state == "healthy"
    assert set(scene.states_of_devices().values()) == {"healthy"}


def test_a_worker_that_may_stay_is_started_again_if_it_stopped_but_not_if_it_was_released(cpu: Machine) -> None:
    scene = stage_cpu(cpu)
    scene.look()
    scene.device.state = "stopped"
    scene.watch.update(released=True)
    scene.look()
    assert (len(scene.device.calls), scene.device.generation) == (1, 1)
    scene.watch.update(released=False)
    scene.look()
    assert (scene.device.state, scene.device.generation) == ("ready", 2)


# ---- accelerators ---------------------------------------------------------------------------------------------------


def test_a_host_whose_devices_a_job_holds_from_the_start_is_not_initializing_as_long_as_the_job_runs(
    dgx: Machine,
) -> None:
    another = FOREIGN.model_copy(update={"pid": 5, "devices": ("GPU-1",)})
    scene = stage_dgx(dgx, probe=facts_of(dgx, holders=(OWN, FOREIGN, another)))
    for _ in range(3):
        scene.clock.advance(STALE_AFTER_S)
        scene.look()
        assert scene.health.view(scene.clock.now()).state == "healthy"
        assert scene.component("worker").reason == "not started: process 4711 (python) and 1 more hold GPU-0 and 1 more"


def test_jax_is_not_started_where_nobody_could_look_who_holds_the_devices(dgx: Machine) -> None:
    scene = stage_dgx(dgx, probe=facts_of(dgx, holders=None))
    scene.look()
    assert scene.device.calls == []
    assert scene.watch.snapshot.knows_topology


def test_jax_is_not_started_on_a_gpu_that_lets_no_process_in_and_the_host_is_none_the_worse(dgx: Machine) -> None:
    gpus = dgx.read().gpus
    closed = (replace(gpus[0], compute_mode="prohibited"), *gpus[1:])
    scene = stage_dgx(dgx, probe=[facts_of(dgx, gpus=closed, holders=()), facts_of(dgx, holders=())])
    scene.look()
    worker = scene.component("worker")
    assert (scene.device.calls, worker.state) == ([], "initializing")
    assert worker.reason.startswith("not started: GPU 0 is in compute mode prohibited")
    assert scene.health.view(scene.clock.now()).state == "healthy"
    scene.look()
    assert (len(scene.device.calls), scene.state("worker")) == (1, "healthy")


def test_jax_is_started_once_the_devices_are_free_and_then_not_again(dgx: Machine) -> None:
    busy, free = facts_of(dgx, holders=(FOREIGN,)), facts_of(dgx, holders=(OWN,))
    scene = stage_dgx(dgx, probe=[busy, free, free, free])
    for expected in (0, 1, 1, 1):
        scene.look()
        assert len(scene.device.calls) == expected


def test_jax_is_not_started_on_accelerators_before_the_driver_has_answered(dgx: Machine) -> None:
    scene = stage_dgx(dgx, probe=[SILENT, facts_of(dgx, holders=())])
    scene.look()
    assert scene.device.calls == []
    with pytest.raises(UnavailableError, check=has_code("not_ready")):
        scene.watch.snapshot.require_topology()
    scene.look()
    assert len(scene.device.calls) == 1


@pytest.mark.parametrize("name", ["dgx", "tpu"])
def test_accelerators_that_the_driver_lists_are_healthy_one_by_one(name: str, request: pytest.FixtureRequest) -> None:
    machine: Machine = request.getfixturevalue(name)
    scene = stage(facts_of(machine, holders=(FOREIGN,)), jax_of(machine), stays=False)
    scene.look()
    assert list(scene.states_of_devices().values()) == ["healthy"] * 8
    assert set(scene.states_of_devices()) == {device.uuid or device.pci_bus_id for device in scene.devices().devices}


# ---- while JAX's start hangs ----------------------------------------------------------------------------------------


class HangingSupervisor(FakeSupervisor):
    """Starts for ever; `asked` is set once it is."""

    asked: asyncio.Event | None = None

    async def call(self, *args: Any, **kwargs: Any) -> Answer:
        self.state = "starting"
        self.calls.append((args[0], args[1], kwargs["deadline_s"]))
        if self.asked is not None:
            self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("stays", [False, True])
async def test_the_facts_are_looked_at_while_jax_does_not_start_and_it_is_asked_once(dgx: Machine, stays: bool) -> None:
    scene = stage(facts_of(dgx, holders=()), {}, stays=stays)
    device = HangingSupervisor(deque())
    scene.watch._device = device  # type: ignore[assignment]
    async with asyncio.timeout(20):
        for _ in range(4):
            scene.clock.advance(STALE_AFTER_S)
            await scene.watch.refresh()
            await asyncio.sleep(0)
            assert scene.state("driver") == "healthy"
            assert set(scene.states_of_devices().values()) == {"healthy"}
        assert (len(scene.probe.calls), len(device.calls)) == (4, 1)


async def test_a_watch_that_ends_ends_its_question_to_jax_as_well(dgx: Machine) -> None:
    scene = stage(facts_of(dgx, holders=()), {}, stays=False)
    scene.watch._device = device = HangingSupervisor(deque())  # type: ignore[assignment]
    async with asyncio.timeout(20):
        before = asyncio.all_tasks()
        device.asked = asyncio.Event()
        watching = asyncio.create_task(scene.watch.run())
        await device.asked.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert asyncio.all_tasks() == before


def test_a_look_at_jax_that_fails_for_a_bug_is_told_and_is_not_the_last(
    dgx: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    scene = stage_dgx(dgx, device=[{"no": "platform"}, jax_of(dgx)])
    scene.look()
    assert "JAX could not be asked for its devices" in caplog.text
    scene.watch.update(jax=None)
    scene.look()
    assert scene.state("worker") == "healthy"


# ---- for ever -------------------------------------------------------------------------------------------------------


async def test_a_look_that_fails_for_a_bug_does_not_end_the_watch(
    cpu: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    scene = stage_cpu(cpu, probe=[{"no": "facts"}, facts_of(cpu)])
    settings = scene.settings.model_copy(update={"probe_interval_s": 0.001})
    around: dict[str, Any] = {"health": scene.health, "settings": settings, "clock": scene.clock, "stays": True}
    watch = build_watch(scene.probe, scene.device, **around)
    async with asyncio.timeout(20):
        watching = asyncio.create_task(watch.run())
        while scene.state("driver") != "healthy":
            await asyncio.sleep(0)
            assert not watching.done()
        watching.cancel()
    assert "a probe of the host failed" in caplog.text


@pytest.mark.parametrize("stays", [True, False])
def test_cpu_devices_stay_healthy_without_a_worker_as_long_as_the_probe_answers(cpu: Machine, stays: bool) -> None:
    scene = stage([facts_of(cpu, holders=())] * 4 + [SILENT] * 4, jax_of(cpu), stays=stays)
    scene.look()
    scene.device.state = "stopped"
    if stays:
        asyncio.run(scene.watch.release())
    for _ in range(3):
        scene.clock.advance(STALE_AFTER_S - 1)
        scene.look()
    assert set(scene.states_of_devices().values()) == {"healthy"}
    scene.clock.advance(STALE_AFTER_S + 1)
    scene.look()
    assert set(scene.states_of_devices().values()) == {"unknown"}
