"""When the watch starts JAX on accelerators: not while a device is reserved, and again after it with `hold: always`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.wire.devices import DeviceProcess, WorkerState
from meshwright_agent.facts.model import build_json
from meshwright_agent.facts.procfs import find_holders
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.supervisor import Answer, CallCancelled
from tests.fakes.machines import Machine
from tests.fakes.stored import ManualClock
from tests.fakes.supervised import FakeSupervisor, answering, build_watch, refresh


class Host:
    """A watch over a host of GPUs, whose worker and leases are set by hand."""

    def __init__(self, dgx: Machine, hold: str = "on_demand", **settings: Any) -> None:
        assert dgx.jax is not None
        self.leases = SimpleNamespace(active=lambda: ("lease-1",) * self.is_reserved)
        self.is_reserved = False
        self.device: FakeSupervisor = answering(dict(dgx.jax))
        self.probe = answering(build_json(replace(dgx.read(), holders=())))
        self.preflight: FakeSupervisor = answering()
        self.health, self.clock = HealthRegistry(stale_after_s=60), ManualClock()
        around: dict[str, Any] = {"health": self.health, "settings": Settings(hold=hold, **settings)}  # type: ignore[arg-type]
        around |= {"leases": self.leases, "preflight": self.preflight}
        self.watch = build_watch(self.probe, self.device, clock=self.clock, **around)

    def look(self) -> int:
        """Looks once; returns how many workers there have been."""
        asyncio.run(refresh(self.watch))
        return self.device.generation


def test_a_release_lasts_no_longer_than_the_lease_under_which_it_was_made(dgx: Machine) -> None:
    host = Host(dgx)
    host.is_reserved = True
    host.look()
    asyncio.run(host.watch.release())
    assert host.look() == 0
    assert host.health.component("worker", host.clock.now()).reason.startswith("not started: the devices were released")
    host.is_reserved = False
    assert host.look() == 1  # so that its JAX is known to the next preflight


@pytest.mark.parametrize("hold", ["on_demand", "always"])
def test_jax_is_not_started_while_a_device_is_reserved(dgx: Machine, hold: str) -> None:
    host = Host(dgx, hold)
    host.is_reserved = True
    assert [host.look(), host.look()] == [0, 0]
    worker = host.health.component("worker", host.clock.now())
    assert (worker.state, worker.reason) == ("initializing", "not started: a device is leased")
    assert host.health.view(host.clock.now()).state == "healthy"
    host.is_reserved = False
    assert host.look() == 1


@pytest.mark.parametrize(("hold", "workers"), [("on_demand", 1), ("always", 2)])
def test_a_worker_that_a_lease_ended_comes_back_with_hold_always(dgx: Machine, hold: str, workers: int) -> None:
    host = Host(dgx, hold)
    host.look()
    host.device.state, host.is_reserved = "stopped", True
    assert host.look() == 1
    host.is_reserved = False
    assert host.look() == workers


@pytest.mark.parametrize("hold", ["on_demand", "always"])
def test_a_worker_that_ended_is_not_started_again_before_the_driver_tells_who_holds_the_devices(
    dgx: Machine, hold: str
) -> None:
    host = Host(dgx, hold)
    assert host.look() == 1
    free = host.probe.answers[0]
    host.device.state, host.device.has_crashed = "stopped", hold == "on_demand"
    host.probe.answers[0] = CallCancelled("the driver hangs")
    assert host.look() == 1
    host.probe.answers[0] = free
    assert host.look() == 2


def test_a_worker_that_was_released_does_not_come_back_by_itself(dgx: Machine) -> None:
    host = Host(dgx, "always")
    host.look()
    host.device.state = "stopped"
    asyncio.run(host.watch.release())
    assert [host.look(), host.look()] == [1, 1]


@pytest.mark.parametrize("hold", ["on_demand", "always"])
def test_a_worker_that_was_released_before_it_had_told_its_view_does_not_come_back_by_itself(
    dgx: Machine, hold: str
) -> None:
    host = Host(dgx, hold)
    told = host.device.answers[0]
    host.device.answers[0] = CallCancelled("the devices were released")
    host.look()
    asyncio.run(host.watch.release())
    host.device.answers[0] = told
    assert [host.look(), host.look()] == [0, 0]
    host.watch.report_progress({"done": 0, "total": 1})  # a bench has started it
    assert host.look() == 1


@pytest.mark.parametrize(
    ("is_reserved", "rested_s", "is_ended"), [(True, 60, True), (True, 59, False), (False, 60, False)]
)
def test_a_worker_that_a_bench_left_on_reserved_devices_is_ended_when_it_has_rested(
    dgx: Machine, is_reserved: bool, rested_s: float, is_ended: bool
) -> None:
    host = Host(dgx, "always", idle_release_s=60)
    host.look()
    host.is_reserved, host.device.idle_s = is_reserved, rested_s
    host.look()
    assert [reason for reason in host.device.releases if "reserved" in reason] == host.device.releases
    assert (len(host.device.releases), host.device.state) == ((1, "stopped") if is_ended else (0, "ready"))


def test_where_it_is_never_held_jax_is_started_by_benches_alone_and_asked_while_it_is_there(dgx: Machine) -> None:
    host = Host(dgx, "never")
    assert [host.look(), host.look()] == [0, 0]
    (worker,) = (part for part in host.health.view(host.clock.now()).components if part.name == "worker")
    said = "not started: MESHWRIGHT_HOLD is never; a bench starts it"
    assert (worker.state, worker.reason) == ("initializing", said)
    assert host.health.view(host.clock.now()).state == "healthy"
    host.device.state, host.device.generation = "ready", 1  # a bench has started it
    assert host.look() == 1
    assert len(host.device.calls) == 1


def build_strange(dgx: Machine) -> dict[str, Any]:
    """Returns the probe's answer where each GPU is held by a process that only the host can name."""
    facts, strange = dgx.read(), DeviceProcess(pid=4711, used_bytes=2**30)
    gpus = tuple(replace(gpu, processes=(strange,), unlisted_pids=(4711,)) for gpu in facts.gpus)
    return build_json(replace(facts, gpus=gpus, holders=find_holders(gpus, ())))


@pytest.mark.parametrize(
    ("before", "generation", "is_told"), [("busy", 0, False), ("stopped", 1, False), ("stopped", 0, True)]
)
def test_a_number_of_the_host_may_be_that_of_a_preflight_that_ran_during_the_probe(
    dgx: Machine, before: WorkerState, generation: int, is_told: bool
) -> None:
    host = Host(dgx)
    host.probe.answers[0] = build_strange(dgx)
    host.preflight.state, ask = before, host.probe.call

    async def call(*args: Any, **kwargs: Any) -> Answer:
        host.preflight.state, host.preflight.generation = "stopped", generation
        return await ask(*args, **kwargs)

    host.probe.call = call  # type: ignore[method-assign]
    host.look()
    seen = host.watch.snapshot.devices(host.clock.now()).devices
    assert all(device.processes for device in seen) is is_told


def test_a_number_of_the_host_may_be_our_own_workers_and_only_while_it_is_there(dgx: Machine) -> None:
    host = Host(dgx, "always")
    assert host.look() == 1
    host.probe.answers[0] = build_strange(dgx)
    asked = len(host.device.calls)
    assert host.look() == 1
    assert {device.processes for device in host.watch.snapshot.devices(host.clock.now()).devices} == {None}
    assert len(host.device.calls) == asked + 1  # the worker that is there opens nothing more
    host.device.state = "stopped"
    assert host.look() == 1  # not started anew: now it is somebody else's
    (seen,) = host.watch.snapshot.devices(host.clock.now()).devices[0].processes or ()
    assert (seen.pid, seen.own) == (4711, False)
