"""What joins every two devices of a host, as text: the matrix of `nvidia-smi topo -m`, for TPUs and CPUs as well.

Rule: a cell is what the reply lists, or hops that follow from it; nothing is guessed, and the legend explains what
is printed and no more. Knows no terminal: lines are as wide as they need to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from meshwright.topology.model import ICI, Topology
from meshwright.wire.devices import Device, Devices, Granule, Link, NumaNode

MOST_IN_MATRIX: Final = 64
"""Devices of the largest matrix: 64 columns of NV18 are 320 characters, and each row more."""

SELF: Final = "X"
CHIP: Final = "CHIP"
NONE: Final = "-"

_LEGEND: Final = (
    ("NV", "NV#   # NVLinks, directly or through switches"),
    ("PIX", "PIX   one PCIe switch"),
    ("PXB", "PXB   several PCIe switches, no host bridge"),
    ("PHB", "PHB   a PCIe host bridge (the CPU)"),
    ("NODE", "NODE  host bridges of one NUMA node"),
    ("SYS", "SYS   between NUMA nodes"),
    (ICI, "ICI   TPU chips side by side"),
    ("", "2, 3… hops over ICI links, the shortest way"),
    (CHIP, "CHIP  cores of one TPU chip"),
    ("HOST", "HOST  the host's memory"),
    (NONE, "-     no link is known"),
)
"""What a cell means, by its letters; hops have none."""


def format_links(devices: Devices) -> list[str]:
    """Returns the matrix and its legend; of more devices than `MOST_IN_MATRIX`, how many links of each kind there are.

    Ends with what the host is part of: an NVLink domain, a slice's shape.
    """
    parts = [_format_pairs(devices), format_distances(devices.numa_nodes), format_granules(devices.granules)]
    return [line for part in parts if part for line in ("", *part)][1:]


def format_distances(nodes: Sequence[NumaNode]) -> list[str]:
    """Returns how far the memory of each NUMA node is from each, as the kernel says; nothing for a single node."""
    if len(nodes) < 2:
        return []
    rows = [(node.node, node.distances) for node in nodes if node.distances]
    return [f"NUMA{node} to memory of each node: {' '.join(map(str, row))} (10 is its own)" for node, row in rows]


def _format_pairs(devices: Devices) -> list[str]:
    if len(devices.devices) > MOST_IN_MATRIX:
        return count_links(devices)
    cells = build_cells(devices)
    if not is_known(cells):
        return ["links: none known"]
    return [*_format_matrix(devices, cells), "", *format_legend(devices, cells)]


def is_known(cells: Iterable[Sequence[str]]) -> bool:
    """Returns whether anything is known of any two devices."""
    return any(cell not in {SELF, NONE} for row in cells for cell in row)


def build_cells(devices: Devices) -> tuple[tuple[str, ...], ...]:
    """Returns what joins each device with each: [device, device], in the reply's order."""
    linked = {pair: link for link in devices.links for pair in ((link.a, link.b), (link.b, link.a))}
    topology = Topology.of(devices) if devices.platform == "tpu" else None
    places = range(len(devices.devices))
    return tuple(tuple(_name_cell(linked.get((a, b)), topology, a, b) for b in places) for a in places)


def _name_cell(link: Link | None, topology: Topology | None, a: int, b: int) -> str:
    if a == b:
        return SELF
    hops = topology.hops(a, b) if topology and link is None else None
    if hops is not None:
        return {0: CHIP, 1: ICI}.get(hops, str(hops))
    return link.kind if link else NONE


def name_device(device: Device, *, is_several: bool = False) -> str:
    """Returns a device's name in the matrix: "GPU0", "MIG3", "TPU7", "CPU1"; of several hosts "host-3/0"."""
    if is_several:
        return f"{device.host}/{device.local_index}"
    return f"{'MIG' if device.mig else device.platform.upper()}{device.local_index}"


def _format_matrix(devices: Devices, cells: Sequence[Sequence[str]]) -> list[str]:
    is_several = len({device.host for device in devices.devices}) > 1
    names = [name_device(device, is_several=is_several) for device in devices.devices]
    table = [["", *names], *([name, *row] for name, row in zip(names, cells, strict=True))]
    if devices.platform != "cpu" and any(device.numa_node is not None for device in devices.devices):
        table = [[*row, *more] for row, more in zip(table, _list_affinities(devices), strict=True)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [_join(row, widths, len(names)) for row in table]


def _join(row: Sequence[str], widths: Sequence[int], count: int) -> str:
    """Returns a line: the name, then `count` cells in the middle of their columns, then what is left of theirs."""
    name, *rest = row
    texts = [
        text.center(width) if place < count else f" {text:<{width}}"
        for place, (text, width) in enumerate(zip(rest, widths[1:], strict=True))
    ]
    return " ".join((f"{name:<{widths[0]}}", *texts)).rstrip()


def _list_affinities(devices: Devices) -> Iterator[tuple[str, str]]:
    """Yields the heading, then each device's CPUs and NUMA node: those next to it."""
    cpus = {node.node: node.cpus for node in devices.numa_nodes}
    yield "CPU Affinity", "NUMA Affinity"
    for device in devices.devices:
        node = device.numa_node
        yield ("N/A", "N/A") if node is None else (cpus.get(node) or "N/A", str(node))


def format_legend(devices: Devices, cells: Iterable[Sequence[str]]) -> list[str]:
    """Returns a line for each kind of cell that there is, and one on the bandwidths that are known."""
    kinds = {cell.rstrip("0123456789") for row in cells for cell in row}
    lines = [text for kind, text in _LEGEND if kind in kinds]
    rates = sorted({(link.kind, link.bandwidth_bytes_per_s) for link in devices.links if link.bandwidth_bytes_per_s})
    told = ", ".join(f"{kind} {rate / 1e9:.4g} GB/s" for kind, rate in rates)
    return [*lines, f"bandwidth, one way: {told}"] if told else lines


def count_links(devices: Devices) -> list[str]:
    """Returns how many links of each kind there are, on one line."""
    kinds = Counter(link.kind for link in devices.links)
    told = ", ".join(f"{number} × {kind}" for kind, number in sorted(kinds.items()))
    return [f"links   {told or 'none listed'} (between {len(devices.devices)} devices)"]


def format_granules(granules: Sequence[Granule]) -> list[str]:
    """Returns what is known of the fast networks that the devices are part of, a line each; nothing of a plain host."""
    return list(dict.fromkeys(line for granule in granules for line in _describe_granule(granule, len(granules) > 1)))


def _describe_granule(granule: Granule, is_named: bool) -> Iterator[str]:
    if granule.domain:
        yield f"NVLink domain {granule.domain}: hosts that name the same one reach each other by NVLink"
    if granule.shape:
        name = f" {granule.name}" if is_named else ""
        rings = "".join(axis for axis, closed in zip("xyz", granule.wrap or (), strict=False) if closed)
        told = f"rings along {', '.join(rings)}" if rings else "no rings"
        twist = ", twisted" if granule.twisted else ""
        shape = "×".join(map(str, granule.shape))
        yield f"slice{name} of {shape} chips, {told if granule.wrap else 'rings unknown'}{twist}"
