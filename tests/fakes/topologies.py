"""Machines as topologies, built from their wiring; and a check that a built one could be real."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations, product
from typing import Any

from meshwright.planning.granules import Weights, weigh_axes
from meshwright.topology.model import Topology
from meshwright.wire.devices import Device, DeviceProcess, Granule, Link, Mig

EVIDENCE: dict[str, Any] = {"basis": "declared", "observed_at": datetime(2026, 1, 2, tzinfo=UTC), "age_s": 0.0}

Wires = Mapping[tuple[int, int], str]


def build_topology(
    devices: Sequence[Mapping[str, Any]],
    wires: Wires,
    *,
    host: str = "a",
    kind: str = "host",
    rates: Mapping[str, float] | None = None,
) -> Topology:
    made = tuple(
        Device(**{"host": host, "local_index": i, "position": i, **EVIDENCE, **fields})
        for i, fields in enumerate(devices)
    )
    links = tuple(
        Link(a=a, b=b, kind=wire, bandwidth_bytes_per_s=(rates or {}).get(wire), **EVIDENCE)
        for (a, b), wire in wires.items()
    )
    granule = Granule(ordinal=0, kind=kind, name=host, device_count=len(made))  # type: ignore[arg-type]
    topology = Topology(made, links, (granule,))
    check_topology(topology)
    return topology


def check_topology(topology: Topology) -> None:
    """What every real machine keeps to: names are unique, and two devices have one link at most."""
    for name in ("local_index", "uuid", "pci_bus_id"):
        values = [getattr(d, name) for d in topology.devices if getattr(d, name) is not None and d.mig is None]
        assert len(set(values)) == len(values), name
    pairs = [frozenset((link.a, link.b)) for link in topology.links]
    assert len(set(pairs)) == len(pairs)
    assert [d.position for d in topology.devices] == list(range(len(topology.devices)))
    chips = [(d.coords, d.core_on_chip) for d in topology.devices if d.coords]
    assert len(set(chips)) == len(chips)


def build_cpu(count: int, *, host: str = "a", numa_nodes: int = 1, with_links: bool = True) -> Topology:
    nodes = [i * numa_nodes // count if numa_nodes > 1 else None for i in range(count)]
    devices = [{"platform": "cpu", "kind": "cpu", "virtual": True, "numa_node": node} for node in nodes]
    wires = dict.fromkeys(combinations(range(count), 2), "HOST") if with_links else {}
    return build_topology(devices, wires, host=host)


def build_gpus(count: int, wires: Wires, *, kind: str = "NVIDIA H100 80GB HBM3", **more: Any) -> Topology:
    return build_topology([gpu(i, kind=kind) for i in range(count)], wires, **more)


def gpu(index: int, **fields: Any) -> dict[str, Any]:
    return {
        "platform": "gpu", "kind": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-{index:08x}-0000-4000-8000-000000000000",
        "pci_bus_id": f"00000000:{index + 16:02X}:00.0", **fields,
    }  # fmt: skip


def build_dgx_h100() -> Topology:
    """Eight H100 on NVSwitch: 18 links each. Source: NVIDIA DGX H100 datasheet."""
    return build_gpus(8, dict.fromkeys(combinations(range(8), 2), "NV18"), rates={"NV18": 450e9})


DGX1_LINKS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""The hybrid cube mesh of eight V100. Source: `nvidia-smi topo -m` as printed in NVIDIA's DGX-1 white paper.
"""


def build_dgx1() -> Topology:
    wires = {pair: f"NV{DGX1_LINKS[pair]}" if pair in DGX1_LINKS else "SYS" for pair in combinations(range(8), 2)}
    return build_gpus(8, wires, kind="Tesla V100-SXM2-16GB")


def build_pcie(pairs: Sequence[tuple[int, int]] = ((0, 2), (1, 3)), count: int = 4) -> Topology:
    """A host of PCIe cards: those of a pair hang on one switch, the rest goes over the sockets."""
    near = {tuple(sorted(pair)) for pair in pairs}
    wires = {pair: "PIX" if pair in near else "SYS" for pair in combinations(range(count), 2)}
    return build_gpus(count, wires, kind="NVIDIA L4")


def build_mig(count: int = 3) -> Topology:
    """One H100 cut into instances; they share a PCI address and have no links."""
    mig = Mig(parent_uuid=str(gpu(0)["uuid"]), profile="2g.20gb")
    return build_topology([gpu(0, uuid=f"MIG-{i:08x}-0000-4000-8000-000000000000", mig=mig) for i in range(count)], {})


def build_tpu(
    shape: tuple[int, ...], *, kind: str = "TPU v5 lite", cores: int = 1, with_links: bool = True, wrap: bool = False
) -> Topology:
    """One slice: coordinates count x fastest; chips that differ by one step in one dimension are joined."""
    chips = [tuple(reversed(place)) for place in product(*(range(size) for size in reversed(shape)))]
    devices = [
        {"platform": "tpu", "kind": kind, "coords": chip, "core_on_chip": core, "slice_index": 0}
        for chip in chips
        for core in range(cores)
    ]
    wires = {}
    for a, b in combinations(range(len(devices)), 2):
        if cores * is_neighbor(devices[a]["coords"], devices[b]["coords"]):
            wires[a, b] = "ICI"
    topology = build_topology(devices, wires if with_links else {}, kind="slice")
    if not wrap:
        return topology
    granule = topology.granules[0].model_copy(update={"shape": shape, "wrap": (True,) * len(shape)})
    return Topology(topology.devices, topology.links, (granule,))


def is_neighbor(a: Any, b: Any) -> bool:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) == 1


def change_device(topology: Topology, index: int, **fields: Any) -> Topology:
    devices = list(topology.devices)
    devices[index] = devices[index].model_copy(update=fields)
    return Topology(tuple(devices), topology.links, topology.granules)


def hold(topology: Topology, index: int, *, own: bool = False, name: str = "python") -> Topology:
    return change_device(topology, index, processes=(DeviceProcess(pid=4321, name=name, own=own),))


def drop_devices(topology: Topology, gone: Collection[int]) -> Topology:
    """The same machine without some of its devices: failed chips. Links to them are gone too."""
    kept = [index for index in range(len(topology.devices)) if index not in gone]
    places = {old: new for new, old in enumerate(kept)}
    links = [
        link.model_copy(update={"a": places[link.a], "b": places[link.b]})
        for link in topology.links
        if {link.a, link.b} <= set(places)
    ]
    return Topology(tuple(topology.devices[index] for index in kept), tuple(links), topology.granules)


def join_topologies(*parts: Topology) -> Topology:
    """Machines side by side, each with granules of its own."""
    devices: list[Device] = []
    links: list[Link] = []
    granules: list[Granule] = []
    for part in parts:
        start, first = len(devices), len(granules)
        devices += [
            d.model_copy(update={"granule": d.granule + first, "host": f"{d.host}-{first}"}) for d in part.devices
        ]
        links += [link.model_copy(update={"a": link.a + start, "b": link.b + start}) for link in part.links]
        granules += [granule.model_copy(update={"ordinal": granule.ordinal + first}) for granule in part.granules]
    return Topology(tuple(devices), tuple(links), tuple(granules))


def weigh_positions(sizes: Sequence[int]) -> Weights:
    """Returns the weights of axes of which only the order is known."""
    return weigh_axes([""] * len(sizes), sizes)
