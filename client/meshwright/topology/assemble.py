"""Targets as topologies: hardware that need not be here, from its name.

Rule: everything is declared, nothing observed. Devices stand in canonical order: slices (or hosts) one after the
other, in a slice x fastest, then y, z, and the cores of a chip fastest of all; processes are numbered as libtpu numbers
them. Of TPUs no link is listed: the granule's shape, wrap and twist say them. Between hosts no link is listed either;
the granule's domain says what NVLink joins. Knows no driver and no jax.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import combinations, product
from typing import Any, Final

from meshwright.targets import TargetSpec
from meshwright.topology.machines import Machine, Wire, find_socket
from meshwright.topology.model import Topology
from meshwright.topology.resolve import CPU, count_devices, find_hardware
from meshwright.topology.resolve import read_target as read_target
from meshwright.topology.slices import Slice
from meshwright.wire.devices import Device, Granule, Link, Memory

HOST: Final = "HOST"
MOST_LINKED_CPUS: Final = 64
"""As an agent lists them: links grow with the square of the devices, and all are alike."""

_CACHE_SIZE: Final = 2
"""Two: the largest target of GPUs, with its links, takes a gigabyte."""

Declared = dict[str, Any]
"""The evidence that every fact of a target carries."""


def build_target(target: str | TargetSpec) -> Topology:
    """Returns the topology that a target names.

    Raises:
        InvalidRequestError: the text is no target.
        PlanInfeasibleError: no such chip, slice or host, or more than 131,072 devices.
    """
    return _build(read_target(target))


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _build(spec: TargetSpec) -> Topology:
    declared: Declared = {"basis": "declared", "observed_at": datetime.now(UTC), "age_s": 0.0}
    hardware, ordinals = find_hardware(spec), range(spec.granules)
    if isinstance(hardware, Slice):
        return _join_slices(hardware, spec, declared)
    devices = (device for ordinal in ordinals for device in _build_devices(hardware, ordinal, declared))
    links = (link for ordinal in ordinals for link in _build_links(hardware, ordinal, declared))
    return Topology(tuple(devices), tuple(links), tuple(_build_host(hardware, ordinal) for ordinal in ordinals))


def _join_slices(slice_: Slice, spec: TargetSpec, declared: Declared) -> Topology:
    seats = tuple(_list_seats(slice_))
    devices = (
        device
        for ordinal in range(spec.granules)
        for device in _build_tpus(slice_, seats, ordinal, declared, is_one=spec.granules == 1)
    )
    granules = (_build_slice(slice_, ordinal, is_twisted=spec.twisted is True) for ordinal in range(spec.granules))
    return Topology(tuple(devices), (), tuple(granules))


Seat = tuple[tuple[int, ...], int, int]
"""(coordinates, core, host of the slice)."""


def _list_seats(slice_: Slice) -> Iterator[Seat]:
    """Yields the devices of a slice in canonical order. Hosts are boxes of chips, counted x fastest."""
    hosts = [size // part for size, part in zip(slice_.extent, slice_.host_shape, strict=True)]
    for z, y, x in product(*map(range, reversed(slice_.extent))):
        box = [place // part for place, part in zip((x, y, z), slice_.host_shape, strict=True)]
        host = box[0] + hosts[0] * (box[1] + hosts[1] * box[2])
        for core in range(slice_.chip.jax_devices_per_chip):
            yield (x, y, z), core, host


def _build_tpus(
    slice_: Slice, seats: Iterable[Seat], ordinal: int, declared: Declared, *, is_one: bool
) -> Iterator[Device]:
    """Yields the devices of one slice; like libtpu, gives slices an index only where there are several."""
    memory = Memory(capacity_bytes=slice_.chip.device_memory_bytes, **declared)
    first, seen = ordinal * slice_.host_count, [0] * slice_.host_count
    for position, (coords, core, host) in enumerate(seats):
        yield Device(
            host=f"host-{first + host}",
            local_index=seen[host],
            granule=ordinal,
            position=position,
            platform="tpu",
            kind=slice_.chip.kinds[0],
            coords=coords,
            core_on_chip=core,
            slice_index=None if is_one else ordinal,
            process_index=first + host,
            memory=memory,
            **declared,
        )
        seen[host] += 1


def _build_slice(slice_: Slice, ordinal: int, *, is_twisted: bool) -> Granule:
    return Granule(
        ordinal=ordinal,
        kind="slice",
        name=f"slice-{ordinal}",
        device_count=slice_.device_count,
        shape=slice_.extent,
        wrap=slice_.wrap,
        twisted=is_twisted,
    )


def _build_devices(host: Machine | int, ordinal: int, declared: Declared) -> Iterator[Device]:
    chip = host.chip if isinstance(host, Machine) else None
    count = count_devices(host)
    memory = Memory(capacity_bytes=chip.device_memory_bytes, **declared) if chip else None
    for place in range(count):
        yield Device(
            host=f"host-{ordinal}",
            local_index=place,
            granule=ordinal,
            position=place,
            platform="gpu" if chip else "cpu",
            kind=chip.kinds[0] if chip else CPU,
            numa_node=find_socket(place, count) if chip else None,
            virtual=chip is None and count > 1,
            memory=memory,
            **declared,
        )


def _build_links(host: Machine | int, ordinal: int, declared: Declared) -> Iterator[Link]:
    first = ordinal * count_devices(host)
    for wire in host.wires if isinstance(host, Machine) else _list_cpu_wires(host):
        yield Link(
            a=first + wire.a,
            b=first + wire.b,
            kind=wire.kind,
            count=wire.count,
            bandwidth_bytes_per_s=wire.bytes_per_s,
            **declared,
        )


def _list_cpu_wires(count: int) -> Iterator[Wire]:
    if count <= MOST_LINKED_CPUS:
        for a, b in combinations(range(count), 2):
            yield Wire(a, b, HOST, None, None)


def _build_host(host: Machine | int, ordinal: int) -> Granule:
    """Returns a host as a granule; hosts fill NVLink domains one after the other."""
    hosts = host.domain_hosts if isinstance(host, Machine) else 1
    return Granule(
        ordinal=ordinal,
        kind="host",
        name=f"host-{ordinal}",
        device_count=count_devices(host),
        domain=f"domain-{ordinal // hosts}" if hosts > 1 else None,
    )
