"""The order of devices on a mesh: candidates are made for a topology, scored alike, and the best one wins.

Rule: inside a granule a torus is cut, few devices are searched exactly, others by beam; granules are joined so that
the least crosses between them. Plans and meshes made in the trainer take the same steps inside a granule. The result
never scores worse than the plain order (as the devices are given) or JAX's own, where these are measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from meshwright.planning.assign import SEARCH_COUNT_MAX, search_order
from meshwright.planning.granules import choose_dcn, interleave_granules, order_granules
from meshwright.planning.importance import Weights, weigh_positions
from meshwright.planning.jax_order import Slice, find_cuts, find_fixed_order
from meshwright.planning.score import Score, find_best, score_cuts, score_order
from meshwright.planning.torus import (
    Bounds,
    Cut,
    TorusOrder,
    list_torus_places,
    measure_bounds,
    price_cuts,
    search_torus,
)
from meshwright.topology.links import classify_link, price_pairs
from meshwright.topology.model import Topology
from meshwright.topology.torus import Dimension, Grid, read_grid

MEASURED_COUNT_MAX: Final = 1024
"""Above, a torus's plain order is not measured: the time for its cuts does not grow with the number of devices."""


@dataclass(frozen=True)
class Layout:
    """Devices in mesh order, and what they cost.

    Attributes:
        order: as indices of the topology, row-major.
        score: of this order; None where order cannot matter.
        method: how it was found.
        plain: the score of the same devices in plain order; None where it was not measured.
        jax: the score of the order that JAX gives; None where it has none, or order cannot matter.
        is_regular: all lines of an axis run over the same links, so that one tells about all.
    """

    order: tuple[int, ...]
    score: Score | None
    method: str
    plain: Score | None = None
    jax: Score | None = None
    is_regular: bool = False


@dataclass(frozen=True)
class _Candidate:
    """An order that can be listed when it is wanted, and its score."""

    score: Score
    order: tuple[int, ...] | None = None
    cuts: TorusOrder | None = None


def search_layout(
    sizes: tuple[int, ...],
    weights: Weights,
    topology: Topology,
    indices: Sequence[int],
    *,
    dcn: tuple[int, ...] | None = None,
) -> Layout:
    """Returns the best order that is known of these devices.

    Args:
        sizes: of the mesh, outermost first; they multiply to the number of devices.
        weights: how much each axis counts.
        topology: has the devices.
        indices: those to order, in plain order.
        dcn: how axes are split over granules; None: by the score.
    """
    plain = tuple(indices)
    if topology.is_uniform:
        return Layout(plain, None, "uniform", is_regular=True)
    groups = topology.group(plain)
    grid = read_grid(topology, plain) if len(groups) == 1 else None
    if grid is not None:
        found = _list_cuts(sizes, weights, topology, grid)
    else:
        found = _list_orders(sizes, weights, topology, groups, dcn)
    if grid is None or len(plain) <= MEASURED_COUNT_MAX:
        found["plain"] = _Candidate(score_order(plain, sizes, weights, topology), plain)
    allowed = found if dcn is None else {name: one for name, one in found.items() if name != "plain"}
    best = find_best({name: one.score for name, one in allowed.items()})
    chosen = found[best]
    jax = found.get("jax") or (found.get("plain") if topology.platform != "tpu" else None)
    return Layout(
        chosen.order or list_grid(chosen.cuts, grid),
        chosen.score,
        best,
        found["plain"].score if "plain" in found else None,
        jax.score if jax else None,
        is_regular=chosen.cuts is not None and not _is_twisted(topology, plain),
    )


def score_layout(
    sizes: tuple[int, ...], weights: Weights, topology: Topology, order: Sequence[int], method: str
) -> Layout:
    """Returns an order as it is, with its score and that of the same devices in plain order."""
    if topology.is_uniform:
        return Layout(tuple(order), None, method, is_regular=True)
    ranks = {index: rank for rank, index in enumerate(topology.order)}
    plain = sorted(order, key=ranks.__getitem__)
    return Layout(
        tuple(order),
        score_order(order, sizes, weights, topology),
        method,
        score_order(plain, sizes, weights, topology),
    )


def list_grid(cuts: TorusOrder | None, grid: Grid | None) -> tuple[int, ...]:
    """Returns the members of a grid in mesh order, row-major."""
    assert cuts is not None
    assert grid is not None
    return tuple(map(grid.members.__getitem__, list_torus_places(cuts, grid.dimensions)))


def _list_cuts(sizes: tuple[int, ...], weights: Weights, topology: Topology, grid: Grid) -> dict[str, _Candidate]:
    """Returns the ways to cut one torus: ours, and JAX's where it has one."""
    first = grid.members[0]
    box = read_box(topology, grid)
    ours, theirs = cut_torus(sizes, weights, grid.dimensions, box), cut_like_jax(sizes, weights, grid.dimensions, box)
    assert ours is not None, "split, a torus takes every mesh of its size"
    found = {"torus": _Candidate(_score_cuts(ours, topology, first, grid, weights, sizes), cuts=ours)}
    if isinstance(theirs, TorusOrder):
        found["jax"] = _Candidate(_score_cuts(theirs, topology, first, grid, weights, sizes), cuts=theirs)
    elif theirs is not None:
        order = tuple(grid.members[rank] for rank in theirs)
        found["jax"] = _Candidate(score_order(order, sizes, weights, topology), order)
    return found


@lru_cache(maxsize=256)
def cut_torus(
    sizes: tuple[int, ...], weights: Weights, dimensions: tuple[Dimension, ...], box: Slice, *, split: bool = True
) -> TorusOrder | None:
    """Returns how a torus is cut: no step is longer than the longest of JAX's own order, where that is known, and no
    axis's all-reduce has fewer colours than JAX would give it, were the axes in the order of their weights.

    JAX gives the last axis most; where weights follow the axes' order, that is its own order. Where its releases differ
    and both cannot be kept to, the older one counts.

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
    sizes: tuple[int, ...], weights: Weights, dimensions: tuple[Dimension, ...], box: Slice
) -> list[Bounds | None]:
    """Returns what an order should keep to, the strictest first."""
    ranked = sorted(range(len(sizes)), key=lambda axis: (weights.inside[axis], axis))
    turned = tuple(sizes[axis] for axis in ranked)
    known = []
    for core_first in (False, True):
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
    sizes: tuple[int, ...], dimensions: tuple[Dimension, ...], box: Slice, *, core_first: bool
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
    box: Slice,
    *,
    core_first: bool = True,
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


def _score_cuts(
    cuts: TorusOrder, topology: Topology, first: int, grid: Grid, weights: Weights, sizes: tuple[int, ...]
) -> Score:
    """Returns the score by the cuts; of a twisted torus, whose steps they do not know, by every device."""
    if _is_twisted(topology, [first]):
        return score_order(list_grid(cuts, grid), sizes, weights, topology)
    return score_cuts(cuts, topology, first, weights)


def _is_twisted(topology: Topology, members: Sequence[int]) -> bool:
    return topology.find_granule(topology.devices[members[0]].granule).twisted


def read_box(topology: Topology, grid: Grid) -> Slice:
    """Returns the box that a grid fills, as JAX looks at it."""
    devices = [topology.devices[grid.members[0]], topology.devices[grid.members[-1]]]
    low, high = (device.coords or () for device in devices)
    return build_box(devices[0].kind, low, high, len(grid.members))


def build_box(kind: str, low: Sequence[int], high: Sequence[int], device_count: int) -> Slice:
    """Returns the box between two corners, [x, y, z]; a dimension that coordinates do not have is 1."""
    shape = tuple(b - a + 1 for a, b in zip(low, high, strict=True))
    return Slice(kind, (*shape, 1, 1, 1)[:3], device_count // math.prod(shape), (*low, 0, 0, 0)[:3])


def _rename(cuts: Sequence[Cut], box: Slice) -> tuple[Cut, ...]:
    """Returns cuts of x, y, z and core as cuts of the grid's dimensions, which stand the other way round."""
    wide = [axis for axis in (2, 1, 0) if box.shape[axis] > 1]
    core = {len(box.physical) - 1: len(wide)} if box.cores > 1 else {}
    places = {axis: place for place, axis in enumerate(wide)} | core
    return tuple(Cut(places[cut.dimension], cut.size, cut.stride) for cut in cuts)


def _list_orders(
    sizes: tuple[int, ...],
    weights: Weights,
    topology: Topology,
    groups: Sequence[Sequence[int]],
    dcn: tuple[int, ...] | None,
) -> dict[str, _Candidate]:
    """Returns orders of devices that are no single torus: several granules, holes, or other links than a torus's."""
    methods: list[str] = []

    def order_one(inner: tuple[int, ...], counted: Weights, members: Sequence[int]) -> Sequence[int]:
        order, method = search_group(inner, counted, topology, members)
        methods.append(method)
        return order

    order = order_granules(sizes, weights, groups, order_one, dcn)
    found = {methods[0]: _Candidate(score_order(order, sizes, weights, topology), order)}
    theirs = _order_like_jax(sizes, weights, topology, groups, dcn)
    if theirs is not None:
        found["jax"] = _Candidate(score_order(theirs, sizes, weights, topology), theirs)
    return found


def _order_like_jax(
    sizes: tuple[int, ...],
    weights: Weights,
    topology: Topology,
    groups: Sequence[Sequence[int]],
    dcn: tuple[int, ...] | None,
) -> tuple[int, ...] | None:
    """Returns the order of `create_hybrid_device_mesh` over equal slices, split as here; None where JAX has none."""
    split = dcn or choose_dcn(sizes, len(groups), weights.crossing)
    if topology.platform != "tpu" or len(set(map(len, groups))) > 1 or split is None:
        return None
    inner = tuple(size // part for size, part in zip(sizes, split, strict=True))
    orders = [_cut_group_like_jax(inner, topology, members) for members in groups]
    known = [order for order in orders if order is not None]
    return interleave_granules(split, inner, known) if len(known) == len(orders) else None


def _cut_group_like_jax(sizes: tuple[int, ...], topology: Topology, members: Sequence[int]) -> tuple[int, ...] | None:
    grid = read_grid(topology, members)
    if grid is None:
        return None
    found = cut_like_jax(sizes, weigh_positions(sizes), grid.dimensions, read_box(topology, grid))
    if found is None:
        return None
    return list_grid(found, grid) if isinstance(found, TorusOrder) else tuple(grid.members[rank] for rank in found)


def search_group(
    sizes: tuple[int, ...], weights: Weights, topology: Topology, members: Sequence[int]
) -> tuple[tuple[int, ...], str]:
    """Returns the devices of one fast domain in mesh order, and how that was found.

    Args:
        sizes: of the part of the mesh that they fill.
        weights: of its axes.
        topology: has the devices.
        members: in plain order.
    """
    grid = read_grid(topology, members)
    if grid is not None:
        return list_grid(cut_torus(sizes, weights, grid.dimensions, read_box(topology, grid)), grid), "torus"
    if _are_alike(topology, members):
        return tuple(members), "uniform"
    path = _list_path(topology, members)
    if len(members) > SEARCH_COUNT_MAX:
        return path, "path"
    found = search_order(sizes, price_pairs(topology, members), weights.inside)
    orders: Mapping[str, tuple[int, ...]] = {
        found.method: tuple(members[rank] for rank in found.order),
        "path": path,
    }
    best = find_best({name: score_order(order, sizes, weights, topology) for name, order in orders.items()})
    return orders[best], best


def _are_alike(topology: Topology, members: Sequence[int]) -> bool:
    """True for GPUs that equal links join: those of a host to each other, and hosts by their NVLink domain."""
    if topology.platform != "gpu":
        return False
    inside = set(members)
    links = [link for index in members for link in topology.links_of(index) if link.a == index and link.b in inside]
    hosts = Counter(topology.places[index][0] for index in members)
    kinds = {(link.kind, link.count, link.bandwidth_bytes_per_s) for link in links}
    are_fast = len(hosts) == 1 or all(classify_link(link.kind) == "nvlink" for link in links)
    return len(kinds) < 2 and are_fast and len(links) == sum(count * (count - 1) // 2 for count in hosts.values())


def _list_path(topology: Topology, members: Sequence[int]) -> tuple[int, ...]:
    """Returns chips in an order that runs back and forth through rows and planes of their slice; others as given."""
    if topology.platform != "tpu" or any(topology.devices[index].coords is None for index in members):
        return tuple(members)

    def key(index: int) -> tuple[int, ...]:
        device = topology.devices[index]
        place: list[int] = []
        for value in reversed(device.coords or ()):
            place.append(-value if sum(map(abs, place)) % 2 else value)
        return (*place, device.core_on_chip or 0)

    return tuple(sorted(members, key=key))
