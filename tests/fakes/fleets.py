"""Hosts of a fleet as their agents would describe them, and a check that a described slice could be real."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.devices import Device, Devices, Granule, Link
from tests.fakes.hosts import build_devices
from tests.fakes.topologies import EVIDENCE, is_neighbor

AT = datetime(2026, 1, 2, tzinfo=UTC)


def build_host(name: str, what: str = "h100:4", **changes: Any) -> Devices:
    """A host with an identity of its own by its name."""
    return build_devices(what, host=name, at=AT).model_copy(update=changes)


def build_slice(
    shape: tuple[int, int, int],
    bounds: tuple[int, int, int],
    *,
    name: str | None = "slice-a",
    kind: str = "TPU v5",
    cores: int = 1,
    says_shape: bool = True,
    says_part: bool = True,
    slice_index: int | None = 0,
    prefix: str = "w",
) -> list[Devices]:
    """The hosts of a slice, x fastest; each lists its own chips, `bounds` of them, with the slice's coordinates."""
    corners = [
        tuple(reversed(at)) for at in product(*(range(0, s, b) for s, b in zip(shape[::-1], bounds[::-1], strict=True)))
    ]
    hosts = [
        _build_tpu_host(f"{prefix}-{rank}", rank, _list_box(corner, bounds), kind, cores, slice_index)
        for rank, corner in enumerate(corners)
    ]
    granule = {"name": name, "shape": shape if says_shape else None}
    part = Notice(code="slice_in_part", message=f"this host is one of {len(hosts)} of its TPU slice")
    told = [
        host.model_copy(
            update={
                "granules": tuple(g.model_copy(update=_without_none(granule)) for g in host.granules),
                "warnings": (part,) if says_part and len(hosts) > 1 else (),
            }
        )
        for host in hosts
    ]
    check_slice(told, shape, cores)
    return told


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _list_box(corner: Sequence[int], bounds: Sequence[int]) -> list[tuple[int, ...]]:
    steps = product(*(range(size) for size in reversed(bounds)))
    return [tuple(c + s for c, s in zip(corner, reversed(step), strict=True)) for step in steps]


def _build_tpu_host(
    name: str, rank: int, chips: list[tuple[int, ...]], kind: str, cores: int, slice_index: int | None
) -> Devices:
    own: dict[str, Any] = {"host": name, "platform": "tpu", "kind": kind, **EVIDENCE}
    own |= {"slice_index": slice_index, "process_index": rank}
    devices = tuple(
        Device(local_index=i, position=i, coords=at, core_on_chip=core, pci_bus_id=f"0000:00:{i // cores:02x}.0", **own)
        for i, (at, core) in enumerate(product(chips, range(cores)))
    )
    links = tuple(
        Link(a=a, b=b, kind="ICI", **EVIDENCE)
        for a in range(0, len(devices), cores)
        for b in range(a + cores, len(devices), cores)
        if is_neighbor(devices[a].coords, devices[b].coords)
    )
    granule = Granule(ordinal=0, kind="slice", name=name, device_count=len(devices))
    changes = {"platform": "tpu", "devices": devices, "links": links, "granules": (granule,)}
    return build_host(name, "cpu:1", **changes)


def check_slice(hosts: Sequence[Devices], shape: Sequence[int], cores: int) -> None:
    """What every real slice keeps to: each chip on one host, every place of the shape taken, hosts consistent."""
    chips = [(device.coords, device.core_on_chip) for host in hosts for device in host.devices]
    places = {tuple(reversed(place)) for place in product(*(range(size) for size in reversed(shape)))}
    assert len(set(chips)) == len(chips) == len(places) * cores
    assert {coords for coords, _ in chips} == places
    for host in hosts:
        Topology.of(host)
        assert len(host.links) * cores < len(host.devices) * 3 or not host.links
