"""Which dimensions of a torus each mesh axis gets, and in which order it runs through them.

Rule: every dimension is cut into factors, one for each axis that shares it. An axis runs through its factors so that
each step changes one coordinate, and comes back to its start where it can. The order that costs least is taken: per
axis its longest step in hops, and the time of a byte over the links that a collective of its groups uses, by the axis's
weight. The cost of a search grows with the number of ways to cut, not with the number of devices.

Source of the bandwidth term: jax-ml/scaling-book, "Sharding": a collective over several wrapped dimensions uses
the links of all of them at once, and a ring has twice the bandwidth of a line. How many a collective uses is what XLA's
TPU compiler chooses for such groups (`meshwright.planning.colours`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import Final

from meshwright.planning.colours import count_colours, count_group_colours, find_whole
from meshwright.planning.importance import DIGITS, weigh_positions
from meshwright.topology.torus import Dimension

BEAM_WIDTH: Final = 64
"""Enough: with up to four axes nothing better was found by 4,096 (tests)."""

MOST_TURNS_AXES: Final = 4
"""Up to so many axes, every order in which they can take their strides is tried; above, three orders are."""

_FOLD: Final = (0, 1, 3, 2)


@dataclass(frozen=True)
class Cut:
    """The part of a dimension that an axis has: `size` places, `stride` apart.

    `folded`: the outer half of a ring of four that two axes share, laid out 0 1 3 2, so that both step to neighbours.
    """

    dimension: int
    size: int
    stride: int
    folded: bool = False


Cuts = tuple[Cut, ...]
"""The parts that one axis has, in the order in which it runs through them, the slowest first."""


@dataclass(frozen=True)
class TorusOrder:
    """Devices of a torus in mesh order.

    Attributes:
        cuts: for each mesh axis, outermost first.
        hops: for each axis the longest step between neighbours along it, the way back to the start aside.
        links: for each axis how many links each device has to others of its group; 0 for size 1.
        colours: for each axis how many ways XLA's collectives go at once; 0 for size 1.
        score: the weighted cost, the longest of those steps in whole hops, and the weighted time of a byte over all
            links; smaller is better.
        is_plain: an axis runs through its cuts row-major, as JAX does, and not back and forth.
    """

    cuts: tuple[Cuts, ...]
    hops: tuple[float, ...]
    links: tuple[float, ...]
    colours: tuple[int, ...]
    score: tuple[float, int, float]
    is_plain: bool = False


@dataclass(frozen=True)
class _Partial:
    """An assignment of some axes. `left`: what of each dimension is not cut off yet."""

    left: tuple[int, ...]
    cuts: tuple[Cuts, ...] = ()
    score: tuple[float, int, float] = (0.0, 0, 0.0)
    colours: int = 0


@dataclass(frozen=True)
class Bounds:
    """What an order must keep to: no longer step than `hops` on any axis, and at least these colours on each."""

    hops: int
    colours: tuple[int, ...] = ()

    def allow(self, axis: int, partial: _Partial) -> bool:
        """Returns whether the axis that was added last keeps to them."""
        return partial.score[1] <= self.hops and (not self.colours or partial.colours >= self.colours[axis])


@lru_cache(maxsize=256)
def search_torus(
    sizes: tuple[int, ...],
    dimensions: tuple[Dimension, ...],
    weights: tuple[float, ...] | None = None,
    *,
    bounds: Bounds | None = None,
    split: bool = True,
    beam_width: int = BEAM_WIDTH,
) -> TorusOrder | None:
    """Returns the best assignment that was found; None where `split` or `bounds` forbids all.

    Worked example: a mesh (8, 8) on 8×8 chips gives each axis one dimension; a mesh (4, 16) on 4×4×4 gives the
    inner axis two of them, through which it runs back and forth.

    Args:
        sizes: of the mesh, outermost first.
        dimensions: of the torus, outermost first; as many devices as the mesh has places.
        weights: how much each axis counts; None: inner axes before outer ones.
        bounds: what every axis must keep to; None: nothing.
        split: whether a dimension may be shared by several axes.
        beam_width: partial assignments kept after each axis.

    Raises:
        ValueError: mesh and torus differ in the number of devices.
    """
    places, devices = math.prod(sizes), math.prod(dimension.size for dimension in dimensions)
    if places != devices:
        raise ValueError(f"a mesh of sizes {sizes} holds {places} devices, the torus has {devices}; give as many")
    known = weights or weigh_positions(sizes).inside
    found = (_search(turn, sizes, dimensions, known, bounds, split, beam_width) for turn in _list_turns(sizes, known))
    return min((order for order in found if order), key=lambda order: order.score, default=None)


def _list_turns(sizes: Sequence[int], weights: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Yields in which order the axes wider than 1 take their parts, and with them the shorter strides."""
    inward = [axis for axis in reversed(range(len(sizes))) if sizes[axis] > 1]
    first = tuple(sorted(inward, key=lambda axis: -weights[axis]))
    yield first
    others = [tuple(inward), tuple(sorted(inward, key=lambda axis: sizes[axis]))]
    seen = {first}
    for turn in permutations(inward) if len(inward) <= MOST_TURNS_AXES else others:
        if turn not in seen:
            seen.add(turn)
            yield turn


def _search(
    turn: Sequence[int],
    sizes: Sequence[int],
    dimensions: Sequence[Dimension],
    weights: Sequence[float],
    bounds: Bounds | None,
    split: bool,
    beam_width: int,
) -> TorusOrder | None:
    beam = [_Partial(tuple(dimension.size for dimension in dimensions))]
    for axis in turn:
        grown = (
            _extend(partial, factors, dimensions, weights[axis])
            for partial in beam
            for factors in _list_factors(sizes[axis], partial.left, dimensions, split)
        )
        kept = [partial for partial in grown if bounds is None or bounds.allow(axis, partial)]
        beam = sorted(kept, key=lambda partial: partial.score)[:beam_width]
    if not beam:
        return None
    taken = dict(zip(turn, beam[0].cuts, strict=True))
    return price_cuts([taken.get(axis, ()) for axis in range(len(sizes))], dimensions, weights)


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
    cuts = _order_cuts(
        (
            _cut(axis, factor, left, dimension)
            for axis, (factor, left, dimension) in enumerate(zip(factors, partial.left, dimensions, strict=True))
            if factor > 1
        ),
        dimensions,
    )
    step, links = _measure(cuts, dimensions)
    colours = _count_colours(cuts, dimensions)
    cost = price_axis(step, links, colours)
    return _Partial(
        tuple(left // factor for left, factor in zip(partial.left, factors, strict=True)),
        (*partial.cuts, cuts),
        _add(partial.score, weight, cost, step, links),
        colours,
    )


def _add(
    score: tuple[float, int, float], weight: float, cost: float, step: float, links: float
) -> tuple[float, int, float]:
    """Returns a score with one more axis in it."""
    total, longest, time = score
    byte = weight / links if links else 0.0
    return round(total + weight * cost, DIGITS), max(longest, int(step)), round(time + byte, DIGITS)


def _cut(axis: int, factor: int, left: int, dimension: Dimension) -> Cut:
    stride = dimension.size // left
    folded = dimension.is_ring and dimension.size == len(_FOLD) and factor == stride == 2
    return Cut(axis, factor, stride, folded)


def _order_cuts(cuts: Iterable[Cut], dimensions: Sequence[Dimension]) -> Cuts:
    """Returns an axis's parts, the slowest first: one along which it can come back to its start, if there is any."""
    return tuple(sorted(cuts, key=lambda cut: _rank(cut, dimensions), reverse=True))


def _rank(cut: Cut, dimensions: Sequence[Dimension]) -> tuple[bool, bool, float, int]:
    return cut.size % 2 == 0, _is_closed(cut, dimensions), _measure_step(cut, dimensions), -cut.dimension


def price_axis(step: float, links: float, colours: int) -> float:
    """Returns what an axis costs, in the time of a byte over one link: its longest step, and one over the links that
    its collectives use. Devices that no straight line joins share the links of the way between them."""
    return step + 1 / min(links or 1 / step, colours) if step else 0.0


def _count_colours(cuts: Cuts, dimensions: Sequence[Dimension]) -> int:
    sizes = [1] * len(dimensions)
    for cut in cuts:
        sizes[cut.dimension] = cut.size
    count = math.prod(sizes)
    return count_colours(find_whole(sizes, dimensions, count), dimensions, count)


def price_cuts(
    cuts: Sequence[Cuts], dimensions: Sequence[Dimension], weights: Sequence[float], *, is_plain: bool = False
) -> TorusOrder:
    """Returns the order that these cuts make, with its score.

    Args:
        cuts: for each mesh axis, outermost first.
        dimensions: of the torus.
        weights: how much each axis counts.
        is_plain: an axis runs through its cuts row-major.
    """
    score = (0.0, 0, 0.0)
    steps, links, colours = [], [], []
    for weight, axis in zip(weights, cuts, strict=True):
        step, ways = _measure(axis, dimensions, is_plain=is_plain)
        used = _count_colours(axis, dimensions) if axis else 0
        score = _add(score, weight, price_axis(step, ways, used), step, ways)
        steps.append(step)
        links.append(ways)
        colours.append(used)
    return TorusOrder(tuple(cuts), tuple(steps), tuple(links), tuple(colours), score, is_plain)


def _measure(cuts: Cuts, dimensions: Sequence[Dimension], *, is_plain: bool = False) -> tuple[float, float]:
    """Returns an axis's longest step, in hops, and how many links each device has to others of its group."""
    back, longest = 0.0, 0.0
    for cut in reversed(cuts):
        longest = max(longest, _measure_step(cut, dimensions) + back)
        if is_plain:
            back += dimensions[cut.dimension].measure((cut.size - 1) * cut.stride)
    return longest, sum(_count_links(cut, dimensions) for cut in cuts)


def _measure_step(cut: Cut, dimensions: Sequence[Dimension]) -> float:
    dimension = dimensions[cut.dimension]
    return dimension.step if cut.folded else dimension.measure(cut.stride)


def _is_closed(cut: Cut, dimensions: Sequence[Dimension]) -> bool:
    dimension = dimensions[cut.dimension]
    return dimension.is_ring and cut.size * cut.stride == dimension.size and not cut.folded


def _count_links(cut: Cut, dimensions: Sequence[Dimension]) -> float:
    """Returns how many links' bandwidth a group has along a cut: two round a ring, one on a line, shared by `stride`
    groups that interleave."""
    ways = 2 if _is_closed(cut, dimensions) else 1
    return ways / _measure_step(cut, dimensions)


def list_torus_places(order: TorusOrder, dimensions: Sequence[Dimension]) -> list[int]:
    """Returns, for each place of the mesh (row-major), the place in the torus (row-major over its dimensions)."""
    strides = [math.prod(dimension.size for dimension in dimensions[axis + 1 :]) for axis in range(len(dimensions))]
    lines = [_list_line(cuts, strides, dimensions, order.is_plain) for cuts in order.cuts]
    places = [sum(steps) for steps in product(*lines)]
    folded = {cut.dimension for cuts in order.cuts for cut in cuts if cut.folded}
    return _fold(places, folded, dimensions) if folded else places


def measure_bounds(sizes: Sequence[int], dimensions: Sequence[Dimension], places: Sequence[int]) -> Bounds:
    """Returns the longest step and the colours of any order of the places of a torus (row-major)."""
    coords = list(product(*(range(dimension.size) for dimension in dimensions)))
    longest, colours = 0.0, []
    for axis, size in enumerate(sizes):
        stride = math.prod(sizes[axis + 1 :])
        starts = (start for start in range(len(places)) if start // stride % size == 0)
        lines = [[coords[places[start + step * stride]] for step in range(size)] for start in starts]
        longest = max([longest, *(_measure_way(a, b, dimensions) for line in lines for a, b in pairwise(line))])
        colours.append(min(count_group_colours(line, dimensions) for line in lines) if size > 1 else 0)
    return Bounds(int(longest), tuple(colours))


def _measure_way(one: Sequence[int], other: Sequence[int], dimensions: Sequence[Dimension]) -> float:
    return sum(d.measure(abs(a - b)) for d, a, b in zip(dimensions, one, other, strict=True))


def _fold(places: Sequence[int], folded: set[int], dimensions: Sequence[Dimension]) -> list[int]:
    """Returns the places with rings of four that two axes share in the order 0 1 3 2."""
    ranges = [_FOLD if axis in folded else range(dimension.size) for axis, dimension in enumerate(dimensions)]
    moved = []
    for coords in product(*ranges):
        place = 0
        for value, dimension in zip(coords, dimensions, strict=True):
            place = place * dimension.size + value
        moved.append(place)
    return [moved[place] for place in places]


def _list_line(cuts: Cuts, strides: Sequence[int], dimensions: Sequence[Dimension], is_plain: bool) -> list[int]:
    """Returns the offsets of an axis's places, the last cut fastest."""
    steps = [[step * cut.stride * strides[cut.dimension] for step in range(cut.size)] for cut in cuts]
    if is_plain:
        return [sum(parts) for parts in product(*steps)]
    if len(cuts) < 2 or cuts[0].size % 2 or _is_closed(cuts[0], dimensions):
        return _list_snake(steps)
    return _list_circle(steps[0], _list_snake(steps[1:]))


def _list_snake(parts: Sequence[Sequence[int]]) -> list[int]:
    """Returns the sums of all choices of one offset a part, in an order in which neighbours differ in one part."""
    line = [0]
    for steps in parts:
        line = [start + step for turn, start in enumerate(line) for step in (steps if turn % 2 == 0 else steps[::-1])]
    return line


def _list_circle(rows: Sequence[int], path: Sequence[int]) -> list[int]:
    """Returns a way through an even number of rows, each a path, that ends beside its start.

    It leaves the first place of every row out on the way there, and takes these on the way back.
    """
    there = [row + step for turn, row in enumerate(rows) for step in (path[1:] if turn % 2 == 0 else path[:0:-1])]
    return [rows[0] + path[0], *there, *(row + path[0] for row in reversed(rows[1:]))]
