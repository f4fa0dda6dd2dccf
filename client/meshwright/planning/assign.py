"""Exact search for the order of a few unequal devices, such as PCIe cards of one host, on a mesh.

The objective: an axis of size n makes every line of the mesh along it a ring of n devices (a pair for n = 2). The cost
of an axis is its worst edge plus its mean edge, over all rings: the worst bounds a ring's speed, and the mean measures
how many links the rings load. The weight of an axis comes from `meshwright.planning.importance`.

Invariant: every device is placed once, and the result costs no more than the plain order, which wins ties. No renaming
of devices can change the cost. Works on costs, not on devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

Costs = tuple[tuple[float, ...], ...]
"""Relative cost between devices, [device, device], symmetric, 0 on the diagonal."""

EXACT_COUNT: Final = 8
EXACT_STEPS: Final = 6_000
"""Partial orders that the search may visit before it returns the best so far: about 10 ms."""

_EPSILON: Final = 1e-12


@dataclass(frozen=True)
class _Edges:
    """The edges of a mesh shape: per position, (earlier one, axis); per axis, how many, and its weight."""

    earlier: tuple[tuple[tuple[int, int], ...], ...]
    counts: tuple[int, ...]
    weights: tuple[float, ...]


@lru_cache(maxsize=256)
def _build_edges(sizes: tuple[int, ...], weights: tuple[float, ...]) -> _Edges:
    count, earlier = math.prod(sizes), []
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    for position in range(count):
        edges = []
        for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
            place = position // stride % size
            if place:
                edges.append((position - stride, axis))
            if place == size - 1 and size > 2:
                edges.append((position - place * stride, axis))
        earlier.append(tuple(edges))
    counts = tuple(sum(axis == a for edges in earlier for _, axis in edges) for a in range(len(sizes)))
    return _Edges(tuple(earlier), counts, weights)


def price_order(order: Sequence[int], sizes: Sequence[int], costs: Costs, weights: Sequence[float]) -> float:
    """Returns the relative cost of an order.

    Args:
        order: indices into `costs`, row-major. Their number is the product of `sizes`.
        sizes: of the mesh, outermost first.
        costs: relative cost of each pair, [device, device].
        weights: how much each axis counts.
    """
    edges = _build_edges(tuple(sizes), tuple(weights))
    worst, total = [0.0] * len(sizes), [0.0] * len(sizes)
    for device, earlier in zip(order, edges.earlier, strict=True):
        row = costs[device]
        for position, axis in earlier:
            cost = row[order[position]]
            total[axis] += cost
            worst[axis] = max(worst[axis], cost)
    return sum(
        weight * (most + all_of_it / (count or 1))
        for weight, most, all_of_it, count in zip(weights, worst, total, edges.counts, strict=True)
    )


@lru_cache(maxsize=512)
def search_order(sizes: tuple[int, ...], costs: Costs, weights: tuple[float, ...]) -> tuple[int, ...]:
    """Returns the cheapest order of all devices in `costs` (up to `EXACT_COUNT`) on a mesh of `sizes`, row-major.

    Worked example: four cards, 0–2 and 1–3 behind one switch each, mesh (2, 2): the inner axis goes over the
    switches, so the order is (0, 2, 1, 3).

    Raises:
        ValueError: the product of the sizes is not the number of devices.
    """
    count = len(costs)
    if math.prod(sizes) != count:
        raise ValueError(
            f"a mesh of sizes {sizes} holds {math.prod(sizes)} devices, and there are {count}; give as many"
        )
    if len({cost for rank, row in enumerate(costs) for cost in row[:rank]}) <= 1:
        return tuple(range(count))
    return _Exact(_build_edges(sizes, weights), sizes, costs).run()


class _Exact:
    """Branch and bound over the positions, row-major. Among orders of equal cost the lexicographically first wins.

    A ring can be rotated without a change of cost, so device 0 is first. It can be reversed, so its second device is
    lower than its last. Of interchangeable devices only the lowest free one is tried.
    """

    def __init__(self, edges: _Edges, sizes: tuple[int, ...], costs: Costs) -> None:
        self.edges, self.costs, self.count = edges, costs, len(costs)
        self.steps = 0
        strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
        self.mirrors = {(n - 1) * s: s for n, s in zip(sizes, strides, strict=True) if n > 2}
        self.twins = _find_twins(costs)
        self.scale = [w / (n or 1) for w, n in zip(edges.weights, edges.counts, strict=True)]
        self.nearest = min(cost for i, row in enumerate(costs) for cost in row[:i])
        self.left = self._count_left()
        self.best = tuple(range(self.count))
        self.best_cost = price_order(self.best, sizes, costs, edges.weights)

    def _count_left(self) -> list[float]:
        """Returns, per position, the least amount that its edges and all later ones add to the means."""
        left = [0.0] * (self.count + 1)
        for position in range(self.count - 1, -1, -1):
            own = sum(self.scale[axis] for _, axis in self.edges.earlier[position])
            left[position] = left[position + 1] + own * self.nearest
        return left

    def run(self) -> tuple[int, ...]:
        worst = [self.nearest if weight else 0.0 for weight in self.edges.weights]
        self._extend([0], {*range(1, self.count)}, worst, 0.0)
        return self.best

    def _extend(self, order: list[int], free: set[int], worst: list[float], means: float) -> None:
        position = len(order)
        if position == self.count:
            self._keep(order, worst, means)
            return
        for device in sorted(free):
            if self.steps > EXACT_STEPS:
                return
            if any(twin in free for twin in self.twins[device]) or self._is_mirrored(order, device):
                continue
            self.steps += 1
            grown, mean = self._price(order, device, worst, means)
            bound = sum(w * x for w, x in zip(self.edges.weights, grown, strict=True)) + mean + self.left[position + 1]
            if bound < self.best_cost - _EPSILON:
                self._extend([*order, device], free - {device}, grown, mean)

    def _is_mirrored(self, order: list[int], device: int) -> bool:
        second = self.mirrors.get(len(order))
        return second is not None and order[second] > device

    def _price(self, order: list[int], device: int, worst: list[float], means: float) -> tuple[list[float], float]:
        row, grown = self.costs[device], worst.copy()
        for earlier, axis in self.edges.earlier[len(order)]:
            cost = row[order[earlier]]
            means += self.scale[axis] * cost
            grown[axis] = max(grown[axis], cost)
        return grown, means

    def _keep(self, order: list[int], worst: list[float], means: float) -> None:
        cost = sum(weight * x for weight, x in zip(self.edges.weights, worst, strict=True)) + means
        if cost < self.best_cost - _EPSILON:
            self.best, self.best_cost = tuple(order), cost


def _find_twins(costs: Costs) -> tuple[tuple[int, ...], ...]:
    """Returns, per device, the lower-numbered devices with the same costs to all others."""
    everyone = range(len(costs))

    def is_twin(a: int, b: int) -> bool:
        return all(costs[a][x] == costs[b][x] for x in everyone if x not in (a, b))

    return tuple(tuple(a for a in range(b) if is_twin(a, b)) for b in everyone)


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
