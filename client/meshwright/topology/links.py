"""What a way between two devices costs, so that orders can be compared. Relative figures: they rank, they do
not predict.

Rule: the cost of a pair is the time that a byte takes over it, in units of PCIe 4.0 ×16 one way. A bandwidth
that the topology states is used; where it states none, the kind of the link stands for one. Knows no mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from meshwright.topology.chips import find_chip_by_kind
from meshwright.topology.model import ICI, Topology
from meshwright.wire.devices import Link

XGMI: Final = "XGMI"
"""AMD's link between the GPUs of a host."""

LinkClass = Literal["ici", "nvlink", "xgmi", "pcie", "host", "dcn"]
"""What a mesh axis runs over, as a plan says it."""

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
"""Between granules, where no table says a device's share of the network: one step further out. The ratio is ours."""

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
    chip = find_chip_by_kind(topology.devices[a].kind)
    share = chip.scaleout_bytes_per_s if chip else None
    return PCIE_4_X16_BYTES_PER_S / share if share else CROSSING_COST


def price_link(link: Link) -> float:
    """Returns the relative cost of one link: 1 for PCIe 4.0 ×16 through one switch; less is faster."""
    assumed = {"nvlink": NVLINK_BYTES_PER_S * (link.count or _count_of(link.kind)), "ici": ICI_BYTES_PER_S}
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
    if link is None and topology.devices[a].granule != topology.devices[b].granule:
        return _price_far(topology, a, b)
    if link is None and topology.platform == "cpu":
        return _price_numa(topology, a, b)
    if link is None:
        return UNLINKED_COST
    return price_link(link) * (_price_numa(topology, a, b) if classify_link(link.kind) == "host" else 1.0)


def _price_far(topology: Topology, a: int, b: int) -> float:
    """Returns the cost between two hosts: of one NVLink domain, what the links inside a host cost."""
    if not topology.is_joined(a, b):
        return price_crossing(topology, a)
    inside = next((link for link in topology.links_of(a) if classify_link(link.kind) == "nvlink"), None)
    return price_link(inside) if inside else PCIE_4_X16_BYTES_PER_S / NVLINK_BYTES_PER_S


def price_hop(topology: Topology, a: int) -> float:
    """Returns the relative cost of one ICI hop from a device."""
    link = next((link for link in topology.links_of(a) if link.kind == ICI), None)
    if link is not None:
        return price_link(link)
    chip = find_chip_by_kind(topology.devices[a].kind)
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
