"""Splitting a mesh over granules."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.granules import choose_dcn, interleave_granules, split_axes, take_dcn

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("sizes", "parts", "expected"),
    [
        ((2, 4), 2, (2, 1)),
        ((3, 4), 2, (1, 2)),
        ((2, 2), 4, (2, 2)),
        ((6, 10), 15, (3, 5)),
        ((1,), 1, (1,)),
        ((4, 4), 3, None),
        ((2, 4), 16, None),
    ],
)
def test_outer_axes_are_split_first(sizes: tuple[int, ...], parts: int, expected: tuple[int, ...] | None) -> None:
    assert split_axes(sizes, parts) == expected


@given(SIZES, st.integers(1, 60))
def test_there_is_a_split_exactly_when_the_parts_divide_the_places(sizes: tuple[int, ...], parts: int) -> None:
    found = split_axes(sizes, parts)
    assert (found is not None) == (math.prod(sizes) % parts == 0)
    if found is not None:
        assert math.prod(found) == parts
        assert all(size % part == 0 for size, part in zip(sizes, found, strict=True))


@pytest.mark.parametrize(
    ("sizes", "granules", "expected"),
    [
        ((8, 4), 2, (2, 1)),
        ((3, 4), 2, (1, 2)),
        ((2, 4), 4, (1, 4)),
        ((2, 6), 4, (2, 2)),
        ((1, 8), 1, (1, 1)),
        ((5, 3), 2, None),
    ],
)
def test_the_first_axis_that_can_takes_all_granules_else_several_share_them(
    sizes: tuple[int, ...], granules: int, expected: tuple[int, ...] | None
) -> None:
    assert take_dcn(sizes, granules) == expected


@pytest.mark.parametrize(
    ("sizes", "granules", "weights", "expected"),
    [
        ((8, 4), 2, None, (2, 1)),
        ((3, 4), 2, None, (1, 2)),
        ((2, 4), 4, None, (2, 2)),
        ((4, 2), 2, (1.0, 1 / 64), (1, 2)),
        ((8, 64), 64, None, (8, 8)),
        ((2, 64), 2, None, (2, 1)),
        ((2, 64), 2, (1.0, 1.0), (1, 2)),
        ((5, 3), 2, None, None),
    ],
)
def test_as_little_as_can_be_crosses_between_granules(
    sizes: tuple[int, ...], granules: int, weights: tuple[float, ...] | None, expected: tuple[int, ...] | None
) -> None:
    assert choose_dcn(sizes, granules, weights) == expected


@pytest.mark.parametrize("choose", [choose_dcn, take_dcn])
@given(SIZES, st.integers(1, 24))
def test_the_chosen_split_fits_wherever_one_exists(
    choose: Callable[..., tuple[int, ...] | None], sizes: tuple[int, ...], granules: int
) -> None:
    found = choose(sizes, granules)
    assert (found is not None) == (math.prod(sizes) % granules == 0)
    if found is not None:
        assert math.prod(found) == granules
        assert all(size % part == 0 for size, part in zip(sizes, found, strict=True))


PARTS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3)


@given(PARTS)
def test_every_member_stands_once_and_the_granule_is_the_outer_part_of_each_axis(parts: list[tuple[int, int]]) -> None:
    dcn, inner = [outer for outer, _ in parts], [inside for _, inside in parts]
    granules = [[(granule, rank) for rank in range(math.prod(inner))] for granule in range(math.prod(dcn))]
    order = interleave_granules(dcn, inner, granules)
    assert sorted(order) == sorted(member for granule in granules for member in granule)
    outer_places, inner_places = (list(product(*map(range, sizes))) for sizes in (dcn, inner))
    for place, (granule, rank) in zip(product(*(range(a * b) for a, b in parts)), order, strict=True):
        outer = tuple(step // size for step, size in zip(place, inner, strict=True))
        inside = tuple(step % size for step, size in zip(place, inner, strict=True))
        assert (outer_places[granule], inner_places[rank]) == (outer, inside)
