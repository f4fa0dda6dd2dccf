"""One torus and one mesh: the cuts that are taken, and those that JAX's own order makes of the same devices.

Rule: JAX's order bounds ours (steps, colours), so that no axis is worse off. Grids number their dimensions from the
outermost (z, y, x, core), JAX numbers x, y, z, core: only this module knows both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from meshwright.planning.importance import Weights, weigh_positions
from meshwright.planning.jax_order import Box, find_cuts, find_fixed_order, is_core_first
from meshwright.planning.torus import (
    Bounds,
    Cut,
    TorusOrder,
    list_torus_places,
    measure_bounds,
    price_cuts,
    search_torus,
)
from meshwright.topology.model import Topology
from meshwright.topology.torus import Dimension, Grid


@lru_cache(maxsize=256)
def cut_torus(
    sizes: tuple[int, ...], weights: Weights, dimensions: tuple[Dimension, ...], box: Box, *, split: bool = True
) -> TorusOrder | None:
    """Returns how a torus is cut: no step is longer than the longest of JAX's own order, where that is known, and no
    axis's all-reduce has fewer colours than JAX would give it, were the axes in the order of their weights.

    JAX gives the last axis most; where weights follow the axes' order, that is its own order. Where its releases differ
    and both cannot be kept to, the one that is installed here counts.

    Args:
        sizes: of the mesh, outermost first.
        weights: how much each axis counts.
        dimensions: of the torus, outermost first.
        box: the same torus as JAX looks at it.
        split: whether a dimension of the torus may be shared by several axes; None is returned where it must be and
            may not.
    """
    for bounds in _list_bounds(sizes, weights, dimensions, box):
        found = search_torus(sizes, dimensions, weights.inside, bounds=bounds, split=split)
        if found is not None:
            return found
    return None


def _list_bounds(
    sizes: tuple[int, ...], weights: Weights, dimensions: tuple[Dimension, ...], box: Box
) -> list[Bounds | None]:
    """Returns what an order should keep to, the strictest first."""
    ranked = sorted(range(len(sizes)), key=lambda axis: (weights.inside[axis], axis))
    turned = tuple(sizes[axis] for axis in ranked)
    known = []
    for core_first in (is_core_first(), not is_core_first()):
        theirs = _measure_jax(sizes, dimensions, box, core_first=core_first)
        wanted = _measure_jax(turned, dimensions, box, core_first=core_first)
        if theirs is None or wanted is None:
            return [None]
        colours = dict(zip(ranked, wanted.colours, strict=True))
        known.append(Bounds(theirs.hops, tuple(colours[axis] for axis in range(len(sizes)))))
    hops = min(bounds.hops for bounds in known)
    both = tuple(map(max, zip(*(bounds.colours for bounds in known), strict=True)))
    return [Bounds(hops, both), *known, Bounds(hops), None]


def _measure_jax(
    sizes: tuple[int, ...], dimensions: tuple[Dimension, ...], box: Box, *, core_first: bool
) -> Bounds | None:
    theirs = cut_like_jax(sizes, weigh_positions(sizes), dimensions, box, core_first=core_first)
    if theirs is None:
        return None
    if isinstance(theirs, TorusOrder):
        return Bounds(theirs.score[1], theirs.colours)
    return measure_bounds(sizes, dimensions, theirs)


def cut_like_jax(
    sizes: tuple[int, ...],
    weights: Weights,
    dimensions: tuple[Dimension, ...],
    box: Box,
    *,
    core_first: bool | None = None,
) -> TorusOrder | tuple[int, ...] | None:
    """Returns JAX's own order of a torus: its cuts, or the places (row-major) where it is a fixed one; None: it has
    none."""
    fixed = find_fixed_order(sizes, box)
    if fixed is not None:
        return fixed
    cuts = find_cuts(sizes, box, core_first=core_first)
    if cuts is None:
        return None
    return price_cuts([_rename(axis, box) for axis in cuts], dimensions, weights.inside, is_plain=True)


def read_box(topology: Topology, grid: Grid) -> Box:
    """Returns the box that a grid fills, as JAX looks at it."""
    devices = [topology.devices[grid.members[0]], topology.devices[grid.members[-1]]]
    low, high = (device.coords or () for device in devices)
    return build_box(devices[0].kind, low, high, len(grid.members))


def build_box(kind: str, low: Sequence[int], high: Sequence[int], device_count: int) -> Box:
    """Returns the box between two corners, [x, y, z]; a dimension that coordinates do not have is 1."""
    shape = tuple(b - a + 1 for a, b in zip(low, high, strict=True))
    return Box(kind, (*shape, 1, 1, 1)[:3], device_count // math.prod(shape), (*low, 0, 0, 0)[:3])


def _rename(cuts: Sequence[Cut], box: Box) -> tuple[Cut, ...]:
    """Returns cuts of x, y, z and core as cuts of the grid's dimensions, which stand the other way round."""
    wide = [axis for axis in (2, 1, 0) if box.shape[axis] > 1]
    core = {len(box.physical) - 1: len(wide)} if box.cores > 1 else {}
    places = {axis: place for place, axis in enumerate(wide)} | core
    return tuple(Cut(places[cut.dimension], cut.size, cut.stride) for cut in cuts)


def list_grid(cuts: TorusOrder | None, grid: Grid | None) -> tuple[int, ...]:
    """Returns the members of a grid in mesh order, row-major."""
    assert cuts is not None
    assert grid is not None
    return tuple(map(grid.members.__getitem__, list_torus_places(cuts, grid.dimensions)))
