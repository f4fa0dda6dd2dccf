"""The order of a granule's devices on a mesh: a torus is cut, few devices are searched exactly, others by beam.

Rule: one place decides which search is used, so that a plan and a mesh made in the trainer have the same order.
Of orders that cost the same, the plain one (as the devices are given) wins. Knows one granule at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planning.assign import EXACT_COUNT, SEARCH_COUNT_MAX, Assignment, price_order, search_order
from meshwright.planning.torus import list_torus_places, search_torus
from meshwright.topology.links import price_pairs
from meshwright.topology.model import Topology
from meshwright.topology.torus import Grid, read_grid


def search_device_order(
    sizes: tuple[int, ...], topology: Topology, indices: Sequence[int], *, split: bool = True
) -> tuple[int, ...] | None:
    """Returns the devices in mesh order, row-major; None where `split` forbids every order on a torus.

    Args:
        sizes: of the mesh, outermost first; they multiply to the number of devices.
        topology: has the devices.
        indices: those to order, in plain order.
        split: whether a dimension of a torus may be shared by several mesh axes.
    """
    grid = read_grid(topology, indices) if is_cut(len(indices), split=split) else None
    if grid is not None:
        return cut_torus(sizes, grid, split=split)
    if len(indices) > SEARCH_COUNT_MAX or topology.is_uniform:
        return tuple(indices)
    found = search_order(sizes, price_pairs(topology, indices))
    return tuple(indices[rank] for rank in found.order)


def search_assignment(sizes: tuple[int, ...], topology: Topology, indices: Sequence[int]) -> Assignment:
    """Returns the same order, as ranks in `indices`, with what it costs by the links between neighbours."""
    costs = price_pairs(topology, indices)
    grid = read_grid(topology, indices) if is_cut(len(indices)) else None
    if grid is None:
        return search_order(sizes, costs)
    ranks = {index: rank for rank, index in enumerate(indices)}
    order = tuple(ranks[index] for index in cut_torus(sizes, grid) or ())
    cost, axes = price_order(order, sizes, costs)
    return Assignment(order, cost, axes, "torus")


def is_cut(count: int, *, split: bool = True) -> bool:
    """True when so many devices of a torus are laid out by cutting it, False when all orders are searched."""
    return count > EXACT_COUNT or not split


def cut_torus(sizes: tuple[int, ...], grid: Grid, *, split: bool = True) -> tuple[int, ...] | None:
    """Returns the members of a grid in mesh order, row-major; None where `split` forbids every order."""
    found = search_torus(sizes, grid.dimensions, split=split)
    if found is None:
        return None
    return tuple(grid.members[place] for place in list_torus_places(found, grid.dimensions))
