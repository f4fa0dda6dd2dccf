"""The host in one picture: a topology is made once, and anew when a lease comes or goes, or somebody looked again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from meshwright_agent.agent import Agent
from meshwright_agent.host.watch import Sight
from meshwright_agent.leases import _build_leased
from meshwright_agent.settings import Settings
from tests.fakes.machines import plant_machine
from tests.fakes.stored import EPOCH, ManualBoot, ManualClock
from tests.unit.leases.scene import build_lease
from tests.unit.store.opening import build_closed_store


def build_agent(folder: Path, boot: ManualBoot) -> Agent:
    """Returns an agent that has seen eight GPUs."""
    agent = Agent(Settings(state_dir=folder), build_closed_store(folder), clock=ManualClock(), boot=boot, environ={})
    agent.watch.sight = Sight(facts=plant_machine("dgx-h100", folder).read(), facts_at=EPOCH)
    return agent


def lease_first(agent: Agent) -> None:
    leased = (_build_leased(agent.picture.devices().devices[0]),)
    agent.registry.put(agent.registry.date(build_lease(devices=leased), 60.0))


def list_leased(agent: Agent) -> list[int]:
    return [place for place, device in enumerate(agent.picture.topology().devices) if device.lease is not None]


def test_a_topology_is_made_once_for_what_is_known_and_anew_after_a_look_or_a_change_of_the_worker(
    tmp_path: Path,
) -> None:
    agent = build_agent(tmp_path, ManualBoot())
    first = agent.picture.topology()
    assert agent.picture.topology() is first
    assert agent.watch.sight.facts is not None
    agent.watch.sight = replace(agent.watch.sight, facts_at=EPOCH + timedelta(seconds=5))
    second = agent.picture.topology()
    assert second is not first
    agent.picture.note_change()
    assert agent.picture.topology() is not second


def test_a_lease_stands_in_the_topology_until_it_has_run_out(tmp_path: Path) -> None:
    boot = ManualBoot()
    agent = build_agent(tmp_path, boot)
    assert list_leased(agent) == []
    lease_first(agent)
    assert list_leased(agent) == [0]
    boot.now_s += 61.0
    assert list_leased(agent) == []


def test_of_a_simulated_host_only_leases_change_the_picture(tmp_path: Path) -> None:
    agent = Agent(
        Settings(simulate="h100:8", state_dir=tmp_path),
        build_closed_store(tmp_path),
        clock=ManualClock(),
        boot=ManualBoot(),
        environ={},
    )
    before = agent.picture.key()
    agent.picture.note_change()
    assert agent.picture.key() == before
    lease_first(agent)
    assert agent.picture.key() != before
