"""A mesh over several granules (slices, or hosts): how its axes are split between them, and the order that results.

Rule: axes are split so that the least has to cross between granules; of an axis that is split, the part over granules
is the outer one, so that neighbours are in one granule wherever they can be. Pure arithmetic; knows neither devices
nor links.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TypeVar

from meshwright.planning.importance import DIGITS, Weights, weigh_positions

Member = TypeVar("Member")

OrderOne = Callable[[tuple[int, ...], Weights, Sequence[Member]], Sequence[Member]]
"""(sizes, weights, members of one granule) → these in mesh order."""


def split_axes(sizes: Sequence[int], parts: int) -> tuple[int, ...] | None:
    """Returns into how many parts each axis is split, outermost axes first; None where no split makes `parts`.

    There is one exactly when `parts` divides the number of places. Worked example: sizes (3, 4) in 2 parts: (1, 2).
    """
    split = []
    for size in sizes:
        split.append(math.gcd(size, parts))
        parts //= split[-1]
    return tuple(split) if parts == 1 else None


def list_splits(sizes: Sequence[int], parts: int) -> Iterator[tuple[int, ...]]:
    """Yields all ways to split axes into `parts` parts together; each entry divides its axis."""
    if not sizes:
        if parts == 1:
            yield ()
        return
    for part in range(math.gcd(sizes[0], parts), 0, -1):
        if sizes[0] % part == 0 and parts % part == 0:
            for rest in list_splits(sizes[1:], parts // part):
                yield (part, *rest)


def price_split(sizes: Sequence[int], split: Sequence[int], weights: Sequence[float]) -> float:
    """Returns how much has to cross between granules: of an axis of n on k granules (k − 1) ÷ n, since (k − 1) ÷ k of
    its bytes are spread over the n ÷ k devices that a group has in each."""
    shares = (weight * (part - 1) / size for size, part, weight in zip(sizes, split, weights, strict=True))
    return round(sum(shares), DIGITS)


def choose_dcn(
    sizes: Sequence[int], granule_count: int, weights: Sequence[float] | None = None
) -> tuple[int, ...] | None:
    """Returns how each axis is split over granules so that the least has to cross between them; None: it cannot be.

    Of equal splits the one that splits outer axes wins. Worked example: (4, 8) on 4 granules gives (4, 1): the outer
    axis counts less, though each of its devices sends more.

    Args:
        sizes: of the mesh, outermost first.
        granule_count: how many parts.
        weights: how much each axis counts; None: inner axes before outer ones.
    """
    known = weights or weigh_positions(sizes).crossing
    return min(list_splits(sizes, granule_count), key=lambda split: price_split(sizes, split, known), default=None)


def take_dcn(sizes: Sequence[int], granule_count: int) -> tuple[int, ...] | None:
    """Returns how each axis is split over granules: the first that they divide alone, else several together."""
    for axis, size in enumerate(sizes):
        if size % granule_count == 0:
            return tuple(granule_count if other == axis else 1 for other in range(len(sizes)))
    return split_axes(sizes, granule_count)


def order_granules(
    sizes: Sequence[int],
    weights: Weights,
    granules: Sequence[Sequence[Member]],
    order_one: OrderOne[Member],
    dcn: Sequence[int] | None = None,
) -> tuple[Member, ...]:
    """Returns the members of all granules in mesh order, row-major.

    Granules of different sizes are cut into blocks of one size, which stand one after the other; a block is then what
    a granule is where all are alike.

    Args:
        sizes: of the mesh, outermost first; they multiply to the number of members.
        weights: how much each axis counts.
        granules: their members.
        order_one: (sizes, weights, members) → the members in the order of a mesh of these sizes.
        dcn: the granules (blocks) along each axis; None: chosen.
    """
    block = math.gcd(*map(len, granules))
    split = tuple(dcn) if dcn else choose_dcn(sizes, sum(map(len, granules)) // block, weights.crossing)
    assert split is not None, "blocks of one size divide the number of places"
    inner = tuple(size // part for size, part in zip(sizes, split, strict=True))
    if len(granules) == 1 and math.prod(split) == 1:
        return tuple(order_one(inner, weights, granules[0]))
    blocks: list[Sequence[Member]] = []
    for members in granules:
        count = len(members) // block
        ordered = (
            order_one(inner, weights, members) if count == 1 else order_one((count, *inner), weights.lead(), members)
        )
        blocks += [ordered[start : start + block] for start in range(0, len(ordered), block)]
    return interleave_granules(split, inner, blocks)


def interleave_granules(
    dcn: Sequence[int], inner: Sequence[int], granules: Sequence[Sequence[Member]]
) -> tuple[Member, ...]:
    """Returns the members of all granules in mesh order, row-major.

    Args:
        dcn: the granules along each axis, outermost first; they multiply to the number of granules.
        inner: the places inside a granule along each axis.
        granules: each granule's members in the order of a mesh of sizes `inner`.
    """
    lines = []
    for axis, (outer, inside) in enumerate(zip(dcn, inner, strict=True)):
        far, near = math.prod(dcn[axis + 1 :]), math.prod(inner[axis + 1 :])
        places = (divmod(place, inside) for place in range(outer * inside))
        lines.append([(granule * far, rank * near) for granule, rank in places])
    return tuple(
        granules[sum(granule for granule, _ in place)][sum(rank for _, rank in place)] for place in product(*lines)
    )
