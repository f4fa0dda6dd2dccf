"""Meshes on slices with failed chips: tiles side by side, rows and planes left out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planning.importance import weigh_axes
from meshwright.planning.mesh import plan_mesh
from meshwright.planning.tiles import list_tilings
from meshwright.topology.assemble import build_target
from meshwright.wire.mesh import Plan, PlanRequest
from tests.fakes.topologies import change_device, drop_devices


def plan_without(target: str, hole: int, mesh: str) -> Plan:
    topology = drop_devices(build_target(target), {hole})
    return plan_mesh(PlanRequest(mesh=mesh, allow_unused=True), topology).plans[0]


CASES = [
    ("v5e:16x16", "dp:60,tp:4", (2, 2, 1), 2),
    ("v5e:8x8", "dp:7,tp:8", (8, 1, 1), 2),
    ("v4:4x4x4", "dp:15,tp:4", (4, 1, 1), 2),
    ("tpu7x:4x4x4", "dp:15,fsdp:2,tp:4", (4, 1, 1), 2),
]
"""A slice with one chip less; the shape of the tensor axis's groups, and the longest step of any axis."""


@pytest.mark.parametrize(("target", "mesh", "shape", "hops"), CASES)
def test_one_failed_chip_costs_a_row_and_not_the_order(
    target: str, mesh: str, shape: tuple[int, ...], hops: int
) -> None:
    made = plan_without(target, 21, mesh)
    assert made.score is not None
    assert made.score.method == "tiles"
    assert made.score.hops_max == hops
    assert made.axes[-1].group_shape == shape
    assert made.axes[-1].neighbour_hops_max == 1
    assert made.score.cost is not None
    assert made.score.plain_cost is not None
    assert made.score.cost <= made.score.plain_cost


def test_a_column_is_left_out_where_no_tile_fits() -> None:
    made = plan_without("v5e:8x8", 21, "dp:8,tp:7")
    assert made.score is not None
    assert (made.score.method, made.score.hops_max) == ("tiles", 2)
    assert [axis.group_shape for axis in made.axes] == [(1, 8, 1), (7, 1, 1)], "seven of eight columns"


@given(
    holes=st.sets(st.integers(0, 31), min_size=1, max_size=6),
    sizes=st.sampled_from([(3, 4), (5, 4), (2, 3, 2), (6, 4), (12,), (2, 2, 2, 2), (24, 1), (1, 20)]),
    names=st.sampled_from(["abcd", ("tp", "dp", "pp", "sp")]),
)
@settings(deadline=None, max_examples=40)
def test_every_order_has_each_device_once_and_no_hole(holes: set[int], sizes: tuple[int, ...], names: str) -> None:
    topology = drop_devices(build_target("v5e:4x8"), holes)
    for order in list_tilings(sizes, weigh_axes(names[: len(sizes)], sizes), topology, topology.order):
        assert len(order) == math.prod(sizes) == len(set(order))
        assert set(order) <= set(topology.order)


def test_chips_of_which_one_core_is_gone_are_left_out_with_both() -> None:
    topology = drop_devices(build_target("tpu7x:2x2x2"), {3})
    whole = {device.coords for device in topology.devices} - {build_target("tpu7x:2x2x2").devices[3].coords}
    orders = list(list_tilings((3, 4), weigh_axes("ab", (3, 4)), topology, topology.order))
    assert orders
    assert all({topology.devices[index].coords for index in order} <= whole for order in orders)
    assert not list(list_tilings((3,), weigh_axes("a", (3,)), topology, topology.order)), (
        "three devices are no whole chips"
    )


def test_devices_without_coordinates_have_no_tiles() -> None:
    topology = build_target("v5e:2x2")
    for index in range(4):
        topology = change_device(topology, index, coords=None)
    assert not list(list_tilings((2,), weigh_axes("a", (2,)), topology, topology.order))
