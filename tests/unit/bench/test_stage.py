"""Which jax.Device a local index is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.topology.identity import VisibleGpu
from meshwright.wire.bench import BenchRequest
from meshwright_agent.bench.scope import build_scope
from meshwright_agent.children.bench.measure import follow_plan, order_devices
from tests.fakes.jax_devices import build_tpus


@dataclass(frozen=True)
class FakeDevice:
    """The members of a `jax.Device` that tell which one it is."""

    platform: str
    id: int = 0
    coords: tuple[int, ...] | None = None
    core_on_chip: int | None = None
    local_hardware_id: int | None = None


def test_the_fake_has_members_of_a_real_device_only() -> None:
    real = jax.local_devices()[0]
    assert all(hasattr(real, name) for name in ("platform", "id", "local_hardware_id"))


@given(st.permutations([(x, y, 0, core) for x in range(2) for y in range(2) for core in range(2)]))
def test_tpu_devices_are_ordered_by_z_y_x_then_core(places: list[tuple[int, int, int, int]]) -> None:
    devices = [FakeDevice("tpu", coords=place[:3], core_on_chip=place[3]) for place in places]
    found, notices = order_devices(devices, None)
    order = [(device.coords[1], device.coords[0], device.core_on_chip) for device in found.values()]
    assert order == sorted(order)
    assert (list(found), notices) == (list(range(8)), ())


def test_devices_that_nobody_named_stand_in_the_order_that_a_trainers_mesh_has() -> None:
    devices = dict(enumerate(build_tpus(2, 4)))
    scope = build_scope(BenchRequest(mesh="x:8"), platform="tpu", indices=tuple(devices))
    planned = follow_plan(scope, devices)
    assert planned.devices == (0, 1, 3, 5, 7, 6, 4, 2), "round the border of the torus, each step to a neighbor"
    assert replace(planned, devices=scope.devices) == scope
    on_cpu = dict(enumerate(jax.local_devices()))
    assert follow_plan(scope, on_cpu) == scope


def test_gpus_have_their_place_in_pci_order_also_when_some_are_hidden() -> None:
    visible = [VisibleGpu("GPU-c", 3), VisibleGpu("GPU-a", 1)]
    devices = [FakeDevice("cuda", id=i, local_hardware_id=i) for i in range(2)]
    assert order_devices(devices, visible) == ({1: devices[1], 3: devices[0]}, ())


UNKNOWN = [None, [], [VisibleGpu("MIG-a", None), VisibleGpu("MIG-b", None)], [VisibleGpu("GPU-a", 0)]]


@pytest.mark.parametrize("visible", UNKNOWN)
def test_gpus_that_cannot_be_told_apart_are_in_jaxs_order_and_that_is_said(visible: list[VisibleGpu] | None) -> None:
    devices = [FakeDevice("cuda", id=i, local_hardware_id=i) for i in range(2)]
    found, [notice] = order_devices(devices, visible)
    assert found == dict(enumerate(devices))
    assert notice.code == "device_order_assumed"
