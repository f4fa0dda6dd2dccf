"""What each axis of a planned mesh runs over: the slowest link between neighbours, hops, extent in the torus.

Knows only what the topology says; a figure that it does not say is null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from meshwright.spec import MeshSpec
from meshwright.topology.links import classify_link, price_pair
from meshwright.topology.model import Topology
from meshwright.wire.mesh import PlanAxis

Lines = tuple[tuple[int, ...], ...]
"""The devices along an axis, one tuple for each place on the other axes."""


def build_axes(spec: MeshSpec, topology: Topology, order: Sequence[int]) -> tuple[PlanAxis, ...]:
    """Returns what each axis runs over; `order` is row-major in mesh order."""
    return tuple(
        _build_axis(name, topology, list_lines(spec.sizes, axis, order)) for axis, (name, _) in enumerate(spec)
    )


def list_lines(sizes: Sequence[int], axis: int, order: Sequence[int]) -> Lines:
    """Returns the lines of a mesh along one axis."""
    size, stride = sizes[axis], math.prod(sizes[axis + 1 :])
    starts = (start for start in range(len(order)) if start // stride % size == 0)
    return tuple(tuple(order[start + step * stride] for step in range(size)) for start in starts)


def list_edges(line: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the pairs that a ring over a line joins: neighbours and, for more than two, last and first."""
    edges = list(pairwise(line))
    return [*edges, (line[-1], line[0])] if len(line) > 2 else edges


def _build_axis(name: str, topology: Topology, lines: Lines) -> PlanAxis:
    size = len(lines[0])
    if size == 1:
        return PlanAxis(name=name, size=1)
    edges = [edge for line in lines for edge in list_edges(line)]
    if topology.is_uniform:
        edges = edges[:1]
    slowest = max(edges, key=lambda edge: price_pair(topology, *edge))
    link = topology.link(*slowest)
    hops = _count_hops(topology, lines)
    return PlanAxis(
        name=name,
        size=size,
        link=_name_link(topology, slowest),
        group_shape=_measure_extent(topology, lines),
        neighbour_hops_max=hops,
        rings=_count_rings(topology, lines) if hops is not None else None,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s if link else None,
        basis=link.basis if link and link.bandwidth_bytes_per_s is not None else None,
    )


def _name_link(topology: Topology, edge: tuple[int, int]) -> str | None:
    link = topology.link(*edge)
    if link is not None:
        return classify_link(link.kind)
    if topology.hops(*edge) is not None:
        return "ici"
    return "host" if topology.platform == "cpu" else None


def _count_hops(topology: Topology, lines: Lines) -> int | None:
    """Returns the most hops between neighbours on a line, last and first aside; None off the torus."""
    if topology.platform != "tpu":
        return None
    hops = [topology.hops(a, b) for line in lines for a, b in pairwise(line)]
    known = [count for count in hops if count is not None]
    return max(known) if len(known) == len(hops) else None


def _count_rings(topology: Topology, lines: Lines) -> int:
    """Returns how many ways round a ring of single hops goes on every line: 2, for a pair 1, for an open line
    0."""
    hops = [topology.hops(a, b) for line in lines for a, b in list_edges(line)]
    if any(count is None or count > 1 for count in hops):
        return 0
    return 1 if len(lines[0]) == 2 else 2


def _measure_extent(topology: Topology, lines: Lines) -> tuple[int, ...] | None:
    """Returns how far a line reaches in each dimension of the torus; None where lines differ or know no
    coordinates."""
    extents = set()
    for line in lines:
        coords = [topology.devices[index].coords for index in line]
        known = [place for place in coords if place]
        if len(known) < len(coords):
            return None
        extents.add(tuple(max(values) - min(values) + 1 for values in zip(*known, strict=False)))
    return extents.pop() if len(extents) == 1 else None
