from __future__ import annotations

import platform
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright_agent
from meshwright.topology.model import Topology
from meshwright.wire.devices import Devices
from meshwright_agent.host.snapshot import JaxReport
from tests.fakes.machines import JAX_AT, NAMES, NOW, plant_machine, show


@pytest.mark.parametrize("with_jax", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_machine_is_a_topology_that_survives_json(name: str, with_jax: bool, tmp_path: Path) -> None:
    seen = plant_machine(name, tmp_path).view(with_jax=with_jax)
    assert Devices.model_validate_json(seen.model_dump_json()) == seen
    topology = Topology.of(seen)
    assert topology.order == tuple(range(len(seen.devices)))
    assert {device.host for device in seen.devices} == {seen.host.name}
    assert seen.granules[0].device_count == len(seen.devices)


def test_nothing_seen_yet_is_a_host_with_one_declared_cpu_device_and_a_warning() -> None:
    seen = show(None)
    assert (seen.host.name, seen.platform, len(seen.devices)) == (platform.node() or "localhost", "cpu", 1)
    assert (seen.cpu.cores, seen.host.boot_id, seen.numa_nodes) == (None, None, ())
    assert [notice.code for notice in seen.warnings] == ["facts_missing"]
    assert seen.software.agent == meshwright_agent.__version__


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_ages_count_from_each_observation_and_are_never_negative(read_s: float, jax_s: float) -> None:
    jax = {"platform": "cpu", "devices": [{"id": 0, "kind": "cpu", "platform": "cpu"}]}
    at = {"facts_at": NOW + timedelta(seconds=read_s)}
    seen = show(None, JaxReport(jax, NOW - timedelta(seconds=jax_s)), **at)
    assert seen.devices[0].age_s == pytest.approx(jax_s, abs=1e-5)
    assert seen.host.age_s == 0


def test_a_platform_of_jax_that_is_none_of_ours_is_left_out_with_a_warning(tmp_path: Path) -> None:
    jax = {"platform": "METAL", "devices": [{"id": 0, "kind": "M", "platform": "METAL"}]}
    facts = plant_machine("cpu-vm", tmp_path).read()
    seen = show(facts, JaxReport(jax, JAX_AT))
    assert (seen.platform, seen.devices[0].jax_id, seen.software.jax) == ("cpu", None, None)
    assert [notice.code for notice in seen.warnings] == ["jax_platform_unknown"]
