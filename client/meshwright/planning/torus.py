"""Cuts a mesh out of a torus. The device order, prices, and meshes in the trainer all use this result.

Rule: axes take blocks of the torus one after the other: whole dimensions first, then the block in which XLA's
collectives have the most colors, then the one with the most links to each device. All such orders of up to four axes
are tried. The best cut is taken: by the colors and weights of the axes, by the longest step, by cost. An axis runs
through its parts so that each step changes one coordinate, and comes back to its start where it can. The cost of a
search grows with the number of ways to cut, not with the number of devices.

Source of the bandwidth term: jax-ml/scaling-book, "Sharding": a collective over several wrapped dimensions uses the
links of all of them at once, and a ring has twice the bandwidth of a line.

The number of parallel rings ("colors") of an all-reduce is the choice of XLA's TPU compiler by the shape of its groups:
only which devices form a group matters, not their order, nor how far apart they are. Source: the strategies of some
1,200 programs compiled with libtpu 0.0.42 (jax 0.10.2) for v4, v5e, v5p, v6e and tpu7x, 16 MiB a device; `make
verify-order` compiles a sample again (docs/explanation/device-order.md).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, permutations, product
from typing import Final

from meshwright.planning.granules import DIGITS
from meshwright.topology.torus import Dimension, Grid

SMALL_GROUP: Final = 9
"""Up to this number of devices a single ring goes both ways. A larger ring that is not a whole plane goes one way."""

SHORT_SIDE: Final = 8
"""Up to this side a square has two colors per dimension, above it one."""

_CORE_COLORS: Final = {2: 4, 3: 12}
"""Colors of chips with several devices, whose SparseCores run collectives: by the number of whole dimensions."""


def count_colors(whole: Sequence[int], dimensions: Sequence[Dimension], count: int) -> int:
    """Returns the number of colors of an all-reduce over a group.

    Planes along z and x have more colors than others. Worked example: on 4×4×8 chips a group of the 4×4 plane has 4,
    one of 16 chips in any other shape has 1.

    Args:
        whole: the dimensions of chips (longer than 1) that the group is made of, if it fills each from end to end and
            has no other parts; otherwise empty.
        dimensions: of the torus, z, y, x and then cores, those of length 1 left out or not.
    """
    if len(whole) < 2:
        return 2 if count <= SMALL_GROUP or has_cores(dimensions) else 1
    if has_cores(dimensions):
        return _CORE_COLORS[len(whole)]
    lengths = sorted(dimensions[axis].size for axis in whole)
    if lengths[0] == lengths[-1]:
        return len(whole) * (2 if lengths[0] <= SHORT_SIDE else 1)
    if lengths[-1] == 2 * lengths[0] or len(whole) > 2:
        return len(whole)
    wide = [axis for axis, dimension in enumerate(dimensions) if dimension.size > 1 and not is_core(dimension)]
    is_outer_and_inner = len(wide) == 3 and tuple(whole) == (wide[0], wide[-1])
    return 2 if is_outer_and_inner and dimensions[wide[-1]].size <= SHORT_SIDE else 1


def has_cores(dimensions: Sequence[Dimension]) -> bool:
    """True where a chip is several devices: the last dimension is that of its cores."""
    return any(is_core(dimension) and dimension.size > 1 for dimension in dimensions)


def is_core(dimension: Dimension) -> bool:
    """True for the dimension of a chip's cores, which are less than a hop apart."""
    return dimension.step < 1


def find_whole(sizes: Sequence[int], dimensions: Sequence[Dimension], count: int) -> tuple[int, ...]:
    """Returns the dimensions of chips that a group is made of, if it consists of whole dimensions only; otherwise
    empty.

    Args:
        sizes: the number of places of the group along each dimension.
    """
    is_whole = math.prod(sizes) == count and all(size in {1, d.size} for size, d in zip(sizes, dimensions, strict=True))
    wide = (axis for axis, size in enumerate(sizes) if size > 1 and not is_core(dimensions[axis]))
    return tuple(wide) if is_whole else ()


def count_group_colors(places: Sequence[Sequence[int]], dimensions: Sequence[Dimension]) -> int:
    """Returns the number of colors of an all-reduce over the devices at these places, with one coordinate per
    dimension."""
    sizes = [len(set(values)) for values in zip(*places, strict=True)]
    return count_colors(find_whole(sizes, dimensions, len(places)), dimensions, len(places))


TURNS_MOST: Final = 24
"""The maximum number of tried orders of the axes: all orders of four."""

_FOLD: Final = (0, 1, 3, 2)


@dataclass(frozen=True)
class AxisPart:
    """The part of a dimension that an axis has: `size` places, `stride` apart.

    `folded`: the outer half of a ring of four that two axes share, laid out 0 1 3 2, so that both step to neighbors.
    """

    dimension: int
    size: int
    stride: int
    folded: bool = False

    def measure_step(self, dimensions: Sequence[Dimension]) -> float:
        """Returns the hops from one place to the next."""
        dimension = dimensions[self.dimension]
        return dimension.step if self.folded else dimension.measure(self.stride)

    def is_closed(self, dimensions: Sequence[Dimension]) -> bool:
        """Returns whether the last place is next to the first, round the torus."""
        dimension = dimensions[self.dimension]
        return dimension.is_ring and self.size * self.stride == dimension.size and not self.folded


@dataclass(frozen=True)
class AxisCut:
    """The part of a torus of one axis; an axis of size 1 has no part.

    Attributes:
        parts: in the order in which it runs through them, the slowest first.
        step: the longest step between neighbors along it, in hops, the way back to the start aside.
        links: how many links each device has to others of its group; a link over h hops counts 1/h.
        colors: the number of colors of XLA's collectives.
    """

    parts: tuple[AxisPart, ...] = ()
    step: float = 0.0
    links: float = 0.0
    colors: int = 0

    @property
    def cost(self) -> float:
        """See `price_axis`."""
        return price_axis(self.step, self.links, self.colors)


Cut = tuple[AxisCut, ...]
"""For each mesh axis, outermost first."""


def price_axis(step: float, links: float, colors: int) -> float:
    """Returns the cost of an axis, in the time of a byte over one link: its longest step, and one over the links that
    its collectives use. Devices that no straight line joins share the links of the way between them."""
    return step + 1 / min(links or 1 / step, colors) if step else 0.0


@lru_cache(maxsize=65536)
def cut_torus(
    sizes: tuple[int, ...], dimensions: tuple[Dimension, ...], weights: tuple[float, ...], *, split: bool = True
) -> Cut | None:
    """Returns the cut of a torus; None where `split` forbids every cut.

    Worked example: a mesh (8, 8) on 8×8 chips gives each axis one dimension; a mesh (4, 16) on 4×4×4 gives the
    inner axis two of them, through which it runs back and forth.

    Args:
        sizes: of the mesh, outermost first.
        dimensions: of the torus, outermost first; as many devices as the mesh has places.
        split: whether a dimension may be shared by several axes.

    Raises:
        ValueError: mesh and torus differ in the number of devices.
    """
    places, devices = math.prod(sizes), math.prod(dimension.size for dimension in dimensions)
    if places != devices:
        raise ValueError(f"a mesh of sizes {sizes} holds {places} devices, the torus has {devices}; give as many")
    wide = sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: (-weights[axis], -axis))
    turns = islice(permutations(wide), TURNS_MOST)
    found = (_cut_in_turn(turn, sizes, dimensions, split) for turn in turns)
    return min((cut for cut in found if cut), key=lambda cut: _evaluate(cut, weights), default=None)


def _cut_in_turn(
    turn: Sequence[int], sizes: Sequence[int], dimensions: tuple[Dimension, ...], split: bool
) -> Cut | None:
    cut, left = [AxisCut()] * len(sizes), tuple(dimension.size for dimension in dimensions)
    for axis in turn:
        chosen = _choose_block(sizes[axis], left, dimensions, split)
        if chosen is None:
            return None
        left, cut[axis] = chosen
    return tuple(cut)


def _evaluate(cut: Cut, weights: Sequence[float]) -> tuple[float, int, float, float]:
    """Returns the sort key of cuts; smaller is better."""
    wide = [(weight, axis) for weight, axis in zip(weights, cut, strict=True) if axis.parts]
    ways = sum(weight / axis.colors for weight, axis in wide)
    cost = sum(weight * axis.cost for weight, axis in wide)
    byte = sum(weight / axis.links for weight, axis in wide)
    step = int(max((axis.step for _, axis in wide), default=0))
    return round(ways, DIGITS), step, round(cost, DIGITS), round(byte, DIGITS)


@lru_cache(maxsize=65536)
def _choose_block(
    size: int, left: tuple[int, ...], dimensions: tuple[Dimension, ...], split: bool
) -> tuple[tuple[int, ...], AxisCut] | None:
    """Returns the remainder of each dimension, and the best block for an axis of this size."""
    found = []
    for factors in list_blocks(size, left):
        taken = zip(factors, left, dimensions, strict=True)
        if not split and any(factor not in (1, dimension.size) for factor, _, dimension in taken):
            continue
        axis = _build_axis(factors, left, dimensions)
        shared = sum(1 < factor < there for factor, there in zip(factors, left, strict=True))
        found.append(((not shared, axis.colors, axis.links, -shared, factors[::-1]), factors, axis))
    if not found:
        return None
    _, factors, axis = max(found, key=lambda each: each[0])
    return tuple(there // factor for factor, there in zip(factors, left, strict=True)), axis


def list_blocks(size: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the ways to write a size as a product of divisors of the remainder of each dimension."""
    if not left:
        if size == 1:
            yield ()
        return
    for factor in range(1, math.gcd(size, left[0]) + 1):
        if size % factor == 0 and left[0] % factor == 0:
            yield from ((factor, *rest) for rest in list_blocks(size // factor, left[1:]))


def _build_axis(factors: Sequence[int], left: Sequence[int], dimensions: Sequence[Dimension]) -> AxisCut:
    parts = []
    for number, (factor, there, dimension) in enumerate(zip(factors, left, dimensions, strict=True)):
        if factor > 1:
            stride = dimension.size // there
            folded = dimension.is_ring and dimension.size == len(_FOLD) and factor == stride == 2
            parts.append(AxisPart(number, factor, stride, folded))
    # the slowest part first: preferably one along which an axis can return to its start
    parts.sort(key=lambda p: (p.size % 2, not p.is_closed(dimensions), -p.measure_step(dimensions), p.dimension))
    steps = [part.measure_step(dimensions) for part in parts]
    ways = [2 if part.is_closed(dimensions) else 1 for part in parts]
    count = math.prod(factors)
    return AxisCut(
        tuple(parts),
        step=max(steps),
        links=sum(way / step for way, step in zip(ways, steps, strict=True)),
        colors=count_colors(find_whole(factors, dimensions, count), dimensions, count),
    )


def find_box(count: int, dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    """Returns the dimensions of the box of `count` devices that has the most links; for a count that does not fill a
    box, a line."""
    whole = tuple(dimension.size for dimension in dimensions)
    chosen = _choose_block(count, whole, dimensions, True) if count > 1 else None
    if count == math.prod(whole):
        return dimensions
    if chosen is None:
        return (Dimension(count),)
    parts = sorted(chosen[1].parts, key=lambda part: part.dimension)
    return tuple(Dimension(part.size, part.is_closed(dimensions), dimensions[part.dimension].step) for part in parts)


# ---- the places of an axis ------------------------------------------------------------------------------------------


def list_grid(cut: Cut, grid: Grid) -> tuple[int, ...]:
    """Returns the members of a grid in mesh order, row-major."""
    return tuple(map(grid.members.__getitem__, list_torus_places(cut, grid.dimensions)))


def list_torus_places(cut: Cut, dimensions: Sequence[Dimension]) -> list[int]:
    """Returns, for each place of the mesh (row-major), the place in the torus (row-major over its dimensions)."""
    strides = [math.prod(dimension.size for dimension in dimensions[axis + 1 :]) for axis in range(len(dimensions))]
    places = [sum(steps) for steps in product(*(_list_line(axis.parts, strides, dimensions) for axis in cut))]
    folded = {part.dimension for axis in cut for part in axis.parts if part.folded}
    return _fold(places, folded, strides, dimensions) if folded else places


def _fold(places: Sequence[int], folded: set[int], steps: Sequence[int], dimensions: Sequence[Dimension]) -> list[int]:
    """Returns the places with rings of four that two axes share in the order 0 1 3 2."""
    ranges = [_FOLD if axis in folded else range(dimension.size) for axis, dimension in enumerate(dimensions)]
    moved = [sum(map(operator.mul, coords, steps)) for coords in product(*ranges)]
    return [moved[place] for place in places]


def _list_line(parts: Sequence[AxisPart], strides: Sequence[int], dimensions: Sequence[Dimension]) -> list[int]:
    """Returns the offsets of an axis's places, the last part fastest."""
    steps = [[step * part.stride * strides[part.dimension] for step in range(part.size)] for part in parts]
    if len(parts) < 2 or parts[0].size % 2 or parts[0].is_closed(dimensions):
        return _list_snake(steps)
    return _list_circle(steps[0], _list_snake(steps[1:]))


def _list_snake(parts: Sequence[Sequence[int]]) -> list[int]:
    """Returns the sums of all choices of one offset a part, in an order in which consecutive choices differ in one
    part."""
    line = [0]
    for steps in parts:
        line = [start + step for turn, start in enumerate(line) for step in (steps if turn % 2 == 0 else steps[::-1])]
    return line


def _list_circle(rows: Sequence[int], path: Sequence[int]) -> list[int]:
    """Returns a way through an even number of rows, each a path, that ends beside its start.

    It skips the first place of every row on the way out, and visits these places on the way back.
    """
    there = [row + step for turn, row in enumerate(rows) for step in (path[1:] if turn % 2 == 0 else path[:0:-1])]
    return [rows[0] + path[0], *there, *(row + path[0] for row in reversed(rows[1:]))]
