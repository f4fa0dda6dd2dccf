from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.topology.model import Topology
from meshwright.wire.devices import Devices
from meshwright_agent.host.snapshot import JaxReport
from tests.fakes.machines import JAX_AT, plant_machine, show


def declare(count: int | None = None) -> Devices:
    return show(None, cpu_devices=count)


@settings(max_examples=25)
@given(st.integers(1, 64))
def test_as_many_devices_as_configured_each_once_and_all_pairs_joined(count: int) -> None:
    seen = declare(count)
    assert [(d.local_index, d.position, d.granule) for d in seen.devices] == [(i, i, 0) for i in range(count)]
    assert len({(link.a, link.b) for link in seen.links}) == count * (count - 1) // 2
    assert all(link.kind == "HOST" and link.a < link.b for link in seen.links)
    assert Topology.of(seen).is_uniform


@pytest.mark.parametrize("count", [65, 1024])
def test_links_of_very_many_devices_are_left_out_and_that_is_said(count: int) -> None:
    seen = declare(count)
    assert (len(seen.devices), seen.links) == (count, ())
    assert "links_left_out" in [notice.code for notice in seen.warnings]


def test_devices_before_a_worker_has_looked_are_declared_never_live() -> None:
    seen = declare(4)
    assert {(d.basis, d.jax_id, d.age_s) for d in seen.devices} == {("declared", None, 0.0)}
    assert len(declare().devices) == 1


@pytest.mark.parametrize(("count", "virtual"), [(None, False), (1, True), (2, True)])
def test_devices_are_virtual_when_several_or_asked_for(count: int | None, virtual: bool) -> None:
    assert {device.virtual for device in declare(count).devices} == {virtual}


def test_a_view_from_an_earlier_worker_is_cached(tmp_path: Path) -> None:
    machine = plant_machine("cpu-vm", tmp_path)
    assert machine.jax is not None
    seen = show(machine.read(), JaxReport(machine.jax, JAX_AT, 3))
    assert {(d.basis, d.jax_id is not None) for d in seen.devices} == {("cached", True)}
    assert seen.software.basis == "cached"


def test_a_memory_limit_of_the_container_is_what_is_shared(tmp_path: Path) -> None:
    facts = plant_machine("cpu-vm", tmp_path).read()
    facts = replace(facts, cpu=replace(facts.cpu, memory_limit_bytes=4096))
    (device,) = show(facts).devices
    assert device.memory is not None
    assert (device.memory.capacity_bytes, device.memory.basis) == (4096, "passive")


def test_devices_of_other_hosts_in_jaxs_view_are_not_this_hosts(tmp_path: Path) -> None:
    machine = plant_machine("cpu-vm", tmp_path)
    assert machine.jax is not None
    devices = [dict(d, process_index=i // 4) for i, d in enumerate(machine.jax["devices"])]
    seen = show(machine.read(), JaxReport({**machine.jax, "process_index": 1, "devices": devices}, JAX_AT))
    assert [d.jax_id for d in seen.devices] == [4, 5, 6, 7]
