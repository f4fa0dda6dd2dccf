"""Topology: devices, links and granules as one validated object that the planner can query.

`check_` functions refuse a description that contradicts itself or has more places than a plan can have devices. Their
run time depends on the number of devices, not on numbers in the description, which may come from an untrusted source.
Distances inside a TPU slice follow from coordinates, shape and rings.

A twisted torus is a grid whose short rings close with an offset of half a long one, which shortens the longest ways.
Sources: J. Cámara et al., "Twisted Torus Topologies for Enhanced Interconnection Networks", IEEE TPDS 21 (2010); N.
Jouppi et al., "TPU v4: An Optically Reconfigurable Supercomputer", ISCA 2023, §2.8 (k×k×2k and k×2k×2k).
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, Final

from meshwright.targets import write_shape
from meshwright.topology.identity import Position, shorten, write_chip
from meshwright.wire.devices import Device, Devices, Granule, Link, MeasuredNetwork, Platform

Coords = tuple[int, ...]

Distance = Callable[[Coords, Coords], int]
"""(one chip, another) → hops."""


@lru_cache(maxsize=64)
def find_distance(shape: Coords, wrap: tuple[bool, ...], *, twisted: bool = False) -> Distance:
    """Returns how far two chips of a slice are apart, in hops.

    Args:
        shape: chips in each dimension.
        wrap: which dimensions close to rings.
        twisted: the short rings close with an offset of half a long one.

    Raises:
        ValueError: a shape that cannot be twisted.
    """
    if twisted:
        return _find_twisted(shape)
    rows = [
        [_measure(steps, size, is_ring=ring) for steps in range(size)] for size, ring in zip(shape, wrap, strict=True)
    ]

    def measure(one: Coords, other: Coords) -> int:
        return sum(row[abs(a - b)] for row, a, b in zip(rows, one, other, strict=True))

    return measure


def _measure(steps: int, size: int, *, is_ring: bool) -> int:
    return min(steps, size - steps) if is_ring else steps


def can_twist(shape: Sequence[int]) -> bool:
    """Returns whether a torus of this shape can be twisted: k×k×2k and k×2k×2k.

    Going once round x of a twisted 4×4×8 ends four chips further along z.
    """
    short, long = min(shape, default=0), max(shape, default=0)
    return len(shape) == MAX_DIMENSION_COUNT and short > 1 and long == 2 * short and set(shape) == {short, long}


def _find_twisted(shape: Coords) -> Distance:
    if not can_twist(shape):
        raise ValueError(f"shape {shape} cannot be twisted; a twisted torus is k×k×2k or k×2k×2k, such as (4, 4, 8)")
    short, long = min(shape), max(shape)
    narrow = [axis for axis, size in enumerate(shape) if size == short]
    wide = [axis for axis, size in enumerate(shape) if size == long]
    choices = tuple(product((0, 1), repeat=len(narrow)))

    def measure(one: Coords, other: Coords) -> int:
        """Each short ring is traversed forwards or backwards: the number of turns moves the long dimensions along."""
        steps = [b - a for a, b in zip(one, other, strict=True)]
        turned = sum(steps[axis] // short for axis in narrow)
        near = [steps[axis] % short for axis in narrow]
        return min(
            sum(abs(step - turn * short) for step, turn in zip(near, turns, strict=True))
            + sum(_measure((steps[axis] - (turned + sum(turns)) * short) % long, long, is_ring=True) for axis in wide)
            for turns in choices
        )

    return measure


MAX_DEVICE_COUNT: Final = 131_072
"""More than 14 pods of v5p. A device takes about 2 KB as an object."""

MAX_DIMENSION_COUNT: Final = 3
"""JAX's coordinates are x, y and z."""


def check_granules(devices: Sequence[Device], granules: Sequence[Granule]) -> None:
    """Checks that devices and granules do not contradict each other.

    Raises:
        ValueError: what does, and the rule.
    """
    ordinals = Counter(granule.ordinal for granule in granules)
    if len(ordinals) < len(granules):
        doubled = next(ordinal for ordinal, count in ordinals.items() if count > 1)
        rule = "each has an ordinal of its own, such as 0, 1, …"
        raise ValueError(f"granule {doubled} stands {ordinals[doubled]} times among {len(granules)} granules; {rule}")
    members: dict[int, list[Device]] = defaultdict(list)
    for device in devices:
        members[device.granule].append(device)
    if strangers := members.keys() - ordinals.keys():
        rule = f"the topology lists {len(granules)} granules, and every device must stand in one of them"
        raise ValueError(f"devices stand in granule {min(strangers)}; {rule}")
    _check_platforms(devices)
    left = MAX_DEVICE_COUNT
    for granule in granules:
        _check_count(granule, len(members.get(granule.ordinal, ())))
        _check_torus(granule)
        left -= _count_places(granule, members.get(granule.ordinal, ()))
        if left < 0:
            there = f"the shape {write_shape(granule.shape)}" if granule.shape else "chips that are far apart"
            raise ValueError(
                f"granule {granule.name} has {there}, and with it there are more than {MAX_DEVICE_COUNT:,} places for "
                f"devices; all granules have at most so many together, as 14 slices of 16x20x28 do"
            )


def _check_platforms(devices: Sequence[Device]) -> None:
    if len({device.platform for device in devices}) > 1:
        platforms = Counter(device.platform for device in devices)
        said = ", ".join(f"{count} of {name}" for name, count in sorted(platforms.items()))
        raise ValueError(f"its {len(devices)} devices are of {len(platforms)} platforms, {said}; a mesh is of one")


def _check_count(granule: Granule, count: int) -> None:
    if not count <= granule.device_count <= MAX_DEVICE_COUNT:
        raise ValueError(
            f"granule {granule.name} says that it has {granule.device_count} devices, and {count} of "
            f"it are listed; device_count is at least that, {count}, and at most {MAX_DEVICE_COUNT:,}"
        )


def _check_torus(granule: Granule) -> None:
    shape, wrap = granule.shape, granule.wrap
    if shape is None:
        if granule.twisted or wrap is not None:
            rule = "wrap and twisted are those of a shape, such as 4x4x8"
            raise ValueError(f"granule {granule.name} says how its dimensions close to rings, and no shape; {rule}")
        return
    if not 1 <= len(shape) <= MAX_DIMENSION_COUNT or min(shape) < 1:
        rule = f"a slice has 1 to {MAX_DIMENSION_COUNT} dimensions of 1 chip or more, such as 2x2x1"
        raise ValueError(f"granule {granule.name} has the shape {write_shape(shape) or '[]'}; {rule}")
    if wrap is not None and len(wrap) != len(shape):
        raise ValueError(
            f"granule {granule.name} has the shape {write_shape(shape)} and says of {len(wrap)} dimensions whether "
            f"they close to rings; wrap is one true or false for each of the {len(shape)}"
        )
    if granule.twisted and not (can_twist(shape) and all(wrap or (True,))):
        raise ValueError(
            f"granule {granule.name} is said to be a twisted torus of {write_shape(shape)} with wrap "
            f"{'not said' if wrap is None else wrap}; only a closed k×k×2k or k×2k×2k is twisted, such as 4x4x8"
        )


def _count_places(granule: Granule, devices: Sequence[Device]) -> int:
    """Returns how many places a granule's shape has, else the box from the origin that its coordinates need.

    Raises:
        ValueError: coordinates that no chip of it can have, or two devices at one place.
    """
    seeing = [device for device in devices if device.coords is not None]
    if not seeing:
        return math.prod(granule.shape or (0,))
    length = len(granule.shape or seeing[0].coords or ())
    if not 1 <= length <= MAX_DIMENSION_COUNT:
        rule = f"a chip has 1 to {MAX_DIMENSION_COUNT}, such as (0,0,0)"
        raise ValueError(f"granule {granule.name} has chips with {length} coordinates; {rule}")
    whole = f"the shape {write_shape(granule.shape)}" if granule.shape else f"chips with {length} coordinates"
    first: dict[tuple[int, ...], Device] = {}
    for device in seeing:
        coords, core = device.coords or (), device.core_on_chip or 0
        if len(coords) != length:
            raise ValueError(
                f"granule {granule.name} has {whole}; host {device.host} has a chip with {len(coords)} coordinates; "
                f"chips of a slice have as many as it has dimensions, {length}"
            )
        if min(*coords, core) < 0 or any(map(operator.ge, coords, granule.shape or ())):
            raise ValueError(
                f"granule {granule.name} has {whole}; host {device.host} has a chip at {write_chip(coords, core)}; a "
                f"chip stands inside its slice, and coordinates and cores count from 0"
            )
        other = first.setdefault((*coords, core), device)
        if other is not device:
            pair = " and ".join(f"{each.host}/{each.local_index}" for each in (other, device))
            rule = "at one place of a slice there is one device"
            raise ValueError(f"granule {granule.name} has two devices at {write_chip(coords, core)}, {pair}; {rule}")
    highest: tuple[int, ...] = tuple(map(max, zip(*first, strict=True)))
    return math.prod(granule.shape or (top + 1 for top in highest[:-1])) * (highest[-1] + 1)


ICI: Final = "ICI"

NAMES_SHOWN: Final = 16
"""The number of devices that a sentence names before "and more"."""


@dataclass(frozen=True)
class Topology:
    """The devices of one host, slice or fleet. Indices below are places in `devices`, as in `links`.

    Attributes:
        network: between hosts, as preflights measured it: the slowest host's; None where one has not.

    Raises:
        ValueError: two devices at one place of a granule, a device in a granule that is not listed, granules that
            contradict themselves or each other, or a link to a device that is not
            there or to itself.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    granules: tuple[Granule, ...] = ()
    network: MeasuredNetwork | None = None

    def __post_init__(self) -> None:
        if len(self.order) != len(self.devices):
            raise ValueError(_describe_doubled(self.devices))
        check_granules(self.devices, self.granules)
        count = len(self.devices)
        for link in self.links:
            if not (0 <= link.a < count and 0 <= link.b < count and link.a != link.b):
                ends = f"{link.a} and {link.b}"
                raise ValueError(f"a {link.kind} link joins {ends}; it must join two of the {count} devices")

    @classmethod
    def of(cls, devices: Devices) -> Topology:
        """Returns the topology that the reply of `GET /devices` describes.

        Raises:
            ValueError: the reply contradicts itself.
        """
        return cls(devices.devices, devices.links, devices.granules, devices.network)

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
        """Granule → the kinds of its devices, and the least memory of any of them; None where no memory is known."""
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
        """Granule → its fast domain: its NVLink domain where that spans hosts, otherwise the granule itself."""
        return {granule.ordinal: granule.domain or granule.ordinal for granule in self.granules}

    @cached_property
    def by_ordinal(self) -> Mapping[int, Granule]:
        """Ordinal → the granule."""
        return {granule.ordinal: granule for granule in self.granules}

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
        if self.platform == "tpu" or len(set(self.domains.values())) > 1:
            return False
        if len(self.devices) < 3:
            return True
        kinds = {(link.kind, link.bandwidth_bytes_per_s) for link in self.links}
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

    def hops(self, a: int, b: int) -> int | None:
        """Returns the number of ICI links on the shortest path between two devices; None where there is no path.

        If the granule has a shape and wrap, the distance follows from them. Otherwise the coordinates form a grid
        without wrap-around. Two cores of one chip are 0 hops apart.
        """
        one, other = self.devices[a], self.devices[b]
        if self.platform != "tpu" or one.granule != other.granule or one.coords is None or other.coords is None:
            return None
        distance = self.distances.get(one.granule)
        if distance is not None:
            return distance(one.coords, other.coords)
        return sum(abs(x - y) for x, y in zip(one.coords, other.coords, strict=True))

    @cached_property
    def distances(self) -> Mapping[int, Distance]:
        """Granule → hops between two of its chips by coordinates, for granules with a known shape and wrap."""
        return {
            granule.ordinal: find_distance(granule.shape, granule.wrap, twisted=granule.twisted)
            for granule in self.granules
            if granule.shape and granule.wrap
        }

    @cached_property
    def places(self) -> tuple[Position, ...]:
        """(granule ordinal, position in the granule) of each device."""
        return tuple((device.granule, device.position) for device in self.devices)

    @cached_property
    def grids(self) -> dict[tuple[int, ...], Any]:
        """What `torus.read_grid` has found, by devices."""
        return {}

    def describe(self, indices: Iterable[int]) -> str:
        """Returns devices as people name them, the first of many: "0, 1, 5", or of several hosts "a/0, b/1"."""
        chosen = [self.devices[index] for index in indices]
        many = len(self.hosts) > 1
        names = [f"{device.host}/{device.local_index}" if many else str(device.local_index) for device in chosen]
        return shorten(names, NAMES_SHOWN)


def _describe_doubled(devices: tuple[Device, ...]) -> str:
    places = Counter((device.granule, device.position) for device in devices)
    granule, position = next(place for place, count in places.items() if count > 1)
    return f"two devices stand at position {position} of granule {granule}; positions 0, 1, … have one device each"
