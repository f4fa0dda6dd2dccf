"""The order of devices on a mesh: axes are split over granules, and in each granule a torus is cut.

Rule: granules are spread over the outermost axes first (`granules.split_axes`). Inside one a torus is cut
(`torus.cut_torus`), up to eight unequal devices are searched exactly (`assign.search_order`), and others keep plain
order. Plans, prices and meshes made in the trainer take the same steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.planning.assign import EXACT_COUNT, search_order
from meshwright.planning.granules import order_granules
from meshwright.planning.importance import Weights
from meshwright.planning.score import Score, score_cut, score_order
from meshwright.planning.torus import cut_torus, list_grid
from meshwright.topology.links import classify_link, price_pairs
from meshwright.topology.model import Topology
from meshwright.topology.torus import read_grid


@dataclass(frozen=True)
class Layout:
    """Devices in mesh order, and the cost of the order.

    Attributes:
        order: as indices of the topology, row-major.
        score: of this order; None where the order does not matter.
        method: how it was found.
        is_regular: all lines of an axis run over the same links, so that one line represents all.
    """

    order: tuple[int, ...]
    score: Score | None
    method: str
    is_regular: bool = False


def search_layout(
    sizes: tuple[int, ...],
    weights: Weights,
    topology: Topology,
    indices: Sequence[int],
    *,
    dcn: tuple[int, ...] | None = None,
) -> Layout:
    """Returns the order of these devices on a mesh.

    Args:
        sizes: of the mesh, outermost first; they multiply to the number of devices.
        weights: how much each axis counts.
        topology: the devices.
        indices: the devices to order, in plain order.
        dcn: how axes are split over granules; None: by `split_axes`.
    """
    plain = tuple(indices)
    if topology.is_uniform:
        return Layout(plain, None, "uniform", is_regular=True)
    groups = topology.group(plain)
    grid = read_grid(topology, plain) if len(groups) == 1 else None
    if grid is not None and not topology.find_granule(topology.devices[plain[0]].granule).twisted:
        cut = cut_torus(sizes, grid.dimensions, weights.inside)
        assert cut is not None, "split, a torus takes every mesh of its size"
        return Layout(list_grid(cut, grid), score_cut(cut, topology, plain[0], weights), "torus", is_regular=True)
    methods: list[str] = []

    def order_one(inner: tuple[int, ...], counted: Weights, members: Sequence[int]) -> Sequence[int]:
        order, method = order_group(inner, counted, topology, members)
        methods.append(method)
        return order

    order = order_granules(sizes, weights, groups, order_one, dcn)
    return Layout(order, score_order(order, sizes, weights, topology), methods[0])


def score_layout(sizes: tuple[int, ...], weights: Weights, topology: Topology, order: Sequence[int]) -> Layout:
    """Returns a given order unchanged, with its score."""
    if topology.is_uniform:
        return Layout(tuple(order), None, "given", is_regular=True)
    return Layout(tuple(order), score_order(order, sizes, weights, topology), "given")


def order_group(
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
        cut = cut_torus(sizes, grid.dimensions, weights.inside)
        assert cut is not None, "split, a torus takes every mesh of its size"
        return list_grid(cut, grid), "torus"
    if _are_alike(topology, members):
        return tuple(members), "uniform"
    if len(members) > EXACT_COUNT:
        return tuple(members), "plain"
    ranks = search_order(sizes, price_pairs(topology, members), weights.inside)
    return tuple(members[rank] for rank in ranks), "exact"


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
