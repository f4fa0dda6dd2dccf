"""What the host shows: a topology is made once, and anew for another snapshot, or when a lease comes or goes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from meshwright_agent.agent import Agent
from meshwright_agent.leases import _build_leased
from meshwright_agent.settings import Settings
from tests.fakes.machines import plant_machine
from tests.fakes.stored import EPOCH, ManualBoot, ManualClock
from tests.unit.leases.scene import build_lease
from tests.unit.store.opening import build_closed_store


def build_agent(folder: Path, boot: ManualBoot) -> Agent:
    """Returns an agent whose driver lists eight GPUs."""
    agent = Agent(Settings(state_dir=folder), build_closed_store(folder), clock=ManualClock(), boot=boot, environ={})
    agent.host.update(facts=plant_machine("dgx-h100", folder).read(), facts_at=EPOCH)
    return agent


def test_a_topology_is_made_once_for_a_snapshot_and_anew_for_another_state_of_the_worker(tmp_path: Path) -> None:
    agent = build_agent(tmp_path, ManualBoot())
    first = agent.host.topology()
    assert agent.host.topology() is first
    agent.host.update(facts_at=EPOCH + timedelta(seconds=5))
    second = agent.host.topology()
    assert second is not first
    agent.device.generation = 1
    assert agent.host.topology() is not second


def test_a_lease_stands_in_the_topology_until_it_has_run_out(tmp_path: Path) -> None:
    boot = ManualBoot()
    agent = build_agent(tmp_path, boot)

    def list_leased() -> list[int]:
        return [place for place, device in enumerate(agent.host.topology().devices) if device.lease is not None]

    assert list_leased() == []
    leased = (_build_leased(agent.host.devices().devices[0]),)
    agent.registry.put(agent.registry.date(build_lease(devices=leased), 60.0))
    assert list_leased() == [0]
    boot.now_s += 61.0
    assert list_leased() == []
