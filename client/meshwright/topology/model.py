"""Topology: devices, links and granules as one object that the planner can ask. Refuses to exist when
inconsistent.

Knows only what the machine said: which devices there are and what joins them. What a link costs stands in
`meshwright.topology.links`, who a device is in `meshwright.topology.identity`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from meshwright.topology.identity import Position
from meshwright.wire.devices import Device, Devices, Granule, Link, Platform
from meshwright.wire.mesh import DeviceRef

ICI: Final = "ICI"

Chip = tuple[int, tuple[int, ...]]
"""A TPU chip: (granule, coordinates). Its cores are devices of their own on some generations."""


@dataclass(frozen=True)
class Topology:
    """The devices of one host, slice or fleet. Indices below are places in `devices`, as in `links`.

    Raises:
        ValueError: two devices at one place of a granule, a device in a granule that is not listed, or a link
            to a device that is not there or to itself.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    granules: tuple[Granule, ...] = ()

    def __post_init__(self) -> None:
        if len(self.order) != len(self.devices):
            raise ValueError(_tell_doubled(self.devices))
        strangers = {device.granule for device in self.devices} - {granule.ordinal for granule in self.granules}
        if strangers:
            raise ValueError(
                f"devices stand in granule {min(strangers)}; the topology lists {len(self.granules)} "
                f"granules, "
                f"and every device must stand in one of them"
            )
        count = len(self.devices)
        for link in self.links:
            if not (0 <= link.a < count and 0 <= link.b < count and link.a != link.b):
                raise ValueError(
                    f"a {link.kind} link joins {link.a} and {link.b}; it must join two of the {count} devices"
                )

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
        places = {(device.granule, device.position): index for index, device in enumerate(self.devices)}
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
        """What a request may call a device (local index, uuid, PCI bus id) → the devices so called."""
        names: dict[int | str, list[int]] = defaultdict(list)
        for index in self.order:
            device = self.devices[index]
            names[device.local_index].append(index)
            for name in filter(None, (device.uuid, device.pci_bus_id)):
                names[name.lower()].append(index)
        return {name: tuple(indices) for name, indices in names.items()}

    @cached_property
    def is_uniform(self) -> bool:
        """True when every device reaches every other one alike, so that order cannot matter for speed."""
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

        The way is searched over the ICI links; where none is listed, coordinates stand for a grid without
        wrap-around. Two cores of one chip are 0 hops apart.
        """
        if self.platform != "tpu":
            return None
        start = self._chip(a)
        if start not in self._hops:
            self._hops[start] = self._search_hops(start) if self._chip_neighbours else self._count_hops(start)
        return self._hops[start].get(self._chip(b))

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

    def place(self, index: int) -> Position:
        """Returns (granule ordinal, position in the granule) of a device."""
        return self.devices[index].granule, self.devices[index].position

    def describe(self, indices: Iterable[int]) -> str:
        """Returns local indices as people read them: "0, 1, 5"."""
        return ", ".join(str(self.devices[index].local_index) for index in indices)


def _tell_doubled(devices: tuple[Device, ...]) -> str:
    places = [(device.granule, device.position) for device in devices]
    granule, position = next(place for place in places if places.count(place) > 1)
    return (
        f"two devices stand at position {position} of granule {granule}; positions count 0, 1, … in each "
        f"granule "
        f"and every one holds one device"
    )
