"""Links between two devices: their cost, so that orders can be compared, and the matrix that shows them.

The cost of a pair is the time of a byte over it, in units of PCIe 4.0 ×16 one way. A bandwidth that the topology states
is used; otherwise the kind of the link implies one. Costs rank orders; they do not predict seconds. The matrix is that
of `nvidia-smi topo -m`, for TPUs and CPUs as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from meshwright.topology.chips import find_chip
from meshwright.topology.model import ICI, Topology
from meshwright.wire.devices import Devices, Granule, Link

XGMI: Final = "XGMI"
"""AMD's link between the GPUs of a host, as `rocm-smi --showtopo` names it."""

LinkClass = Literal["ici", "nvlink", "xgmi", "pcie", "host", "dcn"]
"""The kind of a mesh axis's links, as in a plan."""

PCIE_4_X16_BYTES_PER_S: Final = 31.5e9
"""One way: 16 GT/s × 16 lanes × 128/130 ÷ 8. Source: PCI Express Base Specification 4.0."""

NVLINK_BYTES_PER_S: Final = 25e9
"""One NVLink 3 or 4, one way. Source: NVIDIA H100 datasheet, 900 GB/s = 18 links × 2 ways × 25 GB/s."""

ICI_BYTES_PER_S: Final = 45e9
"""One ICI link of TPU v4, v5e, one way. Source: scaling book (jax-ml/scaling-book), "TPU networking"."""

PCIE_LADDER: Final[Mapping[str, float]] = {"PIX": 1.0, "PXB": 1.5, "PHB": 2.25, "NODE": 3.375, "SYS": 5.0625}
"""Each step outwards costs half as much again. The order is that of the legend of `nvidia-smi topo -m`; the
ratio is ours, and any ratio above 1 ranks orders of one kind of link the same way."""

UNLINKED_COST: Final = 1.5 * PCIE_LADDER["SYS"]

CROSSING_COST: Final = 1.5 * UNLINKED_COST
"""Between granules, where no table has a device's share of the network: one step further out. The ratio is an
assumption."""

NUMA_FACTOR: Final = 2.0
"""Memory of the other NUMA node. Source: the kernel's default distances, 10 local and 20 remote
(include/linux/topology.h)."""

SAME_CHIP_FACTOR: Final = 0.5
"""Two cores of one chip share its memory: nearer than one hop. The ratio is ours; it only ranks."""


def classify_link(kind: str) -> LinkClass:
    """Returns the class of a link by its kind: "NV18" → "nvlink", "PHB" → "pcie"."""
    if kind == ICI:
        return "ici"
    if kind.startswith("NV"):
        return "nvlink"
    if kind == XGMI:
        return "xgmi"
    return "pcie" if kind in PCIE_LADDER else "host"


def price_crossing(topology: Topology, a: int) -> float:
    """Returns the relative cost of a device's share of the network between granules: more than any link inside."""
    chip = find_chip(topology.devices[a].kind)
    if chip is None or not chip.scaleout_bytes_per_s:
        return CROSSING_COST
    return PCIE_4_X16_BYTES_PER_S / chip.scaleout_bytes_per_s * chip.jax_devices_per_chip


def price_link(link: Link) -> float:
    """Returns the relative cost of one link: 1 for PCIe 4.0 ×16 through one switch; less is faster."""
    assumed = {"nvlink": NVLINK_BYTES_PER_S * _count_of(link.kind), "ici": ICI_BYTES_PER_S}
    rate = link.bandwidth_bytes_per_s or assumed.get(classify_link(link.kind), PCIE_4_X16_BYTES_PER_S)
    return PCIE_4_X16_BYTES_PER_S / rate * PCIE_LADDER.get(link.kind, 1.0)


def _count_of(kind: str) -> int:
    digits = kind.removeprefix("NV")
    return int(digits) if digits.isdigit() and int(digits) else 1


def price_pair(topology: Topology, a: int, b: int) -> float:
    """Returns the relative cost between two devices: by their link, by ICI hops, or as far as can be."""
    hops = topology.hops(a, b)
    if hops is not None:
        return price_hop(topology, a) * (hops or SAME_CHIP_FACTOR)
    link = topology.link(a, b)
    if link is not None:
        return price_link(link) * (_price_numa(topology, a, b) if classify_link(link.kind) == "host" else 1.0)
    if not topology.is_joined(a, b):
        return price_crossing(topology, a)
    if topology.devices[a].granule != topology.devices[b].granule:  # hosts of one NVLink domain, as inside a host
        inside = next((link for link in topology.links_of(a) if classify_link(link.kind) == "nvlink"), None)
        return price_link(inside) if inside else PCIE_4_X16_BYTES_PER_S / NVLINK_BYTES_PER_S
    return _price_numa(topology, a, b) if topology.platform == "cpu" else UNLINKED_COST


def price_hop(topology: Topology, a: int) -> float:
    """Returns the relative cost of one ICI hop from a device."""
    link = next((link for link in topology.links_of(a) if link.kind == ICI), None)
    if link is not None:
        return price_link(link)
    chip = find_chip(topology.devices[a].kind)
    return PCIE_4_X16_BYTES_PER_S / ((chip.link_bytes_per_s if chip else None) or ICI_BYTES_PER_S)


def _price_numa(topology: Topology, a: int, b: int) -> float:
    nodes = {topology.devices[a].numa_node, topology.devices[b].numa_node}
    return NUMA_FACTOR if len(nodes) == 2 and None not in nodes else 1.0


def price_pairs(topology: Topology, indices: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """Returns the relative costs between the given devices, [device, device], symmetric."""
    rows = [[0.0] * len(indices) for _ in indices]
    for i, a in enumerate(indices):
        for j in range(i):
            rows[i][j] = rows[j][i] = round(price_pair(topology, a, indices[j]), 6)
    return tuple(map(tuple, rows))


MAX_MATRIX: Final = 64
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
"""The meaning of a cell, by its letters; hops have no entry."""


def format_links(devices: Devices) -> list[str]:
    """Returns the matrix and its legend; of more devices than `MAX_MATRIX`, how many links of each kind there are.

    Ends with the larger unit of the host: an NVLink domain, a slice's shape.
    """
    pairs = format_pairs(devices, MAX_MATRIX) or ["links: none known"]
    return join_parts(pairs, format_granules(devices.granules))


def join_parts(*parts: Sequence[str]) -> list[str]:
    """Returns the lines of all parts, with an empty line between two."""
    return [line for part in parts if part for line in ("", *part)][1:]


Cells = Sequence[Sequence[str]]


def format_pairs(devices: Devices, most: int) -> list[str]:
    """Returns the matrix of at most so many devices, and its legend; empty where nothing is known of any two.

    Args:
        most: of more devices, how many links of each kind there are.
    """
    if len(devices.devices) > most:
        return count_links(devices)
    cells = build_cells(devices)
    if {cell for row in cells for cell in row} <= {SELF, NONE}:
        return []
    table = _list_table(devices, cells)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [*(_join(row, widths, len(cells)) for row in table), "", *format_legend(devices, cells)]


def build_cells(devices: Devices) -> tuple[tuple[str, ...], ...]:
    """Returns the link between each pair of devices: [device, device], in the reply's order."""
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


def _list_table(devices: Devices, cells: Cells) -> list[list[str]]:
    is_several = len({device.host for device in devices.devices}) > 1
    names = [
        f"{f'{d.host}/' if is_several else 'MIG' if d.mig else d.platform.upper()}{d.local_index}"
        for d in devices.devices
    ]
    table = [["", *names], *([name, *row] for name, row in zip(names, cells, strict=True))]
    if devices.platform == "cpu" or all(device.numa_node is None for device in devices.devices):
        return table
    return [[*row, *more] for row, more in zip(table, _list_affinities(devices), strict=True)]


def _join(row: Sequence[str], widths: Sequence[int], count: int) -> str:
    """Returns a line: the name, then `count` cells in the middle of their columns, then the remaining cells."""
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
    """Returns a line for each existing kind of cell, and one on the known bandwidths."""
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
    """Returns a line for each known fast network of the devices; empty for a plain host."""
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
