from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.device_order import Costs, search_subset
from meshwright.planning.device_order import price_order as price_weighted
from meshwright.planning.device_order import search_order as search_weighted
from meshwright.planning.granules import weigh_positions
from meshwright.topology.links import price_pairs
from tests.fakes.topologies import build_dgx1, build_dgx_h100, build_pcie, build_tpu

SHAPES = {
    2: [(2,), (1, 2)],
    3: [(3,)],
    4: [(4,), (2, 2), (4, 1)],
    6: [(6,), (2, 3), (3, 2)],
    8: [(8,), (2, 4), (4, 2), (2, 2, 2)],
}


def search_order(sizes: tuple[int, ...], costs: Costs) -> tuple[int, ...]:
    return search_weighted(sizes, costs, weigh_positions(sizes).inside)


def price_order(order: Sequence[int], sizes: tuple[int, ...], costs: Costs) -> float:
    return price_weighted(order, sizes, costs, weigh_positions(sizes).inside)


@st.composite
def cost_tables(draw: st.DrawFn, counts: tuple[int, ...] = (2, 3, 4, 6)) -> Costs:
    count = draw(st.sampled_from(counts))
    levels = draw(st.lists(st.sampled_from([0.07, 0.5, 1.0, 1.5, 5.0]), min_size=1, max_size=3))
    rows = [[0.0] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            rows[a][b] = rows[b][a] = draw(st.sampled_from(levels))
    return tuple(map(tuple, rows))


def relabel(costs: Costs, names: list[int]) -> Costs:
    return tuple(tuple(costs[a][b] for b in names) for a in names)


@given(cost_tables(), st.data())
def test_the_search_finds_what_trying_every_order_finds(costs: Costs, data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from(SHAPES[len(costs)]))
    found = search_order(sizes, costs)
    assert sorted(found) == list(range(len(costs)))
    cheapest = min(price_order(order, sizes, costs) for order in permutations(range(len(costs))))
    assert price_order(found, sizes, costs) == pytest.approx(cheapest)


@given(cost_tables(counts=(4, 6)), st.data())
def test_renaming_devices_does_not_change_the_cost(costs: Costs, data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from(SHAPES[len(costs)]))
    turned = relabel(costs, data.draw(st.permutations(range(len(costs)))))
    one, other = (price_order(search_order(sizes, each), sizes, each) for each in (costs, turned))
    assert one == pytest.approx(other)


@given(cost_tables(counts=(2, 4, 6, 8)), st.data())
def test_the_plain_order_is_kept_unless_another_one_costs_less(costs: Costs, data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from(SHAPES[len(costs)]))
    found, plain = search_order(sizes, costs), tuple(range(len(costs)))
    cost, plain_cost = (price_order(order, sizes, costs) for order in (found, plain))
    assert cost <= plain_cost + 1e-9
    assert found == plain or cost < plain_cost - 1e-9


def test_where_all_ways_are_alike_the_plain_order_is_taken_unsearched() -> None:
    topology = build_dgx_h100()
    assert search_order((2, 4), price_pairs(topology, topology.order)) == tuple(range(8))


def test_the_inner_axis_goes_over_the_switch() -> None:
    topology = build_pcie(pairs=((0, 2), (1, 3)))
    assert search_order((2, 2), price_pairs(topology, topology.order)) == (0, 2, 1, 3)


def test_eight_chips_in_two_rows_become_a_ring_of_single_hops() -> None:
    topology = build_tpu((2, 4))
    order = search_order((8,), price_pairs(topology, topology.order))
    hops = [topology.hops(a, b) for a, b in zip(order, order[1:] + order[:1], strict=True)]
    assert hops == [1] * 8


def test_an_inner_axis_of_four_on_two_rows_is_a_square_and_not_a_line() -> None:
    topology = build_tpu((2, 4))
    order = search_order((2, 4), price_pairs(topology, topology.order))
    for group in (order[:4], order[4:]):
        hops = [topology.hops(a, b) for a, b in zip(group, group[1:] + group[:1], strict=True)]
        assert hops == [1] * 4


def test_eight_v100_make_a_ring_over_nvlink_only_which_the_plain_order_does_not() -> None:
    topology = build_dgx1()
    costs = price_pairs(topology, topology.order)
    found = search_order((8,), costs)
    kinds = {topology.link(a, b).kind for a, b in zip(found, found[1:] + found[:1], strict=True)}  # type: ignore[union-attr]
    assert kinds <= {"NV1", "NV2"}
    assert price_order(range(8), (8,), costs) > price_order(found, (8,), costs)


@pytest.mark.parametrize("sizes", [(8,), (2, 4), (4, 2), (2, 2, 2)])
def test_eight_devices_are_ordered_exactly_within_a_few_milliseconds(sizes: tuple[int, ...]) -> None:
    for topology in (
        build_dgx1(),
        build_tpu((2, 4)),
        build_tpu((2, 2, 2)),
        build_pcie(((0, 1), (2, 3)), count=8),
    ):
        costs = price_pairs(topology, topology.order)
        duration_s = []
        for _ in range(3):
            search_weighted.cache_clear()
            started = time.process_time()
            search_order(sizes, costs)
            duration_s.append(time.process_time() - started)
        assert min(duration_s) < 0.025, "the budget is 5 ms on an idle machine; five times that on a busy one"


def test_chosen_devices_are_neighbors() -> None:
    topology = build_tpu((2, 4))
    costs = price_pairs(topology, topology.order)
    assert search_subset(4, costs) == (0, 1, 2, 3)
    assert search_subset(8, costs) == tuple(range(8))


@given(cost_tables(counts=(3, 4, 6, 8)), st.data())
def test_a_chosen_subset_holds_each_device_once_and_in_plain_order(costs: Costs, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(costs)))
    chosen = search_subset(count, costs)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == count
