"""What an order costs: by its cuts and by every device alike; links, crossing, names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planning.device_order import count_links, score_cut, score_order, search_layout
from meshwright.planning.granules import Weights, interleave_granules
from meshwright.planning.torus import cut_torus, list_grid
from meshwright.topology.chips import find_chip
from meshwright.topology.links import PCIE_4_X16_BYTES_PER_S, price_crossing, price_hop, price_link
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.topology.torus import Dimension, read_grid
from tests.fakes.topologies import build_dgx1, build_tpu, change_device, weigh_positions

Sizes = tuple[int, ...]

HOP = PCIE_4_X16_BYTES_PER_S / 45e9
"""One ICI link of a v5e or v4, one way."""


def build_slice(shape: Sizes, wrap: tuple[bool, ...], cores: int = 1) -> Topology:
    """A slice that says its shape and wrap, and lists no link."""
    made = build_tpu(shape, kind="TPU7x" if cores > 1 else "TPU v4", cores=cores, with_links=False)
    granule = made.granules[0].model_copy(update={"shape": shape, "wrap": wrap})
    return Topology(made.devices, (), (granule,))


# ---- one score, however it is found ---------------------------------------------------------------------------------


@st.composite
def draw_cases(draw: st.DrawFn) -> tuple[Topology, Sizes, Weights]:
    """A whole slice with any wrap, a mesh whose sizes are made of its prime factors, and any weights."""
    lengths = draw(st.sampled_from([(2,), (4,), (6,), (2, 2), (2, 3), (4, 4), (3, 6), (8, 4), (2, 2, 2), (4, 2, 5)]))
    lengths = tuple(draw(st.permutations(lengths)))
    shape = (*lengths, 1, 1)[:3]
    topology = build_slice(shape, tuple(draw(st.booleans()) for _ in shape), draw(st.sampled_from([1, 2])))
    sizes = [1] * draw(st.integers(1, 3))
    for prime in list_primes(len(topology.devices)):
        sizes[draw(st.integers(0, len(sizes) - 1))] *= prime
    weights = tuple(draw(st.sampled_from([0.0, 0.25, 0.3, 1.0])) for _ in sizes)
    return topology, tuple(sizes), Weights(weights, weights)


def list_primes(number: int) -> list[int]:
    prime = next((p for p in range(2, number + 1) if number % p == 0), None)
    return [] if prime is None else [prime, *list_primes(number // prime)]


@given(draw_cases())
@settings(max_examples=150)
def test_a_cut_tells_what_every_device_tells(case: tuple[Topology, Sizes, Weights]) -> None:
    topology, sizes, weights = case
    grid: Any = read_grid(topology, topology.order)
    cut: Any = cut_torus(sizes, grid.dimensions, weights.inside)
    order = list_grid(cut, grid)
    told, measured = score_cut(cut, topology, order[0], weights), score_order(order, sizes, weights, topology)
    assert told.key == pytest.approx(measured.key)
    for one, other in zip(told.axes, measured.axes, strict=True):
        assert (one.step, one.colors, one.granules) == (other.step, other.colors, other.granules)
        assert (one.cost, one.links) == pytest.approx((other.cost, other.links))


SLICES = [build_target(name) for name in ("v5e:8x8", "v5p:4x4x8", "v5p:4x4x12", "tpu7x:4x4x4", "v4:4x4x8_twisted")]


@given(st.sampled_from(SLICES), st.data())
@settings(max_examples=60)
def test_a_box_inside_a_slice_is_scored_alike_by_cuts_and_every_device(topology: Topology, data: st.DataObject) -> None:
    shape = topology.by_ordinal[0].shape or ()
    low = [data.draw(st.integers(0, size - 1)) for size in shape]
    high = [data.draw(st.integers(start + 1, size)) for start, size in zip(low, shape, strict=True)]
    chosen = [
        index
        for index in topology.order
        if all(a <= c < b for a, c, b in zip(low, topology.devices[index].coords or (), high, strict=True))
    ]
    sizes = [1, 1]
    for prime in list_primes(len(chosen)):
        sizes[data.draw(st.integers(0, 1))] *= prime
    weights = weigh_positions(sizes)
    found: Any = search_layout(tuple(sizes), weights, topology, chosen)
    assert found.score.key == pytest.approx(score_order(found.order, sizes, weights, topology).key)


@given(st.permutations(range(8)), st.sampled_from([build_target("v5e:2x4"), build_dgx1(), build_target("2*h100:4")]))
def test_what_devices_are_called_changes_no_score(names: list[int], topology: Topology) -> None:
    """The same machine, its devices listed in another order, and the same mesh."""
    at = {old: new for new, old in enumerate(names)}
    links = tuple(link.model_copy(update={"a": at[link.a], "b": at[link.b]}) for link in topology.links)
    turned = Topology(tuple(topology.devices[old] for old in names), links, topology.granules)
    sizes, weights = (2, 4), weigh_positions((2, 4))
    order = (3, 1, 7, 0, 2, 6, 4, 5)
    one = score_order(order, sizes, weights, topology)
    other = score_order([at[index] for index in order], sizes, weights, turned)
    assert other.key == pytest.approx(one.key)
    assert [axis.granules for axis in other.axes] == [axis.granules for axis in one.axes]


def test_the_worst_line_is_what_an_axis_costs() -> None:
    topology = build_target("v5p:4x4x4")
    planes = score_order(topology.order, (4, 16), weigh_positions((4, 16)), topology)
    assert [axis.colors for axis in planes.axes] == [2, 4]
    mixed = list(topology.order)
    mixed[15], mixed[16] = mixed[16], mixed[15]
    worse = score_order(mixed, (4, 16), weigh_positions((4, 16)), topology)
    assert worse.axes[1].colors == 1, "two planes of four are broken, and all go as the slowest"
    assert worse.axes[1].step == 4
    assert worse.key > planes.key


# ---- links ----------------------------------------------------------------------------------------------------------


def test_only_the_shorter_way_round_a_ring_counts() -> None:
    assert count_links([(0,), (1,), (6,)], (Dimension(8, is_ring=True),)) == 1 / 2
    assert count_links([(0,), (4,)], (Dimension(8, is_ring=True),)) == 1 / 4 + 1 / 4


def test_a_group_without_straight_neighbors_shares_the_links_of_the_way_between() -> None:
    diagonal = [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert count_links(diagonal, (Dimension(4), Dimension(4))) == 0
    topology = build_slice((4, 4, 1), (False,) * 3)
    order = [x + 4 * ((x + y) % 4) for y in range(4) for x in range(4)]
    inner = score_order(order, (4, 4), weigh_positions((4, 4)), topology).axes[1]
    assert (inner.links, inner.step) == (0, 4)
    assert inner.cost == pytest.approx(price_hop(topology, 0) * (4 + 4))


def test_devices_without_coordinates_are_priced_by_their_links() -> None:
    topology = change_device(build_target("v5e:2x4"), 3, coords=None)
    inner = score_order(topology.order, (2, 4), weigh_positions((2, 4)), topology).axes[1]
    assert (inner.step, inner.links, inner.colors) == (None, None, None)
    assert inner.cost > 2 * HOP


# ---- between granules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["2*v5e:2x4", "4*v5e:2x2", "2*h100:8", "4*h100:4", "3*tpu7x:2x2x1"])
@pytest.mark.parametrize("inner_axis", [1, 2, 4])
def test_what_crosses_is_what_the_split_says(target: str, inner_axis: int) -> None:
    topology = build_target(target)
    groups = topology.group(topology.order)
    sizes = (len(topology.devices) // inner_axis, inner_axis)
    weights = Weights((1.0, 1.0), (0.3, 1.0))
    count = len(groups)
    for split in [(part, count // part) for part in range(1, count + 1) if count % part == 0]:
        if any(size % part for size, part in zip(sizes, split, strict=True)):
            continue
        inside = tuple(size // part for size, part in zip(sizes, split, strict=True))
        found = score_order(interleave_granules(split, inside, groups), sizes, weights, topology)
        shares = [weight * (part - 1) / size for size, part, weight in zip(sizes, split, weights.crossing, strict=True)]
        assert found.crossing == pytest.approx(price_crossing(topology, 0) * sum(shares))
        assert tuple(axis.granules for axis in found.axes) == split


@pytest.mark.parametrize(("sizes", "shares"), [
    ((16,), [1 / 2 / 8]), ((2, 8), [1 / 2, 0]), ((8, 2), [1 / 2 / 4, 0]), ((1, 16), [0, 1 / 2 / 8]),
])  # fmt: skip
def test_a_group_sends_its_share_over_the_devices_that_it_has_in_each_host(sizes: Sizes, shares: list[float]) -> None:
    topology = build_target("2*h100:8")
    found = score_order(topology.order, sizes, weigh_positions(sizes), topology)
    assert [axis.crossing for axis in found.axes] == pytest.approx([0.63 * share for share in shares])
    assert price_crossing(topology, 0) == pytest.approx(PCIE_4_X16_BYTES_PER_S / 50e9)
    two_cores = build_target("2*tpu7x:2x2x1")  # a device has half of a chip's network
    chip: Any = find_chip("tpu7x")
    assert price_crossing(two_cores, 0) == pytest.approx(2 * PCIE_4_X16_BYTES_PER_S / chip.scaleout_bytes_per_s)


@pytest.mark.parametrize(("target", "granules"), [("gb200:72", 1), ("18*gb200:4", 1), ("36*gb200:4", 2)])
def test_within_an_nvlink_domain_nothing_crosses(target: str, granules: int) -> None:
    topology = build_target(target)
    sizes = (len(topology.devices),)
    found = score_order(topology.order, sizes, weigh_positions(sizes), topology)
    assert found.axes[0].granules == granules
    assert (found.crossing > 0) == (granules > 1)
    assert found.cost == pytest.approx(2 * price_link(topology.links[0])), "hosts of a domain are as near as GPUs"
