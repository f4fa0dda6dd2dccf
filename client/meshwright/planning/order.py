"""The order of devices on a mesh: candidates are made for a topology, scored alike, and the best one wins.

Rule: inside a granule a torus is cut, few devices are searched exactly, others by beam. Granules are spread over the
outermost axes first (`granules.split_axes`). Plans and meshes made in the trainer take the same steps. On one granule
the result never scores worse than the plain order (as the devices are given) or JAX's own, where these are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.planning.assign import SEARCH_COUNT_MAX, search_order
from meshwright.planning.cutting import cut_like_jax, cut_torus, list_grid, read_box
from meshwright.planning.device_selection import sort_plain
from meshwright.planning.granules import interleave_granules, order_granules, split_axes
from meshwright.planning.importance import Weights, weigh_positions
from meshwright.planning.score import Score, find_best, score_cuts, score_order
from meshwright.planning.torus import TorusOrder
from meshwright.topology.links import classify_link, price_pairs
from meshwright.topology.model import Topology
from meshwright.topology.torus import Grid, read_grid, turn_back

MEASURED_COUNT_MAX: Final = 1024
"""Above, a torus's plain order is not measured: the time for its cuts does not grow with the number of devices."""


@dataclass(frozen=True)
class Layout:
    """Devices in mesh order, and what they cost.

    Attributes:
        order: as indices of the topology, row-major.
        score: of this order; None where order cannot matter.
        method: how it was found.
        jax: the score of the order that JAX gives; None where it has none, or order cannot matter.
        is_regular: all lines of an axis run over the same links, so that one tells about all.
    """

    order: tuple[int, ...]
    score: Score | None
    method: str
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
    """Returns the best order that is known of these devices; over equal granules, of those that split axes alike.

    Args:
        sizes: of the mesh, outermost first; they multiply to the number of devices.
        weights: how much each axis counts.
        topology: has the devices.
        indices: those to order, in plain order.
        dcn: how axes are split over granules; None: by `split_axes`.
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
    is_split = len(groups) > 1 and len(set(map(len, groups))) == 1
    best = find_best({name: one.score for name, one in found.items() if name != "plain" or not is_split})
    chosen = found[best]
    jax = found.get("jax") or (found.get("plain") if topology.platform != "tpu" else None)
    return Layout(
        chosen.order or list_grid(chosen.cuts, grid),
        chosen.score,
        best,
        jax.score if jax else None,
        is_regular=chosen.cuts is not None and not _is_twisted(topology, plain),
    )


def score_layout(sizes: tuple[int, ...], weights: Weights, topology: Topology, order: Sequence[int]) -> Layout:
    """Returns a given order as it is, with its score and that of the same devices in JAX's order."""
    if topology.is_uniform:
        return Layout(tuple(order), None, "given", is_regular=True)
    plain = sort_plain(topology, order)
    groups = topology.group(plain)
    grid = read_grid(topology, plain) if len(groups) == 1 else None
    jax = score_order(plain, sizes, weights, topology) if topology.platform != "tpu" else None
    if grid is not None:
        theirs = _cut_grid_like_jax(sizes, weights, topology, grid)
        jax = theirs.score if theirs else None
    elif (hybrid := _order_like_jax(sizes, weights, topology, groups, None)) is not None:
        jax = score_order(hybrid, sizes, weights, topology)
    return Layout(tuple(order), score_order(order, sizes, weights, topology), "given", jax)


def _list_cuts(sizes: tuple[int, ...], weights: Weights, topology: Topology, grid: Grid) -> dict[str, _Candidate]:
    """Returns the ways to cut one torus: ours, and JAX's where it has one."""
    ours = cut_torus(sizes, weights, grid.dimensions, read_box(topology, grid))
    assert ours is not None, "split, a torus takes every mesh of its size"
    theirs = _cut_grid_like_jax(sizes, weights, topology, grid)
    found = {"torus": _Candidate(_score_cuts(ours, topology, grid, weights, sizes), cuts=ours)}
    return found if theirs is None else {**found, "jax": theirs}


def _cut_grid_like_jax(sizes: tuple[int, ...], weights: Weights, topology: Topology, grid: Grid) -> _Candidate | None:
    theirs = cut_like_jax(sizes, weights, grid.dimensions, read_box(topology, grid))
    if theirs is None:
        return None
    if isinstance(theirs, TorusOrder):
        return _Candidate(_score_cuts(theirs, topology, grid, weights, sizes), cuts=theirs)
    order = tuple(grid.members[rank] for rank in theirs)
    return _Candidate(score_order(order, sizes, weights, topology), order)


def _score_cuts(cuts: TorusOrder, topology: Topology, grid: Grid, weights: Weights, sizes: tuple[int, ...]) -> Score:
    """Returns the score by the cuts; of a twisted torus, whose steps they do not know, by every device."""
    if _is_twisted(topology, grid.members):
        return score_order(list_grid(cuts, grid), sizes, weights, topology)
    return score_cuts(cuts, topology, grid.members[0], weights)


def _is_twisted(topology: Topology, members: Sequence[int]) -> bool:
    return topology.find_granule(topology.devices[members[0]].granule).twisted


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
    split = dcn or split_axes(sizes, len(groups), weights.turns)
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
        return (*turn_back((device.coords or ())[::-1]), device.core_on_chip or 0)

    return tuple(sorted(members, key=key))
