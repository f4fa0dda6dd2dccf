"""Choosing k of n devices that are close together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planning.device_selection import pack_devices, sort_plain
from meshwright.topology.links import price_pairs
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from tests.fakes.topologies import build_cpu, build_dgx1, drop_devices, join_topologies

MACHINES = {
    "v5e": build_target("v5e:4x4"), "7x": build_target("tpu7x:2x2x2"), "slices": build_target("3*v5e:2x4"),
    "v5p": build_target("v5p:2x4x4"), "hosts": build_target("3*h100:4"), "domains": build_target("20*gb200:2"),
    "dgx1": build_dgx1(), "cpu": build_cpu(8),
    "uneven": join_topologies(build_target("v5e:2x2"), build_target("v5e:4x4"), build_target("v5e:2x4")),
}  # fmt: skip


Case = tuple[Topology, tuple[int, ...], int]


@st.composite
def draw_pools(draw: st.DrawFn) -> Case:
    """A machine, the devices of it that are free, and how many of these to take."""
    topology = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    taken = draw(st.sets(st.sampled_from(topology.order), max_size=len(topology.order) - 1))
    pool = tuple(index for index in topology.order if index not in taken)
    return topology, pool, draw(st.integers(1, len(pool)))


def count_by(topology: Topology, chosen: Sequence[int], *, host: bool = False) -> Counter[str | int]:
    """How many of the devices each fast domain, or each host, gives."""
    granules = [topology.places[index][0] for index in chosen]
    return Counter(granules if host else [topology.domains[granule] for granule in granules])


@given(draw_pools())
def test_as_many_as_were_asked_for_are_taken_out_of_the_pool_in_plain_order(case: Case) -> None:
    topology, pool, count = case
    chosen = pack_devices(topology, pool, count)
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= set(pool)
    assert chosen == sort_plain(topology, chosen)


@given(draw_pools())
def test_packed_devices_are_in_no_more_domains_nor_hosts_than_need_be(case: Case) -> None:
    topology, pool, count = case
    chosen = pack_devices(topology, pool, count)
    free, used = count_by(topology, pool), count_by(topology, chosen)
    assert len(used) == count_needed(free, count)
    for domain, share in used.items():
        hosts = count_by(topology, [i for i in pool if topology.domains[topology.places[i][0]] == domain], host=True)
        ours = count_by(topology, [i for i in chosen if topology.domains[topology.places[i][0]] == domain], host=True)
        assert len(ours) == count_needed(hosts, share)


def count_needed(free: Counter[str | int], count: int) -> int:
    needed = 0
    for size in sorted(free.values(), reverse=True):
        if count <= 0:
            break
        count, needed = count - size, needed + 1
    return needed


# ---- domains and hosts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "shares"), [
    (3, {0: 3}), (4, {0: 4}), (5, {2: 5}), (8, {2: 8}), (9, {1: 9}), (16, {1: 16}), (18, {0: 2, 1: 16}),
    (20, {0: 4, 1: 16}), (21, {1: 16, 2: 5}), (25, {0: 1, 1: 16, 2: 8}),
])  # fmt: skip
def test_the_smallest_slice_that_is_enough_is_taken_else_the_largest_first(count: int, shares: dict[int, int]) -> None:
    """Slices of 4, 16 and 8 chips."""
    topology = MACHINES["uneven"]
    assert count_by(topology, pack_devices(topology, topology.order, count)) == shares


# ---- inside a host --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4])
def test_no_set_of_a_hybrid_cube_mesh_is_nearer_than_the_packed_one(count: int) -> None:
    topology = build_dgx1()
    costs = price_pairs(topology, topology.order)

    def price(chosen: Sequence[int]) -> float:
        return sum(costs[a][b] for a, b in combinations(chosen, 2))

    nearest = min(price(chosen) for chosen in combinations(topology.order, count))
    assert price(pack_devices(topology, topology.order, count)) == pytest.approx(nearest)


# ---- boxes in a torus -----------------------------------------------------------------------------------------------


def measure_box(topology: Topology, chosen: Sequence[int]) -> tuple[int, ...]:
    """On how many places of each dimension devices lie."""
    coords = [topology.devices[index].coords or () for index in chosen]
    return tuple(len(set(values)) for values in zip(*coords, strict=True))


@pytest.mark.parametrize(("target", "count", "shape"), [
    ("v5e:8x8", 4, (2, 2, 1)), ("v5e:8x8", 8, (4, 2, 1)), ("v5e:8x8", 16, (4, 4, 1)), ("v5e:8x8", 6, (3, 2, 1)),
    ("v5e:8x8", 7, (7, 1, 1)), ("v5p:2x4x4", 8, (2, 2, 2)), ("v5p:4x4x8", 8, (4, 2, 1)), ("v5p:4x4x8", 64, (4, 4, 4)),
    ("v5p:8x8x8", 27, (3, 3, 3)), ("tpu7x:2x4x4", 16, (2, 2, 2)), ("v5p:16x20x28", 256, (16, 4, 4)),
])  # fmt: skip
def test_chips_are_taken_as_a_box_with_short_ways(target: str, count: int, shape: tuple[int, ...]) -> None:
    """A whole ring of four is as good as a square, and one of 16 better than two lines of 8."""
    topology = build_target(target)
    assert sorted(measure_box(topology, pack_devices(topology, topology.order, count))) == sorted(shape)


def test_a_box_stands_beside_failed_chips_and_where_the_rest_can_be_filled_too() -> None:
    topology = drop_devices(build_target("v5e:4x4"), {0})
    chosen = pack_devices(topology, topology.order, 4)
    corner = {(2, 0, 0), (3, 0, 0), (2, 1, 0), (3, 1, 0)}
    assert {topology.devices[index].coords for index in chosen} == corner, "and not one chip further left"
    for _ in range(2):
        rest = [index for index in topology.order if index not in chosen]
        again = pack_devices(topology, rest, 4)
        assert measure_box(topology, again) == (2, 2, 1)
        chosen += again


def list_boxes(topology: Topology, count: int) -> Iterator[tuple[tuple[int, ...], set[int]]]:
    """Every box of so many chips (devices of one core each) in a slice: its shape, its devices."""
    at = {device.coords: index for index, device in enumerate(topology.devices)}
    sizes = [max(column) + 1 for column in zip(*(coords for coords in at if coords), strict=True)]
    for shape in product(*(range(1, size + 1) for size in sizes)):
        if shape[0] * shape[1] * shape[2] == count:
            for corner in product(*(range(size - part + 1) for size, part in zip(sizes, shape, strict=True))):
                places = product(*(range(low, low + part) for low, part in zip(corner, shape, strict=True)))
                yield shape, {at[place] for place in places}


@given(st.data())
@settings(max_examples=60)
def test_a_free_box_is_found_wherever_there_is_one(data: st.DataObject) -> None:
    """No wrap in these slices, so that the mean way grows with the lengths."""
    topology = data.draw(st.sampled_from([build_target("v5e:4x8"), build_target("v5p:2x4x4")]))
    holes = data.draw(st.sets(st.sampled_from(topology.order), min_size=1, max_size=20))
    pool = [index for index in topology.order if index not in holes]
    count = data.draw(st.integers(1, min(len(pool) - 1, 8)))
    chosen = set(pack_devices(topology, pool, count))
    free = [(shape, box) for shape, box in list_boxes(topology, count) if not box & holes]
    assert (chosen in [box for _, box in free]) == bool(free)
    if free:
        ways = [sum(size - 1 / size for size in shape) for shape, _ in free]
        ours = measure_box(topology, sorted(chosen))
        assert sum(size - 1 / size for size in ours) == pytest.approx(min(ways))


def test_the_cores_of_a_chip_are_taken_together() -> None:
    topology = build_target("tpu7x:2x2x2")
    chosen = pack_devices(topology, topology.order, 8)
    assert set(Counter(topology.devices[index].coords for index in chosen).values()) == {2}
    pool = [index for index in topology.order if index != 1]
    chosen = pack_devices(topology, pool, 4)
    assert 0 not in chosen, "the other core of its chip is not free"
    assert set(Counter(topology.devices[index].coords for index in chosen).values()) == {2}
    assert len({topology.devices[index].coords for index in pack_devices(topology, topology.order, 3)}) == 2
