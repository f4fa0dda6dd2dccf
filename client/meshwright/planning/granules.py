"""A mesh over several granules (slices, or hosts): how its axes are split between them, and the order that results.

Rule: of an axis that is split, the part over granules is the outer one, so that neighbours are in one granule
wherever they can be. Pure arithmetic; knows neither devices nor links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TypeVar

Member = TypeVar("Member")


def split_axes(sizes: Sequence[int], parts: int) -> tuple[int, ...] | None:
    """Returns into how many parts each axis is split, outermost axes first; None where no split makes `parts`.

    There is one exactly when `parts` divides the number of places. Worked example: sizes (3, 4) in 2 parts: (1, 2).
    """
    split = []
    for size in sizes:
        split.append(math.gcd(size, parts))
        parts //= split[-1]
    return tuple(split) if parts == 1 else None


def choose_dcn(sizes: Sequence[int], granule_count: int) -> tuple[int, ...] | None:
    """Returns how each axis is split over granules: the first that they divide alone, else several together."""
    for axis, size in enumerate(sizes):
        if size % granule_count == 0:
            return tuple(granule_count if other == axis else 1 for other in range(len(sizes)))
    return split_axes(sizes, granule_count)


def interleave_granules(
    dcn: Sequence[int], inner: Sequence[int], granules: Sequence[Sequence[Member]]
) -> tuple[Member, ...]:
    """Returns the members of all granules in mesh order, row-major.

    Args:
        dcn: the granules along each axis, outermost first; they multiply to the number of granules.
        inner: the places inside a granule along each axis.
        granules: each granule's members in the order of a mesh of sizes `inner`.
    """
    sizes = [outer * inside for outer, inside in zip(dcn, inner, strict=True)]
    order = []
    for place in product(*map(range, sizes)):
        granule = rank = 0
        for step, outer, inside in zip(place, dcn, inner, strict=True):
            granule, rank = granule * outer + step // inside, rank * inside + step % inside
        order.append(granules[granule][rank])
    return tuple(order)
