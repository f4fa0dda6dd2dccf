"""Which dimensions of a torus each mesh axis gets, and in which order it runs through them.

Rule: every dimension is cut into factors, one for each axis that shares it; the inner axis gets the shorter
stride. An axis runs through its factors like a snake, so that each step changes one coordinate. Of two orders the
one with shorter steps is better (the longest step of each axis, in hops), then the one whose groups have more links
to themselves; an axis counts a quarter of the one inside it. The cost of a search grows with the number of ways to
cut, not with the number of devices.

Source of the bandwidth term: jax-ml/scaling-book, "Sharding": a collective over several wrapped dimensions uses
the links of all of them at once, and a ring has twice the bandwidth of a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final

from meshwright.planning.assign import weigh_axes
from meshwright.topology.torus import Dimension

BEAM_WIDTH: Final = 64
"""Enough: with up to four axes nothing better was found by 4,096 (tests)."""


@dataclass(frozen=True)
class Cut:
    """The part of a dimension that an axis has: `size` places, `stride` apart."""

    dimension: int
    size: int
    stride: int


@dataclass(frozen=True)
class TorusOrder:
    """What the search found.

    Attributes:
        cuts: for each mesh axis (outermost first) its parts, in the order in which it runs through them, the
            slowest first.
        hops: for each axis the longest step between neighbours along it, the way back to the start aside.
        score: weighted sums over the axes of hops, and of the time of a byte (1 over one link); smaller is better.
    """

    cuts: tuple[tuple[Cut, ...], ...]
    hops: tuple[float, ...]
    score: tuple[float, float]


@dataclass(frozen=True)
class _Partial:
    """An assignment of the innermost axes. `left`: what of each dimension is not cut off yet."""

    left: tuple[int, ...]
    cuts: tuple[tuple[Cut, ...], ...] = ()
    hops: tuple[float, ...] = ()
    score: tuple[float, float] = (0.0, 0.0)


@lru_cache(maxsize=256)
def search_torus(
    sizes: tuple[int, ...], dimensions: tuple[Dimension, ...], *, split: bool = True, beam_width: int = BEAM_WIDTH
) -> TorusOrder | None:
    """Returns the best assignment that was found; None where `split` forbids all.

    Worked example: a mesh (8, 8) on 8×8 chips gives each axis one dimension; a mesh (4, 16) on 4×4×4 gives the
    inner axis two of them, through which it snakes.

    Args:
        sizes: of the mesh, outermost first.
        dimensions: of the torus, outermost first; as many devices as the mesh has places.
        split: whether a dimension may be shared by several axes.
        beam_width: partial assignments kept after each axis.

    Raises:
        ValueError: mesh and torus differ in the number of devices.
    """
    places, devices = math.prod(sizes), math.prod(dimension.size for dimension in dimensions)
    if places != devices:
        raise ValueError(f"a mesh of sizes {sizes} holds {places} devices, the torus has {devices}; give as many")
    weights = weigh_axes(sizes)
    beam = [_Partial(tuple(dimension.size for dimension in dimensions))]
    for size, weight in zip(reversed(sizes), reversed(weights), strict=True):
        grown = [
            _extend(partial, factors, dimensions, weight)
            for partial in beam
            for factors in _list_factors(size, partial.left, dimensions, split)
        ]
        beam = sorted(grown, key=lambda partial: partial.score)[:beam_width]
    if not beam:
        return None
    best = beam[0]
    return TorusOrder(best.cuts[::-1], best.hops[::-1], best.score)


def _list_factors(
    size: int, left: Sequence[int], dimensions: Sequence[Dimension], split: bool
) -> Iterator[tuple[int, ...]]:
    """Yields the ways to take `size` places out of what is left, innermost dimensions first."""
    if not left:
        if size == 1:
            yield ()
        return
    last = len(left) - 1
    for factor in range(min(size, left[last]), 0, -1):
        is_whole = factor in (1, dimensions[last].size)
        if size % factor == 0 and left[last] % factor == 0 and (split or is_whole):
            for rest in _list_factors(size // factor, left[:last], dimensions, split):
                yield (*rest, factor)


def _extend(partial: _Partial, factors: Sequence[int], dimensions: Sequence[Dimension], weight: float) -> _Partial:
    cuts = [
        Cut(axis, factor, dimension.size // left)
        for axis, (factor, left, dimension) in enumerate(zip(factors, partial.left, dimensions, strict=True))
        if factor > 1
    ]
    cuts.sort(key=lambda cut: _rank(cut, dimensions), reverse=True)
    hops = max((_measure_step(cut, dimensions) for cut in cuts), default=0.0)
    byte = 1 / sum(_count_links(cut, dimensions) for cut in cuts) if cuts else 0.0
    return _Partial(
        tuple(left // factor for left, factor in zip(partial.left, factors, strict=True)),
        (*partial.cuts, tuple(cuts)),
        (*partial.hops, hops),
        (round(partial.score[0] + weight * hops, 9), round(partial.score[1] + weight * byte, 9)),
    )


def _rank(cut: Cut, dimensions: Sequence[Dimension]) -> tuple[float, ...]:
    """Returns what sorts an axis's cuts, the fastest first: short steps; and a ring last, which closes the snake."""
    return _measure_step(cut, dimensions), _is_closed(cut, dimensions), cut.size % 2 == 0, -cut.dimension


def _measure_step(cut: Cut, dimensions: Sequence[Dimension]) -> float:
    return dimensions[cut.dimension].measure(cut.stride)


def _is_closed(cut: Cut, dimensions: Sequence[Dimension]) -> bool:
    dimension = dimensions[cut.dimension]
    return dimension.is_ring and cut.size * cut.stride == dimension.size


def _count_links(cut: Cut, dimensions: Sequence[Dimension]) -> float:
    """Returns how many links' bandwidth a group has along a cut: two round a ring, one on a line, shared by `stride`
    groups that interleave."""
    ways = 2 if _is_closed(cut, dimensions) else 1
    return ways / (cut.stride * dimensions[cut.dimension].step)


def list_torus_places(order: TorusOrder, dimensions: Sequence[Dimension]) -> list[int]:
    """Returns, for each place of the mesh (row-major), the place in the torus (row-major over its dimensions)."""
    strides = [math.prod(dimension.size for dimension in dimensions[axis + 1 :]) for axis in range(len(dimensions))]
    lines = [_list_line(cuts, strides) for cuts in order.cuts]
    return [sum(steps) for steps in product(*lines)]


def _list_line(cuts: Sequence[Cut], strides: Sequence[int]) -> list[int]:
    """Returns the offsets of an axis's places: a snake through its cuts, the last one fastest."""
    line = [0]
    for cut in cuts:
        steps = [step * cut.stride * strides[cut.dimension] for step in range(cut.size)]
        line = [start + step for turn, start in enumerate(line) for step in (steps if turn % 2 == 0 else steps[::-1])]
    return line
