"""Mesh shapes near the one that was asked for, and that work: what a refusal offers instead. Knows no
devices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

from meshwright.spec import MeshSpec


def search_shapes(spec: MeshSpec, device_count: int, *, most: int = 2) -> tuple[MeshSpec, ...]:
    """Returns shapes with the same axes for exactly `device_count` devices, the nearest first.

    Near means: few axes change, and by small factors. An axis that is -1 in `spec` may take any size. Worked
    example: dp:3,tp:2 on 8 devices gives dp:4,tp:2 first.
    """
    if device_count < 1:
        return ()
    found = {shape for shape in _yield_shapes(spec.sizes, device_count) if math.prod(shape) == device_count}
    nearest = sorted(found, key=lambda shape: _measure_distance(spec.sizes, shape))
    return tuple(MeshSpec(tuple(zip(spec.names, shape, strict=True))) for shape in nearest[:most])


def _measure_distance(asked: tuple[int, ...], shape: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
    factors = [abs(math.log(b / a)) for a, b in zip(asked, shape, strict=True) if a != -1]
    return round(sum(factors), 9), sum(factor > 0 for factor in factors), tuple(-size for size in shape)


def _yield_shapes(sizes: tuple[int, ...], device_count: int) -> Iterator[tuple[int, ...]]:
    """Yields candidates: all but one or two axes kept; and inner axes cut down to divisors."""
    divisors = [size for size in range(1, device_count + 1) if device_count % size == 0]
    axes = range(len(sizes))
    known = [max(size, 1) for size in sizes]
    for axis in axes:
        rest = math.prod(known[:axis] + known[axis + 1 :])
        yield (*known[:axis], max(device_count // rest, 1), *known[axis + 1 :])
    for one, other in permutations(axes, 2):
        for size in divisors:
            shape = list(known)
            shape[one] = size
            rest = math.prod(shape[:other] + shape[other + 1 :])
            shape[other] = max(device_count // rest, 1)
            yield tuple(shape)
    shape, left = [1] * len(sizes), device_count
    for axis in reversed(axes):
        shape[axis] = left if axis == 0 else max(d for d in divisors if left % d == 0 and d <= known[axis])
        left //= shape[axis]
    yield tuple(shape)
