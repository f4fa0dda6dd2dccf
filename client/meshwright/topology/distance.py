"""Hops between the chips of a TPU slice, by its shape, which dimensions close to rings, and whether they are twisted.

Rule: coordinates tell the distance; no link is listed. Knows no device.

A twisted torus is a grid whose short rings close with an offset of half a long one, which shortens the longest ways.
Source: J. Cámara et al., "Twisted Torus Topologies for Enhanced Interconnection Networks", IEEE TPDS 21 (2010);
N. Jouppi et al., "TPU v4: An Optically Reconfigurable Supercomputer", ISCA 2023, §2.8 (k×k×2k and k×2k×2k).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Final

Coords = tuple[int, ...]

Distance = Callable[[Coords, Coords], int]
"""(one chip, another) → hops."""

_TWIST_RATIO: Final = 2


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
    rows = [[_measure(steps, size, ring) for steps in range(size)] for size, ring in zip(shape, wrap, strict=True)]

    def measure(one: Coords, other: Coords) -> int:
        return sum(row[abs(a - b)] for row, a, b in zip(rows, one, other, strict=True))

    return measure


def _measure(steps: int, size: int, is_ring: bool) -> int:
    return min(steps, size - steps) if is_ring else steps


def find_offsets(shape: Sequence[int]) -> tuple[Coords, ...] | None:
    """Returns for each dimension where a step beyond its end comes out in a twisted torus; None: it has no twist.

    Worked example: 4×4×8 gives (4, 0, 4), (0, 4, 4), (0, 0, 8): going once round x ends four chips further along z.
    """
    short, long = min(shape), max(shape)
    if long != _TWIST_RATIO * short or set(shape) != {short, long}:
        return None
    return tuple(
        tuple(short if other == axis or (size == short and shape[other] == long) else 0 for other in range(len(shape)))
        if size == short
        else tuple(long if other == axis else 0 for other in range(len(shape)))
        for axis, size in enumerate(shape)
    )


@lru_cache(maxsize=16)
def _find_twisted(shape: Coords) -> Distance:
    offsets = find_offsets(shape)
    if offsets is None:
        raise ValueError(f"shape {shape} cannot be twisted; a twisted torus is k×k×2k or k×2k×2k, such as (4, 4, 8)")
    hops = _search(shape, offsets)

    def measure(one: Coords, other: Coords) -> int:
        return hops[_fold([b - a for a, b in zip(one, other, strict=True)], shape, offsets)]

    return measure


def _search(shape: Coords, offsets: Sequence[Coords]) -> dict[Coords, int]:
    """Returns the hops from the origin to every chip; the torus looks the same from each."""
    origin = (0,) * len(shape)
    hops, queue = {origin: 0}, deque([origin])
    while queue:
        here = queue.popleft()
        for axis, step in product(range(len(shape)), (1, -1)):
            moved = [value + step * (axis == other) for other, value in enumerate(here)]
            there = _fold(moved, shape, offsets)
            if there not in hops:
                hops[there] = hops[here] + 1
                queue.append(there)
    return hops


def _fold(coords: Sequence[int], shape: Coords, offsets: Sequence[Coords]) -> Coords:
    """Returns the chip of the slice that coordinates outside of it mean: short dimensions first: they move others."""
    place = list(coords)
    for axis in sorted(range(len(shape)), key=shape.__getitem__):
        turns = place[axis] // shape[axis]
        place = [value - turns * offset for value, offset in zip(place, offsets[axis], strict=True)]
    return tuple(place)
