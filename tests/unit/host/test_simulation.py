"""A simulated host: everything declared, nothing healthy, nothing measured, and said so wherever it is shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.topology.targets import build_target
from meshwright.wire.bench import BenchRequest
from meshwright.wire.devices import Devices
from meshwright.wire.health import Health
from meshwright.wire.mesh import PlanRequest, Plans
from meshwright_agent.agent import Agent
from meshwright_agent.leases import Owner
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store
from tests.fakes.stored import ManualClock
from tests.unit.store.opening import build_closed_store


def build(folder: Path, target: str = "2*h100:8") -> Agent:
    return Agent(
        Settings(simulate=target, state_dir=folder), build_closed_store(folder), clock=ManualClock(), environ={}
    )


def read_health(agent: Agent) -> Health:
    return agent.health.view(agent.clock.now())


def test_a_simulated_host_lists_the_devices_of_all_its_hosts_as_declared(tmp_path: Path) -> None:
    devices = build(tmp_path).host.devices()
    assert [(d.host, d.local_index) for d in devices.devices] == [
        (f"host-{host}", index) for host in range(2) for index in range(8)
    ]
    assert [granule.name for granule in devices.granules] == ["host-0", "host-1"]
    assert {fact.basis for fact in (devices.host, devices.software, *devices.devices, *devices.links)} == {"declared"}
    assert [notice.code for notice in devices.warnings] == ["simulated"]
    assert devices.worker.state == "stopped"


def test_what_is_simulated_is_the_target_and_reads_as_any_other_host(tmp_path: Path) -> None:
    agent = build(tmp_path, "v5e:4x4")
    assert agent.host.topology() == build_target("v5e:4x4")
    again = Devices.model_validate_json(agent.host.devices().model_dump_json())
    assert again == agent.host.devices()


def test_nothing_is_healthy_since_nothing_was_checked(tmp_path: Path) -> None:
    agent = build(tmp_path)
    assert {component.state for component in read_health(agent).components} == {"initializing"}
    asyncio.run(agent.host.probe())
    seen = {component.name: component.state for component in read_health(agent).components}
    assert seen == {"driver": "unknown", "store": "initializing"}
    assert read_health(agent).state == "unknown"


def test_plans_use_every_device_and_each_says_that_it_is_of_a_simulation(tmp_path: Path) -> None:
    plans = Plans.model_validate_json(asyncio.run(build(tmp_path).plans.answer(PlanRequest(mesh="x:-1"))).write())
    assert plans.plans[0].mesh_shape == {"x": 16}
    assert "simulated" in [notice.code for notice in plans.plans[0].warnings]
    assert plans.plans[0].target is None


def test_it_is_ready_and_says_what_it_is(tmp_path: Path) -> None:
    assert build(tmp_path).readiness() == (True, "ready: simulated 2*h100:8, no device is here")


def test_what_needs_hardware_is_refused_and_no_child_is_started(tmp_path: Path) -> None:
    agent = build(tmp_path)
    with pytest.raises(InvalidRequestError, match=r"simulates 2\*h100:8") as caught:
        asyncio.run(agent.benches.submit(BenchRequest(), by=Owner()))
    assert caught.value.hint
    answer = asyncio.run(agent.host.release())
    assert (answer.released, answer.holders, answer.worker_killed) == (True, (), False)
    assert (agent.device.generation, agent.probe.generation) == (0, 0)


def test_a_simulation_is_kept_apart_from_what_was_measured_here(tmp_path: Path) -> None:
    async def live() -> None:
        settings = Settings(simulate="h100:8", state_dir=tmp_path)
        async with Store.open(settings.database_path, clock=ManualClock()) as store:
            agent = Agent(settings, store, clock=ManualClock(), environ={})
            await agent.start()
            await agent.close()

    asyncio.run(live())
    files = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert files == {"simulated"}


def test_nothing_ages_and_a_topology_is_made_once(tmp_path: Path) -> None:
    clock = ManualClock()
    agent = Agent(
        Settings(simulate="v5e:4x4", state_dir=tmp_path), build_closed_store(tmp_path), clock=clock, environ={}
    )
    devices, topology = agent.host.devices(), agent.host.topology()
    clock.advance(3600)
    assert (agent.host.devices(), agent.host.topology()) == (devices, topology)
    assert agent.host.topology() is topology
