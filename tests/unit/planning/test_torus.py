"""Cutting a torus into mesh axes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.torus import Cut, cut_torus, find_box, list_torus_places
from meshwright.topology.torus import Dimension
from tests.fakes.topologies import weigh_positions
from tests.unit.planning.test_score import list_primes

RING4, RING16, LINE8 = Dimension(4, is_ring=True), Dimension(16, is_ring=True), Dimension(8)

Sizes = tuple[int, ...]
Torus = tuple[Dimension, ...]

WHOLE = [
    ((8, 8), (LINE8, LINE8), (1, 1)),
    ((4, 16), (RING4,) * 3, (1, 1)),
    ((16, 16), (RING16, RING16), (1, 1)),
    ((64,), (RING4,) * 3, (1,)),
    ((2, 4, 2), (Dimension(2), Dimension(4), Dimension(2, step=0.5)), (1, 1, 0.5)),
    ((1, 8, 1, 8), (LINE8, LINE8), (0, 1, 0, 1)),
    ((32, 8), (RING16, RING16), (1, 2)),
    ((4, 16), (LINE8, LINE8), (2, 1)),
    ((56, 8), (Dimension(28, is_ring=True), RING4, RING4), (1, 1)),
    ((2, 2, 16), (RING4,) * 3, (1, 1, 1)),
]
"""Mesh sizes, torus, and the longest step of each axis. Steps of JAX's own order, where an axis must be split: (32, 8)
(9, 1), (4, 16) (2, 2); on 28×4×4 its `create_device_mesh` raises TypeError (jax 0.10.2)."""


def cut(sizes: Sizes, dimensions: Torus) -> Cut:
    found = cut_torus(sizes, dimensions, weigh_positions(sizes).inside)
    assert found is not None, "split, a torus takes every mesh of its size"
    return found


def read_steps(found: Any) -> tuple[float, ...]:
    return tuple(axis.step for axis in found)


def measure_hops(sizes: Sizes, dimensions: Torus, places: list[int]) -> tuple[float, ...]:
    """The longest step along each axis, found by walking over the whole mesh."""
    found = []
    for axis, size in enumerate(sizes):
        stride = math.prod(sizes[axis + 1 :])
        starts = [start for start in range(len(places)) if start // stride % size == 0]
        steps = [pair for start in starts for pair in pairwise(places[start + k * stride] for k in range(size))]
        found.append(max((measure(a, b, dimensions) for a, b in steps), default=0.0))
    return tuple(found)


def measure(a: int, b: int, dimensions: Torus) -> float:
    total = 0.0
    for dimension in reversed(dimensions):
        total += dimension.measure(abs(a % dimension.size - b % dimension.size))
        a, b = a // dimension.size, b // dimension.size
    return total


@pytest.mark.parametrize(("sizes", "dimensions", "hops"), WHOLE)
def test_steps_are_as_short_as_the_torus_allows(sizes: Sizes, dimensions: Torus, hops: Any) -> None:
    found = cut(sizes, dimensions)
    assert read_steps(found) == hops
    assert measure_hops(sizes, dimensions, list_torus_places(found, dimensions)) == hops


SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16]), min_size=1, max_size=3)


@st.composite
def draw_cases(draw: st.DrawFn) -> tuple[Sizes, Torus]:
    """A torus, and a mesh whose sizes are made by dealing out the torus's prime factors."""
    lengths = draw(SIZES)
    dimensions = tuple(Dimension(n, is_ring=draw(st.booleans())) for n in lengths if n > 1)
    sizes = [1] * draw(st.integers(1, 4))
    for prime in [p for n in lengths for p in list_primes(n)]:
        sizes[draw(st.integers(0, len(sizes) - 1))] *= prime
    return tuple(sizes), dimensions


@given(draw_cases())
def test_every_device_stands_once_and_the_steps_are_those_that_are_told(case: Any) -> None:
    sizes, dimensions = case
    found = cut(sizes, dimensions)
    places = list_torus_places(found, dimensions)
    assert sorted(places) == list(range(math.prod(sizes)))
    assert measure_hops(sizes, dimensions, places) == read_steps(found)


def test_without_splitting_each_axis_is_whole_dimensions_or_there_is_none() -> None:
    whole = (LINE8, LINE8)
    assert read_steps(cut_torus((8, 8), whole, (1.0, 1.0), split=False)) == (1, 1)
    assert cut_torus((16, 4), whole, (1.0, 1.0), split=False) is None
    assert read_steps(cut_torus((64, 1), whole, (1.0, 0.0), split=False)) == (1, 0)


def test_ways_of_xlas_collectives_come_before_steps_and_steps_before_links() -> None:
    cube = (Dimension(4), Dimension(2), Dimension(2))
    assert [(axis.step, axis.colors) for axis in cut((2, 4, 2), cube)] == [(2, 2), (1, 4), (1, 2)]
    square = (Dimension(4), Dimension(4))
    assert [(axis.step, axis.links) for axis in cut((4, 4), square)] == [(1, 1), (1, 1)], "not 2×2, 2 steps apart"


def test_the_box_of_a_part_of_a_torus_has_the_most_links() -> None:
    torus = (RING16, RING16)
    assert find_box(256, torus) == torus
    assert find_box(16, torus) == (RING16,)
    assert find_box(8, torus) == (Dimension(2), Dimension(4))
    assert find_box(7, torus) == (Dimension(7),), "that fills no box"
    assert math.prod(dimension.size for dimension in find_box(1, torus)) == 1


def test_of_cuts_with_equal_colors_and_steps_the_one_with_more_links_inside_is_taken() -> None:
    found = cut((2, 8, 8), (Dimension(8, is_ring=True), RING4, RING4))
    assert [(axis.colors, axis.step) for axis in found] == [(2, 1)] * 3
    assert [axis.links for axis in found] == [1, 2, 3]


CLOSED = [
    ((16,), (Dimension(4), Dimension(4))), ((8,), (Dimension(2), Dimension(4))),
    ((24,), (Dimension(2), Dimension(3), Dimension(4))), ((64,), (RING4,) * 3),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "dimensions"), CLOSED)
def test_an_axis_comes_back_to_its_start_where_it_can(sizes: Sizes, dimensions: Torus) -> None:
    found = cut(sizes, dimensions)
    places = list_torus_places(found, dimensions)
    assert {measure(a, b, dimensions) for a, b in pairwise([*places, places[0]])} == {1}


@pytest.mark.parametrize("sizes", [(2, 3), (16, 8)])
def test_a_mesh_of_another_size_is_refused_with_both_numbers(sizes: Sizes) -> None:
    with pytest.raises(ValueError, match=f"holds {math.prod(sizes)} devices, the torus has 64"):
        cut(sizes, (LINE8, LINE8))
