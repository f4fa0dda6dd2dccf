"""The cost of an order of devices, independent of how it was found, so that orders can be compared.

The score of an order has three parts, compared in this order; smaller is better:

- crossing: the time of a byte between granules (slices, hosts, NVLink domains). A group of n devices on k granules
  sends (k − 1) ÷ k of its bytes over the slow network, spread over the devices that it has in each: n ÷ k of them.
- cost: the time of a byte inside granules. On a torus: an axis's longest step in hops (the way back to the start
  aside), plus one over the links that each device has to its group, as far as XLA's collectives use them. Elsewhere:
  the worst and the mean edge of the rings that the axis's lines make.
- hops: the longest step on any axis.

An axis counts by its weight (`meshwright.planning.importance`). Times are in units of PCIe 4.0 ×16 one way.

Invariant: the score depends on the order and the links only, not on how the order was found, nor on the names of
devices. Independent of the search.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from meshwright.planning.colors import count_group_colors
from meshwright.planning.importance import DIGITS, Weights
from meshwright.planning.torus import Cut, price_axis
from meshwright.topology.links import price_crossing, price_hop, price_pair
from meshwright.topology.model import Topology
from meshwright.topology.torus import Dimension, Place, find_dimensions


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
    hops: int | None
    cost: float

    @property
    def key(self) -> tuple[float, float, int]:
        """What orders are compared by; smaller is better."""
        return self.crossing, self.cost, self.hops or 0

    @classmethod
    def of(cls, axes: Sequence[AxisScore], weights: Weights) -> Score:
        """Returns the score of an order from the cost of its axes."""
        hops = [axis.hops for axis in axes if axis.hops is not None]
        return cls(
            axes=tuple(axes),
            crossing=round(sum(w * axis.crossing for w, axis in zip(weights.crossing, axes, strict=True)), DIGITS),
            hops=max(hops, default=None),
            cost=round(sum(w * axis.cost for w, axis in zip(weights.inside, axes, strict=True)), DIGITS),
        )


def score_cut(cut: Cut, topology: Topology, device: int, weights: Weights) -> Score:
    """Returns the score of an order that cuts one torus, without reading every device.

    Args:
        cut: the part of each axis.
        topology: the links.
        device: any device of the torus.
        weights: of the axes.
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
        topology: the links.
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
            known = self.topology.find_granule(granule)
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
        every = parts
        parts = list({tuple(map(self._sites.__getitem__, part)): part for part in parts}.values())
        steps = [self._measure_step(a, b) for part in parts for a, b in pairwise(part)]
        if any(step is None for step in steps):
            return AxisScore(crossing=crossing, cost=self._price_edges(every), granules=granules)
        step = max(step for step in steps if step is not None)
        ways = [self._count_ways(part) for part in parts]
        links, colors = min(links for links, _ in ways), min(colors for _, colors in ways)
        hop = price_hop(self.topology, parts[0][0])
        return AxisScore(crossing, hop * price_axis(step, links, colors), granules, step, links, colors)

    def _measure_step(self, a: int, b: int) -> float | None:
        one, other = self.topology.devices[a], self.topology.devices[b]
        hops = self.topology.hops(a, b) if one.coords and other.coords else None
        return None if hops is None else hops + 0.5 * ((one.core_on_chip or 0) != (other.core_on_chip or 0))

    def _count_ways(self, part: Sequence[int]) -> tuple[float, int]:
        """Returns how many links each device of a group has at least to others of it, and how many are used."""
        devices = [self.topology.devices[index] for index in part]
        places = [(*reversed(d.coords or ()), d.core_on_chip or 0) for d in devices]
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
        dimensions: of the torus.
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
