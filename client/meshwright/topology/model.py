"""Topology: devices, links and granules as one object that the planner can ask. Refuses to exist when
inconsistent.

Knows only what the machine said: which devices there are and what joins them. What a link costs stands in
`meshwright.topology.links`, who a device is in `meshwright.topology.identity`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Final

from meshwright.topology.distance import Distance, find_distance
from meshwright.topology.identity import Position
from meshwright.topology.soundness import check_granules, write_number
from meshwright.wire.devices import Device, Devices, Granule, Link, Platform
from meshwright.wire.mesh import DeviceRef

ICI: Final = "ICI"

NAMES_SHOWN: Final = 16
"""Devices that a sentence names before it says how many more there are."""

Chip = tuple[int, tuple[int, ...]]
"""A TPU chip: (granule, coordinates). Its cores are devices of their own on some generations."""


@dataclass(frozen=True)
class Topology:
    """The devices of one host, slice or fleet. Indices below are places in `devices`, as in `links`.

    Raises:
        ValueError: two devices at one place of a granule, a device in a granule that is not listed, granules that
            contradict themselves or each other (`meshwright.topology.soundness`), or a link to a device that is not
            there or to itself.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    granules: tuple[Granule, ...] = ()

    def __post_init__(self) -> None:
        if len(self.order) != len(self.devices):
            raise ValueError(_tell_doubled(self.devices))
        check_granules(self.devices, self.granules)
        count = len(self.devices)
        for link in self.links:
            if not (0 <= link.a < count and 0 <= link.b < count and link.a != link.b):
                ends = f"{write_number(link.a)} and {write_number(link.b)}"
                raise ValueError(f"a {link.kind} link joins {ends}; it must join two of the {count} devices")

    @classmethod
    def of(cls, devices: Devices) -> Topology:
        """Returns the topology that the reply of `GET /devices` describes.

        Raises:
            ValueError: the reply contradicts itself.
        """
        return cls(devices.devices, devices.links, devices.granules)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All devices by (granule, position): the plain order."""
        places = {place: index for index, place in enumerate(self.places)}
        return tuple(places[place] for place in sorted(places))

    @cached_property
    def platform(self) -> Platform:
        """What the devices are; "cpu" for a topology without any."""
        return self.devices[0].platform if self.devices else "cpu"

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, in plain order."""
        return tuple(dict.fromkeys(self.devices[index].host for index in self.order))

    @cached_property
    def references(self) -> tuple[DeviceRef, ...]:
        """How plans name each device, by its place in `devices`."""
        return tuple(
            DeviceRef(
                host=device.host,
                local_index=device.local_index,
                granule=device.granule,
                position=device.position,
                uuid=device.uuid,
                pci_bus_id=device.pci_bus_id,
                coords=device.coords,
                core_on_chip=device.core_on_chip,
                slice_index=device.slice_index,
                process_index=device.process_index,
            )
            for device in self.devices
        )

    @cached_property
    def names(self) -> Mapping[int | str, tuple[int, ...]]:
        """What a request may call a device (local index, host/index, uuid, PCI bus id) → the devices so called."""
        names: dict[int | str, list[int]] = defaultdict(list)
        for index in self.order:
            device = self.devices[index]
            names[device.local_index].append(index)
            names[f"{device.host}/{device.local_index}".lower()].append(index)
            for name in filter(None, (device.uuid, device.pci_bus_id)):
                names[name.lower()].append(index)
        return {name: tuple(indices) for name, indices in names.items()}

    @cached_property
    def equipment(self) -> Mapping[int, tuple[tuple[str, ...], int | None]]:
        """Granule → the kinds of its devices, and the memory of the one that has least; None: not known of any."""
        kinds: dict[int, dict[str, None]] = defaultdict(dict)
        least: dict[int, int] = {}
        for device in self.devices:
            kinds[device.granule][device.kind] = None
            if device.memory is not None and device.memory.capacity_bytes is not None:
                known = least.get(device.granule, device.memory.capacity_bytes)
                least[device.granule] = min(known, device.memory.capacity_bytes)
        ordinals = [granule.ordinal for granule in self.granules]
        return {ordinal: (tuple(kinds[ordinal]), least.get(ordinal)) for ordinal in ordinals}

    @cached_property
    def domains(self) -> Mapping[int, str | int]:
        """Granule → what a fast network joins: its NVLink domain where that spans hosts, else the granule itself."""
        return {granule.ordinal: granule.domain or granule.ordinal for granule in self.granules}

    @cached_property
    def _granules(self) -> Mapping[int, Granule]:
        return {granule.ordinal: granule for granule in self.granules}

    def find_granule(self, ordinal: int) -> Granule:
        """Returns the granule of this ordinal."""
        return self._granules[ordinal]

    def is_joined(self, a: int, b: int) -> bool:
        """True where two devices are in one fast domain."""
        return self.domains[self.places[a][0]] == self.domains[self.places[b][0]]

    @cached_property
    def _domain_ranks(self) -> Mapping[str | int, int]:
        """Domain → its first granule."""
        return {name: ordinal for ordinal, name in sorted(self.domains.items(), reverse=True)}

    def group(self, indices: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Returns the devices by fast domain, domains in the order of their first granule, devices as given."""
        if len(self.domains) == 1:
            return (tuple(indices),)
        groups: dict[str | int, list[int]] = defaultdict(list)
        for index in indices:
            groups[self.domains[self.places[index][0]]].append(index)
        return tuple(tuple(groups[name]) for name in sorted(groups, key=self._domain_ranks.__getitem__))

    @cached_property
    def is_uniform(self) -> bool:
        """True when every device reaches every other one alike, so that order cannot matter for speed."""
        if self.platform == "tpu":
            return False
        if len(set(self.domains.values())) > 1:
            return False
        if len(self.devices) < 3:
            return True
        kinds = {(link.kind, link.count, link.bandwidth_bytes_per_s) for link in self.links}
        alike = len({device.numa_node for device in self.devices}) == 1 or self.platform != "cpu"
        if not self.links:
            return alike and self.platform == "cpu"
        pairs = len(self.devices) * (len(self.devices) - 1) // 2
        return alike and len(kinds) == 1 and len(self._links) == pairs

    @cached_property
    def _links(self) -> Mapping[tuple[int, int], Link]:
        return {(min(link.a, link.b), max(link.a, link.b)): link for link in self.links}

    def link(self, a: int, b: int) -> Link | None:
        """Returns the direct link between two devices; None where there is none."""
        return self._links.get((a, b) if a < b else (b, a))

    @cached_property
    def _links_of(self) -> Mapping[int, tuple[Link, ...]]:
        ends: dict[int, list[Link]] = defaultdict(list)
        for link in self.links:
            ends[link.a].append(link)
            ends[link.b].append(link)
        return {index: tuple(links) for index, links in ends.items()}

    def links_of(self, index: int) -> tuple[Link, ...]:
        """Returns the listed links of one device."""
        return self._links_of.get(index, ())

    @cached_property
    def _chip_neighbours(self) -> Mapping[Chip, tuple[Chip, ...]]:
        neighbours: dict[Chip, set[Chip]] = defaultdict(set)
        for link in self.links:
            if link.kind == ICI:
                a, b = self._chip(link.a), self._chip(link.b)
                neighbours[a].add(b)
                neighbours[b].add(a)
        return {chip: tuple(sorted(others)) for chip, others in neighbours.items()}

    def neighbours(self, chip: Chip) -> tuple[Chip, ...]:
        """Returns the chips that a listed ICI link joins to this one."""
        return self._chip_neighbours.get(chip, ())

    def _chip(self, index: int) -> Chip:
        device = self.devices[index]
        return device.granule, device.coords or (index,)

    def hops(self, a: int, b: int) -> int | None:
        """Returns how many ICI links the shortest way between two devices has; None where there is no way.

        Where the granule says its shape and wrap, these tell. Else the way is searched over the listed ICI links;
        where none is listed, coordinates stand for a grid without wrap-around. Two cores of one chip are 0 hops apart.
        """
        if self.platform != "tpu":
            return None
        one, other = self.devices[a], self.devices[b]
        distance = self.distances.get(one.granule)
        if distance is not None:
            known = one.granule == other.granule and one.coords is not None and other.coords is not None
            return distance(one.coords or (), other.coords or ()) if known else None
        start = self._chip(a)
        if start not in self._hops:
            self._hops[start] = self._search_hops(start) if self._chip_neighbours else self._count_hops(start)
        return self._hops[start].get(self._chip(b))

    @cached_property
    def distances(self) -> Mapping[int, Distance]:
        """Granule → hops between two of its chips by coordinates, for those that say their shape and wrap."""
        return {
            granule.ordinal: find_distance(granule.shape, granule.wrap, twisted=granule.twisted)
            for granule in self.granules
            if granule.shape and granule.wrap
        }

    @cached_property
    def _hops(self) -> dict[Chip, Mapping[Chip, int]]:
        return {}

    def _search_hops(self, start: Chip) -> Mapping[Chip, int]:
        hops, queue = {start: 0}, deque([start])
        while queue:
            here = queue.popleft()
            for there in self._chip_neighbours.get(here, ()):
                if there not in hops:
                    hops[there] = hops[here] + 1
                    queue.append(there)
        return hops

    def _count_hops(self, start: Chip) -> Mapping[Chip, int]:
        """Returns the grid distances from one chip; of devices without coordinates, none but its own."""
        if not any(device.coords for device in self.devices):
            return {start: 0}
        chips = {self._chip(index) for index, device in enumerate(self.devices) if device.coords}
        return {
            chip: sum(abs(x - y) for x, y in zip(start[1], chip[1], strict=False))
            for chip in chips
            if chip[0] == start[0]
        }

    @cached_property
    def places(self) -> tuple[Position, ...]:
        """(granule ordinal, position in the granule) of each device."""
        return tuple((device.granule, device.position) for device in self.devices)

    @cached_property
    def whole_slices(self) -> Mapping[int, tuple[int, ...]]:
        """Granule → its devices in plain order, for slices all of whose chips are there and counted x, y, z, core."""
        members: dict[int, list[int]] = defaultdict(list)
        for index in self.order:
            members[self.devices[index].granule].append(index)
        return {
            granule.ordinal: tuple(members[granule.ordinal])
            for granule in self.granules
            if granule.shape and _is_counted([self.devices[i] for i in members[granule.ordinal]], granule.shape)
        }

    def describe(self, indices: Iterable[int]) -> str:
        """Returns devices as people name them, the first of many: "0, 1, 5", or of several hosts "a/0, b/1"."""
        chosen = [self.devices[index] for index in indices]
        many = len(self.hosts) > 1
        names = [f"{device.host}/{device.local_index}" if many else str(device.local_index) for device in chosen]
        more = f", … ({len(names) - NAMES_SHOWN} more)" if len(names) > NAMES_SHOWN else ""
        return ", ".join(names[:NAMES_SHOWN]) + more


def _is_counted(devices: Sequence[Device], shape: Sequence[int]) -> bool:
    """True where devices fill a slice of this shape and stand in the canonical order: x fastest but for the cores."""
    cores, rest = divmod(len(devices), math.prod(shape))
    if rest or not cores:
        return False
    chips = (coords[::-1] for coords in product(*(range(size) for size in reversed(shape))))
    return all(
        device.coords == chip for device, chip in zip(devices, (c for c in chips for _ in range(cores)), strict=True)
    )


def _tell_doubled(devices: tuple[Device, ...]) -> str:
    places = Counter((device.granule, device.position) for device in devices)
    granule, position = next(place for place, count in places.items() if count > 1)
    return (
        f"two devices stand at position {write_number(position)} of granule {write_number(granule)}; positions count "
        f"0, 1, … in each granule and every one holds one device"
    )
