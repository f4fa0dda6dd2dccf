"""One order for plans and for meshes made in the trainer."""

from __future__ import annotations

import pytest

from meshwright.planning.mesh import plan_mesh
from meshwright.planning.order import search_assignment, search_device_order
from meshwright.topology.model import Topology
from meshwright.wire.mesh import PlanRequest
from tests.fakes.topologies import build_cpu, build_pcie, build_tpu, change_device

MACHINES = [
    (build_tpu((2, 4, 1)), (2, 4)),
    (build_tpu((2, 2, 1), kind="TPU7x", cores=2), (4, 2)),
    (build_tpu((4, 4, 1)), (2, 8)),
    (build_tpu((4, 4, 4), kind="TPU v5", wrap=True), (8, 8)),
    (build_pcie(), (2, 2)),
    (build_cpu(8), (2, 4)),
]


@pytest.mark.parametrize(("topology", "sizes"), MACHINES)
def test_a_plan_has_the_order_that_create_mesh_takes(topology: Topology, sizes: tuple[int, ...]) -> None:
    order = search_device_order(sizes, topology, topology.order)
    mesh = list(zip("ab", sizes, strict=True))
    plan = plan_mesh(PlanRequest(mesh=mesh), topology).plans[0]
    assert plan.devices is not None
    assert order == tuple(ref.local_index for ref in plan.devices)
    assert order == tuple(topology.order[rank] for rank in search_assignment(sizes, topology, topology.order).order)


def test_a_torus_is_cut_where_more_devices_stand_than_an_exact_search_takes() -> None:
    assert search_assignment((4, 4), build_tpu((4, 4, 1)), range(16)).method == "torus"
    assert search_assignment((2, 4), build_tpu((2, 4, 1)), range(8)).method == "exact"


def test_a_torus_with_a_hole_is_searched_like_any_other_machine() -> None:
    topology = build_tpu((4, 4, 1))
    found = search_assignment((3, 5), topology, range(15))
    assert found.method == "beam"
    assert sorted(found.order) == list(range(15))


def test_without_splitting_there_may_be_no_order_and_uniform_devices_stay_as_they_are() -> None:
    topology = build_tpu((4, 4, 1), with_links=False)
    assert search_device_order((2, 8), topology, range(16), split=False) is None
    assert search_device_order((4, 4), topology, range(16), split=False) is not None
    assert search_device_order((2, 2), build_cpu(4), [3, 1, 0, 2]) == (3, 1, 0, 2)
    named = change_device(topology, 0, coords=None)
    assert sorted(search_device_order((16,), named, range(16)) or ()) == list(range(16))
