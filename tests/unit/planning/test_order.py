"""One order for plans and for meshes made in the trainer."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planning.device_order import score_order, search_layout
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from tests.fakes.topologies import build_cpu, build_dgx1, build_tpu, drop_devices, join_topologies, weigh_positions


@pytest.mark.parametrize(("topology", "sizes", "method"), [
    (build_tpu((4, 4, 1)), (4, 4), "torus"), (build_tpu((2, 4, 1)), (2, 4), "torus"), (build_dgx1(), (2, 4), "exact"),
    (build_cpu(8), (2, 4), "uniform"), (drop_devices(build_tpu((4, 4, 1)), {5}), (3, 5), "plain"),
    (drop_devices(build_target("v5e:8x8"), {5, 6, 12}), (61,), "plain"),
    (drop_devices(build_dgx1(), {0}), (7,), "exact"), (build_target("gb200:72"), (9, 8), "uniform"),
])  # fmt: skip
def test_the_method_follows_from_the_machine(topology: Topology, sizes: tuple[int, ...], method: str) -> None:
    found = search_layout(sizes, weigh_positions(sizes), topology, topology.order)
    assert found.method == method
    assert sorted(found.order) == list(range(len(topology.devices)))


@given(st.sets(st.integers(0, 31), max_size=9), st.integers(1, 4))
@settings(max_examples=30)
def test_a_mesh_is_found_whatever_chips_are_missing(holes: set[int], width: int) -> None:
    topology = drop_devices(build_target("v5e:4x8"), holes)
    count = len(topology.devices) // width * width
    sizes = (width, count // width)
    weights, plain = weigh_positions(sizes), topology.order[:count]
    found = search_layout(sizes, weights, topology, plain)
    assert sorted(found.order) == sorted(plain)


def test_on_a_small_slice_nothing_is_better_than_what_is_found() -> None:
    topology = build_target("v5e:2x2")
    for sizes in ((4,), (2, 2), (4, 1)):
        weights = weigh_positions(sizes)
        found: Any = search_layout(sizes, weights, topology, topology.order)
        best = min(score_order(order, sizes, weights, topology).key for order in permutations(range(4)))
        assert found.score.key == pytest.approx(best)


def test_uneven_granules_are_joined_in_blocks_of_one_size() -> None:
    topology = join_topologies(build_target("v5e:4x4"), build_target("v5e:2x4"))
    found: Any = search_layout((3, 8), weigh_positions((3, 8)), topology, topology.order)
    assert [axis.granules for axis in found.score.axes] == [2, 1], "no inner line leaves its slice"
    assert sorted(found.order) == list(range(24))
