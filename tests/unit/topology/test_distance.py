"""Hops by coordinates, beside ways that are searched over explicit links."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.topology.model import Coords, can_twist, find_distance

Links = Mapping[Coords, Sequence[Coords]]


def list_chips(shape: Sequence[int]) -> list[Coords]:
    return list(product(*map(range, shape)))


def join_grid(shape: Sequence[int], wrap: Sequence[bool]) -> Links:
    """The links of a grid, and of each dimension that wraps one more from its end to its begin."""
    links: dict[Coords, list[Coords]] = {chip: [] for chip in list_chips(shape)}
    for chip in links:
        for axis, (size, ring) in enumerate(zip(shape, wrap, strict=True)):
            if chip[axis] + 1 < size or ring:
                other = (*chip[:axis], (chip[axis] + 1) % size, *chip[axis + 1 :])
                links[chip].append(other)
                links[other].append(chip)
    return links


def join_twisted(shape: Coords) -> Links:
    """The links of a twisted torus: a short ring comes out half a long dimension further along each long one."""
    short, long = min(shape), max(shape)
    links: dict[Coords, list[Coords]] = {chip: [] for chip in list_chips(shape)}
    for chip, axis in product(links, range(len(shape))):
        other = [value + (place == axis) for place, value in enumerate(chip)]
        if other[axis] == shape[axis]:
            other[axis] = 0
            if shape[axis] == short:
                turned = zip(other, shape, strict=True)
                other = [(value + long // 2) % long if size == long else value for value, size in turned]
        links[chip].append(tuple(other))
        links[tuple(other)].append(chip)
    return links


def walk(links: Links, start: Coords) -> dict[Coords, int]:
    hops, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in links[here]:
            if there not in hops:
                hops[there] = hops[here] + 1
                queue.append(there)
    return hops


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.data())
def test_hops_on_a_plain_torus_are_those_of_the_shortest_way(shape: Coords, data: st.DataObject) -> None:
    wrap = tuple(data.draw(st.booleans()) for _ in shape)
    start = data.draw(st.sampled_from(list_chips(shape)))
    distance = find_distance(shape, wrap)
    assert {chip: distance(start, chip) for chip in list_chips(shape)} == walk(join_grid(shape, wrap), start)


TWISTED = [(4, 4, 8), (4, 8, 8), (8, 4, 4), (4, 8, 4), (8, 8, 4), (2, 2, 4), (2, 4, 4)]


@pytest.mark.parametrize("shape", TWISTED)
def test_hops_on_a_twisted_torus_are_those_of_the_shortest_way_from_any_chip(shape: Coords) -> None:
    distance, links = find_distance(shape, (True,) * 3, twisted=True), join_twisted(shape)
    starts = [(0, 0, 0), tuple(size - 1 for size in shape), (1, 0, shape[2] // 2)]
    for start in starts:
        assert {chip: distance(start, chip) for chip in list_chips(shape)} == walk(links, start)


PLAIN = [(4, 4, 4), (4, 4, 16), (4, 8, 16), (4, 4, 12), (6, 8, 12), (4, 4), (4, 8), (2, 2, 1), ()]


@pytest.mark.parametrize("shape", PLAIN)
def test_other_shapes_have_no_twist(shape: Coords) -> None:
    assert not can_twist(shape)
    with pytest.raises(ValueError, match=r"cannot be twisted; .* such as \(4, 4, 8\)"):
        find_distance(shape, (True,) * len(shape), twisted=True)
    assert find_distance((4, 4, 8), (True,) * 3, twisted=True)((0, 0, 0), (0, 0, 4)) == 4
