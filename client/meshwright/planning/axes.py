"""What each axis of a planned mesh runs over: the slowest link between neighbours, hops, rings, shape in the torus.

Knows only what the topology and the chip table say; a figure that neither says is null.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planning.order import Layout
from meshwright.planning.score import AxisScore, list_edges, list_lines
from meshwright.spec import MeshSpec
from meshwright.topology.chips import find_chip
from meshwright.topology.links import classify_link, price_pair
from meshwright.topology.model import Topology
from meshwright.wire.mesh import PlanAxis

Lines = tuple[tuple[int, ...], ...]
"""The devices along an axis, one tuple for each place on the other axes."""


def build_axes(spec: MeshSpec, topology: Topology, layout: Layout) -> tuple[PlanAxis, ...]:
    """Returns what each axis runs over."""
    scores = layout.score.axes if layout.score else (AxisScore(),) * len(spec.sizes)
    return tuple(
        _build_axis(name, size, topology, _list_some(spec.sizes, axis, layout), scores[axis])
        for axis, (name, size) in enumerate(spec)
    )


def _list_some(sizes: Sequence[int], axis: int, layout: Layout) -> Lines:
    """Returns the lines that have to be looked at: one where all are alike."""
    if not layout.is_regular:
        return list_lines(sizes, axis, layout.order)
    stride = 1
    for size in sizes[axis + 1 :]:
        stride *= size
    return (layout.order[: sizes[axis] * stride : stride],)


def _build_axis(name: str, size: int, topology: Topology, lines: Lines, score: AxisScore) -> PlanAxis:
    if size == 1:
        return PlanAxis(name=name, size=1)
    shape = _measure_shape(topology, lines)
    if score.granules > 1:
        chip = find_chip(topology.devices[lines[0][0]].kind)
        rate = chip.scaleout_bytes_per_s if chip else None
        return PlanAxis(
            name=name,
            size=size,
            link="dcn",
            dcn_size=score.granules,
            group_shape=shape,
            neighbour_hops_max=score.hops,
            links=score.links,
            bandwidth_bytes_per_s=rate,
            basis="declared" if rate else None,
        )
    slowest = max((edge for line in lines for edge in list_edges(line)), key=lambda edge: price_pair(topology, *edge))
    rate, basis = _read_rate(topology, slowest)
    return PlanAxis(
        name=name,
        size=size,
        link=_name_link(topology, slowest),
        group_shape=shape,
        neighbour_hops_max=score.hops,
        rings=_count_rings(topology, lines) if score.hops is not None else None,
        links=score.links,
        bandwidth_bytes_per_s=rate,
        basis=basis,
    )


def _read_rate(topology: Topology, edge: tuple[int, int]) -> tuple[float | None, str | None]:
    """Returns the bandwidth of a direct link and how it is known; of an ICI link that is not listed, the table's."""
    link = topology.link(*edge)
    if link is not None and link.bandwidth_bytes_per_s is not None:
        return link.bandwidth_bytes_per_s, link.basis
    if _crosses_domain(topology, edge):
        inside = next((link for link in topology.links_of(edge[0]) if classify_link(link.kind) == "nvlink"), None)
        return (inside.bandwidth_bytes_per_s, inside.basis) if inside else (None, None)
    chip = find_chip(topology.devices[edge[0]].kind)
    is_ici = topology.platform == "tpu" and topology.hops(*edge) is not None
    rate = chip.link_bytes_per_s if chip and is_ici else None
    return rate, "declared" if rate else None


def _crosses_domain(topology: Topology, edge: tuple[int, int]) -> bool:
    """Tells whether two GPUs are on different hosts of one NVLink domain, whose links are not listed."""
    hosts = {topology.places[index][0] for index in edge}
    return topology.platform == "gpu" and len(hosts) == 2 and topology.is_joined(*edge)


def _name_link(topology: Topology, edge: tuple[int, int]) -> str | None:
    link = topology.link(*edge)
    if link is not None:
        return classify_link(link.kind)
    if topology.hops(*edge) is not None:
        return "ici"
    if _crosses_domain(topology, edge):
        return "nvlink"
    return "host" if topology.platform == "cpu" else None


def _count_rings(topology: Topology, lines: Lines) -> int:
    """Returns how many ways round a ring of single hops goes on every line: 2, for a pair 1, for an open line
    0."""
    hops = [topology.hops(a, b) for line in lines for a, b in list_edges(line)]
    if any(count is None or count > 1 for count in hops):
        return 0
    return 1 if len(lines[0]) == 2 else 2


def _measure_shape(topology: Topology, lines: Lines) -> tuple[int, ...] | None:
    """Returns on how many places of each dimension a line lies; None where lines differ or know no coordinates."""
    shapes = set()
    for line in lines:
        coords = [topology.devices[index].coords for index in line]
        known = [place for place in coords if place]
        if len(known) < len(coords):
            return None
        shapes.add(tuple(len(set(values)) for values in zip(*known, strict=False)))
    return shapes.pop() if len(shapes) == 1 else None
