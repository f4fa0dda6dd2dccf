"""Hops between the chips of a TPU slice, by its shape, which dimensions close to rings, and whether they are twisted.

Rule: coordinates tell the distance; no link is listed. Knows no device.

A twisted torus is a grid whose short rings close with an offset of half a long one, which shortens the longest ways.
Source: J. Cámara et al., "Twisted Torus Topologies for Enhanced Interconnection Networks", IEEE TPDS 21 (2010);
N. Jouppi et al., "TPU v4: An Optically Reconfigurable Supercomputer", ISCA 2023, §2.8 (k×k×2k and k×2k×2k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Final

Coords = tuple[int, ...]

Distance = Callable[[Coords, Coords], int]
"""(one chip, another) → hops."""

_TWIST_RATIO: Final = 2
_DIMENSION_COUNT: Final = 3


def find_distance(shape: Sequence[int], wrap: Sequence[bool], *, twisted: bool = False) -> Distance:
    """Returns how far two chips of a slice are apart, in hops.

    Args:
        shape: chips in each dimension.
        wrap: which dimensions close to rings.
        twisted: the short rings close with an offset of half a long one.

    Raises:
        ValueError: a shape that cannot be twisted.
    """
    if twisted:
        return _find_twisted(tuple(shape))
    return _find_plain(tuple(shape), tuple(wrap))


@lru_cache(maxsize=64)
def _find_plain(shape: Coords, wrap: tuple[bool, ...]) -> Distance:
    rows = [
        [_measure(steps, size, is_ring=ring) for steps in range(size)] for size, ring in zip(shape, wrap, strict=True)
    ]

    def measure(one: Coords, other: Coords) -> int:
        return sum(row[abs(a - b)] for row, a, b in zip(rows, one, other, strict=True))

    return measure


def _measure(steps: int, size: int, *, is_ring: bool) -> int:
    return min(steps, size - steps) if is_ring else steps


def find_offsets(shape: Sequence[int]) -> tuple[Coords, ...] | None:
    """Returns for each dimension where a step beyond its end comes out in a twisted torus; None: it has no twist.

    Worked example: 4×4×8 gives (4, 0, 4), (0, 4, 4), (0, 0, 8): going once round x ends four chips further along z.
    """
    short, long = min(shape, default=0), max(shape, default=0)
    if len(shape) != _DIMENSION_COUNT or short < 2 or long != _TWIST_RATIO * short or set(shape) != {short, long}:
        return None
    return tuple(
        tuple(short if other == axis or (size == short and shape[other] == long) else 0 for other in range(len(shape)))
        if size == short
        else tuple(long if other == axis else 0 for other in range(len(shape)))
        for axis, size in enumerate(shape)
    )


def _find_twisted(shape: Coords) -> Distance:
    if find_offsets(shape) is None:
        raise ValueError(f"shape {shape} cannot be twisted; a twisted torus is k×k×2k or k×2k×2k, such as (4, 4, 8)")
    short, long = min(shape), max(shape)
    narrow = [axis for axis, size in enumerate(shape) if size == short]
    wide = [axis for axis, size in enumerate(shape) if size == long]
    choices = tuple(product((0, 1), repeat=len(narrow)))

    def measure(one: Coords, other: Coords) -> int:
        """Each short ring is gone round forwards or backwards: so many turns move the long dimensions along."""
        steps = [b - a for a, b in zip(one, other, strict=True)]
        turned = sum(steps[axis] // short for axis in narrow)
        near = [steps[axis] % short for axis in narrow]
        return min(
            sum(abs(step - turn * short) for step, turn in zip(near, turns, strict=True))
            + sum(_measure((steps[axis] - (turned + sum(turns)) * short) % long, long, is_ring=True) for axis in wide)
            for turns in choices
        )

    return measure
