"""TPUs: chips on the PCI bus, with coordinates from JAX, or from the environment until JAX has answered.

Rule: coordinates are stated only if they are known: from JAX, or from the environment's shape of a slice that is only
this host. The same applies to the shape of the whole slice. Chips and PCI addresses are joined by order (addresses
ascending; x fastest), because no fact readable without opening a chip joins them. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from meshwright.topology.chips import find_chip
from meshwright.topology.identity import canonical
from meshwright.topology.model import ICI, can_twist
from meshwright.topology.torus import find_wraps
from meshwright.wire.base import Notice
from meshwright.wire.devices import Device, Link, Memory
from meshwright_agent.facts.model import SliceFacts, TpuFacts
from meshwright_agent.host.snapshot import PlatformDevices, View, read_limit

Coords = tuple[int, ...]


@dataclass(frozen=True)
class Core:
    """An expected device: from JAX's list or from the environment. `rank`: rank of its chip."""

    rank: int
    coords: Coords | None
    index: int
    seen: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class SliceShape:
    """The whole slice, in chips [x, y, z]; None: unknown."""

    shape: Coords | None = None
    wrap: tuple[bool, ...] | None = None
    twisted: bool = False


def build_tpus(view: View) -> PlatformDevices:
    """Returns this host's TPU devices by canonical order: z, y, x, then core."""
    functions = view.facts.tpus
    cores = _list_seen(view) or _list_expected(functions, view.facts.slice)
    devices = tuple(
        _build_tpu(view, index, core, find_function(functions, cores, index)) for index, core in enumerate(cores)
    )
    return PlatformDevices(devices, _build_links(cores, devices), _warn(view))


def _list_seen(view: View) -> tuple[Core, ...]:
    ordered = sorted(view.list_jax("tpu"), key=lambda one: canonical(one.get("coords"), one.get("core_on_chip")))
    chips: dict[object, int] = {}
    cores = []
    for place, one in enumerate(ordered):
        coords = None if one.get("coords") is None else tuple(one["coords"])
        rank = chips.setdefault(place if coords is None else coords, len(chips))
        cores.append(Core(rank, coords, one.get("core_on_chip") or 0, one))
    return tuple(cores)


def _count_cores(functions: Sequence[TpuFacts]) -> int:
    chip = find_chip((functions[0].kind if functions else None) or "")
    return chip.jax_devices_per_chip if chip else 1


def _list_expected(functions: Sequence[TpuFacts], slice_: SliceFacts) -> tuple[Core, ...]:
    count = _count_cores(functions)
    shape = find_shape(len(functions), count, slice_)
    places: list[Coords | None] = [None] * len(functions)
    if shape is not None:
        places = [(x, y, z) for z, y, x in product(*(range(size) for size in reversed(shape)))]
    return tuple(Core(rank, coords, core) for rank, coords in enumerate(places) for core in range(count))


def find_shape(function_count: int, cores: int, slice_: SliceFacts) -> Coords | None:
    """Returns the shape of a slice of only this host, in chips [x, y, z]; None for any other slice.

    A PCI function is a chip, or one core of it (TPU7x with split chips).
    """
    if slice_.host_count not in {None, 1}:
        return None
    counts = {function_count, function_count / cores}
    shapes = [shape for shape in (slice_.chips_per_host, slice_.topology) if shape]
    same = len({math.prod(shape) for shape in shapes}) == 1
    return shapes[0] if same and math.prod(shapes[0]) in counts else None


def find_slice(view: View) -> SliceShape:
    """Returns the slice of this host: from the environment, else from JAX if it sees the whole slice.

    The slice is unknown if these contradict each other or the chips that JAX sees. An impossible twist, or a number of
    ring flags other than the number of dimensions, is ignored.
    """
    facts, functions, seen = view.facts.slice, view.facts.tpus, _list_seen_coords(view)
    shapes = {shape for shape in (*_list_declared(facts), _find_local(functions, facts, seen)) if shape}
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None or any(
        not 0 <= place < size for coords in seen for place, size in zip(coords, shape, strict=False)
    ):
        return SliceShape()
    kind = next((one["kind"] for one in view.list_jax("tpu")), functions[0].kind if functions else None)
    ruled = find_wraps(kind, shape) if kind and find_chip(kind) else None
    wrap = facts.wrap if facts.wrap and len(facts.wrap) == len(shape) else ruled
    is_twisted = bool(facts.twisted) and wrap is not None and all(wrap) and can_twist(shape)
    return SliceShape(shape, wrap, is_twisted)


def _list_declared(facts: SliceFacts) -> list[Coords]:
    """Returns the slice's shapes from the environment: the direct shape, and the product of hosts and chips."""
    shapes = [facts.topology] if facts.topology else []
    if facts.hosts and facts.chips_per_host:
        shapes.append(tuple(a * b for a, b in zip(facts.hosts, facts.chips_per_host, strict=True)))
    return shapes


def _find_local(functions: Sequence[TpuFacts], facts: SliceFacts, seen: frozenset[Coords]) -> Coords | None:
    """Returns the shape of a slice of only this host, if the environment does not report the slice's shape."""
    if _list_declared(facts) or facts.host_count not in {None, 1}:
        return None
    return _bound(seen) or find_shape(len(functions), _count_cores(functions), facts)


def _bound(coords: frozenset[Coords]) -> Coords | None:
    """Returns the box that chips fill from the origin; None if places are empty, or without chips."""
    if not coords:
        return None
    shape = tuple(max(places) + 1 for places in zip(*coords, strict=True))
    return shape if math.prod(shape) == len(coords) else None


def _list_seen_coords(view: View) -> frozenset[Coords]:
    """Returns the coordinates of the slice's chips that JAX sees, on all hosts of its job."""
    if view.jax is None or view.jax.platform != "tpu":
        return frozenset()
    own = {device.get("slice_index") for device in view.jax.devices}
    devices = [device for device in view.jax.view["devices"] if device.get("slice_index") in own]
    return frozenset(tuple(device["coords"]) for device in devices if device.get("coords") is not None)


def find_function(functions: Sequence[TpuFacts], cores: Sequence[Core], index: int) -> TpuFacts | None:
    """Returns the PCI function of a core: one per core, or one per chip; None if the numbers do not match."""
    if len(functions) == len(cores):
        return functions[index]
    return functions[cores[index].rank] if len(functions) == len({core.rank for core in cores}) else None


def _build_tpu(view: View, index: int, core: Core, function: TpuFacts | None) -> Device:
    seen = core.seen
    kind = str(seen["kind"]) if seen else (function.kind if function else None)
    attributes = {
        "productName": kind,
        "resource.kubernetes.io/pciBusID": function.pci_bus_id if function else None,
        "resource.kubernetes.io/pcieRoot": function.pcie_root if function else None,
    }
    return view.build_device(
        "tpu",
        index,
        seen,
        kind=kind or "TPU",
        pci_bus_id=function.pci_bus_id if function else None,
        numa_node=function.numa_node if function else None,
        coords=core.coords,
        core_on_chip=core.index if seen or core.coords else None,
        slice_index=seen.get("slice_index") if seen else None,
        memory=_build_memory(view, kind, seen),
        processes=function.processes if function else None,
        attributes={name: value for name, value in attributes.items() if value is not None},
        **(view.by_jax if seen else view.passive),
    )


def _build_memory(view: View, kind: str | None, seen: Mapping[str, Any] | None) -> Memory | None:
    """Returns capacity from the chip table, and use from JAX's allocator, with JAX's evidence if it reported."""
    chip = find_chip(kind or "")
    stats = (seen or {}).get("memory_stats") or {}
    if chip is None and not stats:
        return None
    return Memory(
        capacity_bytes=chip.device_memory_bytes if chip else None,
        used_bytes=stats.get("bytes_in_use"),
        limit_bytes=read_limit(seen),
        basis=view.by_jax["basis"] if stats else "declared",
    )


def _build_links(cores: Sequence[Core], devices: Sequence[Device]) -> tuple[Link, ...]:
    """Returns the ICI links between this host's chips: neighbors in the grid, by their first cores.

    Wrap-around links need an axis of 4 or more chips on 3-D generations, of 16 on 2-D ones. A single host does not have
    such an axis.
    """
    first = {core.coords: index for index, core in reversed(list(enumerate(cores))) if core.coords}
    if not first:
        return ()
    chip = find_chip(devices[0].kind)
    rate = chip.link_bytes_per_s if chip else None
    return tuple(
        Link(a=index, b=first[other], kind=ICI, bandwidth_bytes_per_s=rate, basis="declared")
        for coords, index in sorted(first.items(), key=lambda item: item[1])
        for axis in range(len(coords))
        if (other := (*coords[:axis], coords[axis] + 1, *coords[axis + 1 :])) in first
    )


def _warn(view: View) -> tuple[Notice, ...]:
    notices, count, hosts = [], len(view.facts.tpus), view.facts.slice.host_count
    if view.jax is not None and view.jax.platform != "tpu" and count:
        message = f"{count} TPU chip(s) are on the PCI bus; the agent's JAX runs on {view.jax.platform} and sees none"
        hint = "run `meshwright-agent doctor` on the host: libtpu is missing or JAX_PLATFORMS hides them"
        notices.append(Notice(code="jax_sees_no_tpu", message=message, hint=hint))
    if hosts not in {None, 1}:
        message = f"this host is one of {hosts} of its TPU slice; only its own chips are listed"
        hint = "plans from here cover this host; plan for the whole slice where all hosts are known"
        notices.append(Notice(code="slice_in_part", message=message, hint=hint))
    return tuple(notices)
