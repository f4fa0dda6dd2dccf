"""A simulated host: everything declared, nothing healthy, nothing measured, and said so wherever it is shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

from meshwright_agent.agent import Agent
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store
from tests.fakes.stored import ManualClock
from tests.unit.store.opening import build_closed_store


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
