"""The order of devices on a mesh: axes are split over granules, and in each granule a torus is cut.

Rule: granules are spread over the outermost axes first (`granules.split_axes`). Inside one a torus is cut
(`torus.cut_torus`), up to eight unequal devices are searched exactly (`search_order`), and others keep plain
order. Plans, prices and meshes made in the trainer take the same steps.

The score of an order has three parts, compared in this order; smaller is better:

- crossing: the time of a byte between granules (slices, hosts, NVLink domains). A group of n devices on k granules
  sends (k − 1) ÷ k of its bytes over the slow network, spread over the devices that it has in each: n ÷ k of them.
- cost: the time of a byte inside granules. On a torus: an axis's longest step in hops (the way back to the start
  aside), plus one over the links that each device has to its group, as far as XLA's collectives use them. Elsewhere:
  the worst and the mean edge of the rings that the axis's lines make.
- hops: the longest step on any axis.

An axis counts by its weight (`meshwright.planning.granules`). Times are in units of PCIe 4.0 ×16 one way.

The score depends on the order and the links only, not on how the order was found, nor on the names of devices.

The exact search makes every line of the mesh along an axis of size n a ring of n devices (a pair for n = 2). The cost
of an axis is its worst edge plus its mean edge, over all rings: the worst bounds a ring's speed, and the mean measures
how many links the rings load. Every device is placed once, and the result costs no more than the plain order, which
wins ties. No renaming of devices can change the cost.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from meshwright.planning.granules import DIGITS, Weights, order_granules
from meshwright.planning.torus import Cut, count_group_colors, cut_torus, list_grid, price_axis
from meshwright.topology.identity import canonical
from meshwright.topology.links import classify_link, price_crossing, price_hop, price_pair, price_pairs
from meshwright.topology.model import Topology
from meshwright.topology.torus import Dimension, Place, find_dimensions, read_grid

Costs = tuple[tuple[float, ...], ...]
"""Relative cost between devices, [device, device], symmetric, 0 on the diagonal."""

EXACT_COUNT: Final = 8
EXACT_STEPS: Final = 6_000
"""Partial orders that the search may visit before it returns the best so far: about 10 ms."""

_EPSILON: Final = 1e-12


@lru_cache(maxsize=256)
def _list_all_edges(sizes: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Returns for each axis the pairs of places that its rings join."""
    places = range(math.prod(sizes))
    return tuple(
        tuple(edge for line in list_lines(sizes, axis, places) for edge in list_edges(line))
        for axis in range(len(sizes))
    )


def price_order(order: Sequence[int], sizes: Sequence[int], costs: Costs, weights: Sequence[float]) -> float:
    """Returns the relative cost of an order.

    Args:
        order: indices into `costs`, row-major. Their number is the product of `sizes`.
        sizes: of the mesh, outermost first.
        costs: relative cost of each pair, [device, device].
        weights: how much each axis counts.
    """
    total = 0.0
    for weight, edges in zip(weights, _list_all_edges(tuple(sizes)), strict=True):
        paid = [costs[order[a]][order[b]] for a, b in edges]
        total += weight * (max(paid, default=0.0) + sum(paid) / (len(paid) or 1))
    return total


@lru_cache(maxsize=512)
def search_order(sizes: tuple[int, ...], costs: Costs, weights: tuple[float, ...]) -> tuple[int, ...]:
    """Returns the cheapest order of all devices in `costs` (up to `EXACT_COUNT`) on a mesh of `sizes`, row-major.

    Worked example: four cards, 0–2 and 1–3 behind one switch each, mesh (2, 2): the inner axis goes over the
    switches, so the order is (0, 2, 1, 3).

    Branch and bound over the places, row-major. Among orders of equal cost the lexicographically first wins. A ring can
    be rotated without a change of cost, so device 0 is first. It can be reversed, so its second device is lower than
    its last. Of interchangeable devices only the lowest free one is tried.
    """
    count = len(costs)
    best = tuple(range(count))
    if len({cost for rank, row in enumerate(costs) for cost in row[:rank]}) <= 1:
        return best
    axes = _list_all_edges(sizes)
    scale = [weight / (len(edges) or 1) for weight, edges in zip(weights, axes, strict=True)]
    earlier = [[(min(e), axis) for axis, edges in enumerate(axes) for e in edges if max(e) == p] for p in range(count)]
    nearest = min(cost for rank, row in enumerate(costs) for cost in row[:rank])
    least = [nearest * sum(scale[axis] for _, axis in pairs) for pairs in earlier]  # that a place adds to the means
    left = [sum(least[place:]) for place in range(count + 1)]
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    mirrors = {(size - 1) * stride: stride for size, stride in zip(sizes, strides, strict=True) if size > 2}
    twins = _find_twins(costs)
    best_cost, steps = price_order(best, sizes, costs, weights), 0

    def extend(order: tuple[int, ...], worst: list[float], means: float) -> None:
        nonlocal best, best_cost, steps
        place = len(order)
        if place == count:
            best, best_cost = order, sum(map(operator.mul, weights, worst)) + means
            return
        for device in range(count):
            if steps > EXACT_STEPS:
                return
            is_mirrored = place in mirrors and order[mirrors[place]] > device
            if device in order or is_mirrored or any(twin not in order for twin in twins[device]):
                continue
            steps += 1
            grown, more, row = worst.copy(), means, costs[device]
            for before, axis in earlier[place]:
                cost = row[order[before]]
                more += scale[axis] * cost
                grown[axis] = max(grown[axis], cost)
            if sum(map(operator.mul, weights, grown)) + more + left[place + 1] < best_cost - _EPSILON:
                extend((*order, device), grown, more)

    extend((0,), [nearest if weight else 0.0 for weight in weights], 0.0)
    return best


def _find_twins(costs: Costs) -> tuple[tuple[int, ...], ...]:
    """Returns, per device, the lower-numbered devices with the same costs to all others."""
    everyone = range(len(costs))
    return tuple(
        tuple(a for a in range(b) if all(costs[a][x] == costs[b][x] for x in everyone if x not in (a, b)))
        for b in everyone
    )


def search_subset(count: int, costs: Costs) -> tuple[int, ...]:
    """Returns `count` devices that are together as near as can be, in plain order.

    Grown from every device as the first one, by the nearest next; the cheapest of these sets, and of equal ones the one
    with the lowest devices, wins.
    """
    everyone = range(len(costs))
    if count >= len(costs):
        return tuple(everyone)
    return min(_grow(start, count, costs) for start in everyone)[1]


def _grow(start: int, count: int, costs: Costs) -> tuple[float, tuple[int, ...]]:
    chosen, total = [start], 0.0
    distance = {device: costs[start][device] for device in range(len(costs)) if device != start}
    while len(chosen) < count:
        added, device = min((cost, device) for device, cost in distance.items())
        del distance[device]
        chosen.append(device)
        total += added
        for other in distance:
            distance[other] += costs[device][other]
    return round(total, 9), tuple(sorted(chosen))


@dataclass(frozen=True)
class AxisScore:
    """The cost of one axis, before weighting.

    Attributes:
        crossing: time of a byte between granules; 0 within one.
        cost: time of a byte inside.
        granules: over how many a group spreads, at most.
        step: the longest step between neighbors in hops, the cores of a chip half a hop apart; None off the torus.
        links: that each device has at least to others of its group, one over h hops counts 1/h; None off the torus.
        colors: how many of these links XLA's collectives use at once; None off the torus.
    """

    crossing: float = 0.0
    cost: float = 0.0
    granules: int = 1
    step: float | None = None
    links: float | None = None
    colors: int | None = None

    @property
    def hops(self) -> int | None:
        """The longest step in whole hops: two cores of one chip are 0 apart."""
        return None if self.step is None else int(self.step)


@dataclass(frozen=True)
class Score:
    """What an order costs."""

    axes: tuple[AxisScore, ...]
    crossing: float
    hops: int
    cost: float

    @property
    def key(self) -> tuple[float, float, int]:
        """What orders are compared by; smaller is better."""
        return self.crossing, self.cost, self.hops

    @classmethod
    def of(cls, axes: Sequence[AxisScore], weights: Weights) -> Score:
        """Returns the score of an order from the cost of its axes."""
        return cls(
            axes=tuple(axes),
            crossing=round(sum(w * axis.crossing for w, axis in zip(weights.crossing, axes, strict=True)), DIGITS),
            hops=max((axis.hops or 0 for axis in axes), default=0),
            cost=round(sum(w * axis.cost for w, axis in zip(weights.inside, axes, strict=True)), DIGITS),
        )


def score_cut(cut: Cut, topology: Topology, device: int, weights: Weights) -> Score:
    """Returns the score of an order that cuts one torus, without reading every device.

    Args:
        device: any device of the torus.
    """
    hop = price_hop(topology, device)
    axes = [
        AxisScore(cost=hop * axis.cost, step=axis.step, links=axis.links, colors=axis.colors)
        if axis.parts
        else AxisScore()
        for axis in cut
    ]
    return Score.of(axes, weights)


def score_order(order: Sequence[int], sizes: Sequence[int], weights: Weights, topology: Topology) -> Score:
    """Returns the score of any order, measured on every line of every axis.

    Args:
        order: devices in mesh order, row-major, as indices of the topology.
        sizes: of the mesh, outermost first.
        weights: one per axis.
    """
    scorer = _Scorer(topology, order)
    return Score.of([scorer.measure(list_lines(sizes, axis, order)) for axis in range(len(sizes))], weights)


def list_lines(sizes: Sequence[int], axis: int, order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the lines of a mesh along one axis: the devices, one tuple for each place on the other axes."""
    size, stride = sizes[axis], math.prod(sizes[axis + 1 :])
    span = size * stride
    return tuple(
        tuple(order[start : start + span : stride])
        for first in range(0, len(order), span)
        for start in range(first, first + stride)
    )


class _Scorer:
    """Measures the axes of one order of devices. The torus is the box that they span in each granule."""

    def __init__(self, topology: Topology, order: Sequence[int]) -> None:
        self.topology = topology
        self.is_torus = topology.platform == "tpu"
        members: dict[int, list[int]] = defaultdict(list)
        for index in order if self.is_torus else ():
            members[topology.places[index][0]].append(index)
        self._dimensions = {granule: find_dimensions(topology, indices) for granule, indices in members.items()}
        self._sites = self._number_sites(members)

    def _number_sites(self, members: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Returns a number for each device, equal for devices at the same place of equal slices."""
        sites: dict[object, int] = {}
        found = {}
        for granule, indices in members.items():
            known = self.topology.by_ordinal[granule]
            kind = (known.shape, known.wrap, known.twisted) if known.shape and known.wrap else granule
            torus = sites.setdefault((kind, tuple(self._dimensions[granule])), len(sites))
            for index in indices:
                device = self.topology.devices[index]
                site = (torus, device.coords or index, device.core_on_chip)
                found[index] = sites.setdefault(site, len(sites))
        return found

    def measure(self, lines: Sequence[Sequence[int]]) -> AxisScore:
        """Returns the cost of an axis over all its lines."""
        if len(lines[0]) == 1:
            return AxisScore()
        groups = [self.topology.group(line) for line in lines]
        granules = max(map(len, groups))
        crossing = max(self._price_crossing(group) for group in groups) if granules > 1 else 0.0
        parts = [part for group in groups for part in group if len(part) > 1]
        if not parts:
            return AxisScore(crossing=crossing, granules=granules)
        if self.is_torus:
            return self._measure_torus(parts, crossing, granules)
        return AxisScore(crossing=crossing, cost=self._price_edges(parts), granules=granules)

    def _price_crossing(self, group: Sequence[Sequence[int]]) -> float:
        share = (len(group) - 1) / len(group) / min(map(len, group))
        return share * price_crossing(self.topology, group[0][0])

    def _measure_torus(self, parts: Sequence[Sequence[int]], crossing: float, granules: int) -> AxisScore:
        unlike = list({tuple(map(self._sites.__getitem__, part)): part for part in parts}.values())
        steps = [self._measure_step(a, b) for part in unlike for a, b in pairwise(part)]
        if None in steps:
            return AxisScore(crossing=crossing, cost=self._price_edges(parts), granules=granules)
        step = max(step for step in steps if step is not None)
        ways = [self._count_ways(part) for part in unlike]
        links, colors = min(links for links, _ in ways), min(colors for _, colors in ways)
        hop = price_hop(self.topology, parts[0][0])
        return AxisScore(crossing, hop * price_axis(step, links, colors), granules, step, links, colors)

    def _measure_step(self, a: int, b: int) -> float | None:
        one, other = self.topology.devices[a], self.topology.devices[b]
        hops = self.topology.hops(a, b)
        return None if hops is None else hops + 0.5 * ((one.core_on_chip or 0) != (other.core_on_chip or 0))

    def _count_ways(self, part: Sequence[int]) -> tuple[float, int]:
        """Returns how many links each device of a group has at least to others of it, and how many are used."""
        devices = [self.topology.devices[index] for index in part]
        places = [canonical(d.coords, d.core_on_chip) for d in devices]
        dimensions = self._dimensions[devices[0].granule]
        return count_links(places, dimensions), count_group_colors(places, dimensions)

    def _price_edges(self, parts: Sequence[Sequence[int]]) -> float:
        edges = [edge for part in parts for edge in list_edges(part)]
        costs = [price_pair(self.topology, *edge) for edge in edges]
        return max(costs) + sum(costs) / len(costs)


def list_edges(line: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the pairs that a ring over a line joins: neighbors and, for more than two, last and first."""
    edges = list(pairwise(line))
    return [*edges, (line[-1], line[0])] if len(line) > 2 else edges


def count_links(places: Sequence[Place], dimensions: Sequence[Dimension]) -> float:
    """Returns how many links each device of a group has at least to others of it, straight along a dimension.

    A link over h hops counts 1/h, since the groups between share the way. Round a ring the shorter way counts, and
    both where they are equally long.

    Args:
        places: of the group's devices, one coordinate a dimension.
    """
    links: dict[Place, float] = dict.fromkeys(places, 0.0)
    for axis, dimension in enumerate(dimensions):
        if dimension.size < 2:
            continue
        lines: dict[Place, list[int]] = defaultdict(list)
        for place in places:
            lines[(*place[:axis], *place[axis + 1 :])].append(place[axis])
        for others, line in lines.items():
            for value, ways in _count_ways(tuple(sorted(line)), dimension):
                links[(*others[:axis], value, *others[axis:])] += ways
    return min(links.values())


@lru_cache(maxsize=4096)
def _count_ways(line: tuple[int, ...], dimension: Dimension) -> tuple[tuple[int, float], ...]:
    """Returns for each place on a straight line the weight of its links to the next places."""
    ways = dict.fromkeys(line, 0.0)
    for a, b, gap in _list_gaps(line, dimension):
        ways[a] += 1 / (gap * dimension.step)
        ways[b] += 1 / (gap * dimension.step)
    return tuple(ways.items())


def _list_gaps(line: Sequence[int], dimension: Dimension) -> Iterator[tuple[int, int, int]]:
    for a, b in pairwise(line):
        if not dimension.is_ring or b - a <= dimension.size / 2:
            yield a, b, b - a
    gap = line[0] + dimension.size - line[-1]
    if dimension.is_ring and len(line) > 1 and gap <= dimension.size / 2:
        yield line[-1], line[0], gap


@dataclass(frozen=True)
class DeviceOrder:
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
) -> DeviceOrder:
    """Returns the order of these devices on a mesh.

    Args:
        sizes: of the mesh, outermost first; they multiply to the number of devices.
        weights: how much each axis counts.
        indices: the devices to order, in plain order.
        dcn: how axes are split over granules; None: by `split_axes`.
    """
    plain = tuple(indices)
    if topology.is_uniform:
        return DeviceOrder(plain, None, "uniform", is_regular=True)
    groups = topology.group(plain)
    grid = read_grid(topology, plain) if len(groups) == 1 else None
    if grid is not None and not topology.by_ordinal[topology.devices[plain[0]].granule].twisted:
        cut = cut_torus(sizes, grid.dimensions, weights.inside)
        assert cut is not None, "split, a torus takes every mesh of its size"
        return DeviceOrder(list_grid(cut, grid), score_cut(cut, topology, plain[0], weights), "torus", is_regular=True)
    methods: list[str] = []

    def order_one(inner: tuple[int, ...], counted: Weights, members: Sequence[int]) -> Sequence[int]:
        order, method = order_group(inner, counted, topology, members)
        methods.append(method)
        return order

    order = order_granules(sizes, weights, groups, order_one, dcn)
    return DeviceOrder(order, score_order(order, sizes, weights, topology), methods[0])


def score_layout(sizes: tuple[int, ...], weights: Weights, topology: Topology, order: Sequence[int]) -> DeviceOrder:
    """Returns a given order unchanged, with its score."""
    score = None if topology.is_uniform else score_order(order, sizes, weights, topology)
    return DeviceOrder(tuple(order), score, "given", is_regular=topology.is_uniform)


def order_group(
    sizes: tuple[int, ...], weights: Weights, topology: Topology, members: Sequence[int]
) -> tuple[tuple[int, ...], str]:
    """Returns the devices of one fast domain in mesh order, and how that was found.

    Args:
        sizes: of the part of the mesh that they fill.
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
    kinds = {(link.kind, link.bandwidth_bytes_per_s) for link in links}
    are_fast = len(hosts) == 1 or all(classify_link(link.kind) == "nvlink" for link in links)
    return len(kinds) < 2 and are_fast and len(links) == sum(count * (count - 1) // 2 for count in hosts.values())
