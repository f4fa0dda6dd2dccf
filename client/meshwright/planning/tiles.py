"""Orders on a slice with holes (failed or excluded chips): whole tiles side by side, or rows and planes left out.

Rule: which chips are taken follows from the mesh, since where there are holes no set is good for every mesh. Nothing
here judges: the caller scores what is yielded. Knows one slice at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import Final

from meshwright.planning.importance import Weights
from meshwright.planning.packing import group_chips, list_shapes
from meshwright.planning.torus import list_torus_places, search_torus
from meshwright.topology.links import SAME_CHIP_FACTOR
from meshwright.topology.model import Topology
from meshwright.topology.torus import Dimension, Place, find_dimensions, turn_back

SHAPES_MAX: Final = 3
"""Tile shapes that are tried for a number of chips, the most compact first."""

LARGE_COUNT: Final = 1024
"""Above so many chips one shape is tried, and one way to leave planes out, since each order is measured as a whole."""

HOLES_MAX: Final = 3
"""With more holes, no planes are left out: there are three ways for each."""


@dataclass(frozen=True)
class _Slice:
    """The free chips of a slice by place (z, y, x), each with its devices, and the dimensions that they span."""

    chips: Mapping[Place, Sequence[int]]
    dimensions: tuple[Dimension, ...]
    cores: int

    @property
    def core_dimensions(self) -> tuple[Dimension, ...]:
        """The dimension of a chip's cores, where it has several."""
        return (Dimension(self.cores, step=SAME_CHIP_FACTOR),) if self.cores > 1 else ()


def list_tilings(
    sizes: tuple[int, ...], weights: Weights, topology: Topology, pool: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Yields orders of as many devices as the mesh has, row-major.

    Args:
        sizes: of the mesh, outermost first.
        weights: of its axes: the heaviest ones get the tiles.
        topology: has the devices.
        pool: those of one slice that may be taken, in plain order.
    """
    seen = _read_slice(topology, pool)
    if seen is None or math.prod(sizes) % seen.cores:
        return
    most = None if len(seen.chips) <= LARGE_COUNT else 1
    yield from islice(_leave_out(sizes, weights, seen), most)
    ranked = sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: -weights.inside[axis])
    for count in range(len(ranked) - 1, 0, -1):
        yield from _lay_tiles(sizes, weights, seen, frozenset(ranked[:count]))


def _read_slice(topology: Topology, pool: Sequence[int]) -> _Slice | None:
    """Returns the whole chips of the pool, counted from the lowest; None where places are not known."""
    *dimensions, core = find_dimensions(topology, pool) or (Dimension(0),)
    chips = {place: members for place, members in group_chips(topology, pool).items() if len(members) == core.size}
    if not chips:
        return None
    low = tuple(map(min, zip(*chips, strict=True)))
    moved = {tuple(a - b for a, b in zip(place, low, strict=True)): members for place, members in chips.items()}
    return _Slice(moved, tuple(dimensions), core.size)


def _leave_out(sizes: tuple[int, ...], weights: Weights, seen: _Slice) -> Iterator[tuple[int, ...]]:
    """Yields orders on what is left when each hole is taken out with its row or plane, whichever way round."""
    ranges = [range(dimension.size) for dimension in seen.dimensions]
    holes = [place for place in product(*ranges) if place not in seen.chips]
    if not 0 < len(holes) <= HOLES_MAX:
        return
    chip_count = math.prod(sizes) // seen.cores
    known = set()
    for axes in product(range(len(ranges)), repeat=len(holes)):
        gone = [
            {hole[axis] for hole, chosen in zip(holes, axes, strict=True) if chosen == axis}
            for axis in range(len(ranges))
        ]
        left = [[value for value in values if value not in out] for values, out in zip(ranges, gone, strict=True)]
        bounds = [Dimension(len(values)) for values in left]
        for shape in list_shapes(chip_count, bounds)[:1]:
            box = tuple(tuple(values[:size]) for values, size in zip(left, shape, strict=True))
            if box not in known:
                known.add(box)
                yield _cut_box(sizes, weights, seen, box)


def _cut_box(sizes: tuple[int, ...], weights: Weights, seen: _Slice, box: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the devices of a box in mesh order; its rows may have gaps."""
    rings = [d.is_ring and len(values) == d.size for d, values in zip(seen.dimensions, box, strict=True)]
    wide = [Dimension(len(values), ring) for values, ring in zip(box, rings, strict=True) if len(values) > 1]
    dimensions = (*wide, *seen.core_dimensions)
    found = search_torus(sizes, dimensions, weights.inside)
    assert found is not None, "split, a torus takes every mesh of its size"
    members = [index for place in product(*box) for index in seen.chips[place]]
    return tuple(members[place] for place in list_torus_places(found, dimensions))


def _lay_tiles(
    sizes: tuple[int, ...], weights: Weights, seen: _Slice, inner: frozenset[int]
) -> Iterator[tuple[int, ...]]:
    """Yields orders in which the `inner` axes fill a tile each, and the others run from tile to tile."""
    inside = tuple(size if axis in inner else 1 for axis, size in enumerate(sizes))
    each = math.prod(inside)
    if each % seen.cores:
        return
    most = SHAPES_MAX if len(seen.chips) <= LARGE_COUNT else 1
    for shape in islice(list_shapes(each // seen.cores, seen.dimensions), most):
        tiles = _choose_tiles(_list_tiles(shape, seen), math.prod(sizes) // each)
        if tiles:
            corners = [[range(c * n, c * n + n) for c, n in zip(corner, shape, strict=True)] for corner in tiles]
            orders = [_cut_box(inside, weights, seen, box) for box in corners]
            yield _join_tiles(sizes, inside, orders)


def _list_tiles(shape: Place, seen: _Slice) -> list[Place]:
    """Returns the tiles that are all free, in units of their shape, back and forth through rows and planes."""
    counts = [dimension.size // size for dimension, size in zip(seen.dimensions, shape, strict=True)]
    free = [corner for corner in product(*map(range, counts)) if _is_free(corner, shape, seen)]
    return sorted(free, key=turn_back)


def _is_free(corner: Place, shape: Place, seen: _Slice) -> bool:
    ranges = (range(c * size, c * size + size) for c, size in zip(corner, shape, strict=True))
    return all(place in seen.chips for place in product(*ranges))


def _choose_tiles(tiles: Sequence[Place], count: int) -> Sequence[Place]:
    """Returns `count` tiles in a row, those with the shortest way between them; none where there are too few."""
    if len(tiles) < count:
        return ()
    steps = [math.dist(a, b) for a, b in pairwise(tiles)]
    first = min(range(len(tiles) - count + 1), key=lambda start: (sum(steps[start : start + count - 1]), start))
    return tiles[first : first + count]


def _join_tiles(sizes: Sequence[int], inside: Sequence[int], orders: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the devices in mesh order: tiles row-major over the outer axes, in each its own order."""
    joined = []
    for place in product(*map(range, sizes)):
        tile = rank = 0
        for step, size, inner in zip(place, sizes, inside, strict=True):
            tile, rank = (tile, rank * inner + step) if inner > 1 else (tile * size + step, rank)
        joined.append(orders[tile][rank])
    return tuple(joined)
