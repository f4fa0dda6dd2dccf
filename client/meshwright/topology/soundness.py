"""What a description of devices must keep to before anybody counts on it: no place twice, no slice that cannot be.

Rule: what contradicts itself, or has more places than a plan can have devices, is refused before anything is listed.
A check takes time by how many devices there are, not by the numbers that they say, as these may come from anybody.
Knows no planner, no link and no host.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from meshwright.topology.distance import find_offsets
from meshwright.topology.identity import write_chip
from meshwright.wire.devices import Device, Granule

MAX_DEVICE_COUNT: Final = 131_072
"""More than 14 pods of v5p. A device takes about 2 KB as an object."""

MAX_DIMENSION_COUNT: Final = 3
"""JAX's coordinates are x, y and z."""

_WRITTEN_MAX: Final = 10**9
"""Numbers beyond are not written out: they may have thousands of digits."""


def check_granules(devices: Sequence[Device], granules: Sequence[Granule]) -> None:
    """Returns if devices and granules do not contradict each other.

    Raises:
        ValueError: what does, and the rule.
    """
    _check_ordinals(granules)
    members: dict[int, list[Device]] = defaultdict(list)
    for device in devices:
        members[device.granule].append(device)
    _check_strangers(members, granules)
    _check_platforms(devices)
    left = MAX_DEVICE_COUNT
    for granule in granules:
        _check_count(granule, len(members.get(granule.ordinal, ())))
        _check_torus(granule)
        left -= _count_places(granule, members.get(granule.ordinal, ()))
        if left < 0:
            raise ValueError(_tell_many(granule))


def _check_ordinals(granules: Sequence[Granule]) -> None:
    ordinals = Counter(granule.ordinal for granule in granules)
    if len(ordinals) < len(granules):
        doubled = next(ordinal for ordinal, count in ordinals.items() if count > 1)
        raise ValueError(
            f"granule {write_number(doubled)} stands {ordinals[doubled]} times among {len(granules)} granules; each "
            f"has an ordinal of its own, such as 0, 1, …"
        )


def _check_strangers(members: Iterable[int], granules: Sequence[Granule]) -> None:
    strangers = set(members) - {granule.ordinal for granule in granules}
    if strangers:
        raise ValueError(
            f"devices stand in granule {write_number(min(strangers))}; the topology lists {len(granules)} granules, "
            f"and every device must stand in one of them"
        )


def _check_platforms(devices: Sequence[Device]) -> None:
    if len({device.platform for device in devices}) > 1:
        platforms = Counter(device.platform for device in devices)
        said = ", ".join(f"{count} of {name}" for name, count in sorted(platforms.items()))
        raise ValueError(f"its {len(devices)} devices are of {len(platforms)} platforms, {said}; a mesh is of one")


def _check_count(granule: Granule, count: int) -> None:
    if not count <= granule.device_count <= MAX_DEVICE_COUNT:
        raise ValueError(
            f"granule {granule.name} says that it has {write_number(granule.device_count)} devices, and {count} of "
            f"it are listed; device_count is at least that, {count}, and at most {MAX_DEVICE_COUNT:,}"
        )


def _check_torus(granule: Granule) -> None:
    shape, wrap = granule.shape, granule.wrap
    if shape is None:
        if granule.twisted or wrap is not None:
            raise ValueError(
                f"granule {granule.name} says how its dimensions close to rings, and no shape; wrap and twisted are "
                f"those of a shape, such as 4x4x8"
            )
        return
    if not 1 <= len(shape) <= MAX_DIMENSION_COUNT or min(shape) < 1:
        raise ValueError(
            f"granule {granule.name} has the shape {write_sizes(shape) or '[]'}; a slice has 1 to "
            f"{MAX_DIMENSION_COUNT} dimensions of 1 chip or more, such as 2x2x1"
        )
    if wrap is not None and len(wrap) != len(shape):
        raise ValueError(
            f"granule {granule.name} has the shape {write_sizes(shape)} and says of {len(wrap)} dimensions whether "
            f"they close to rings; wrap is one true or false for each of the {len(shape)}"
        )
    if granule.twisted and (find_offsets(shape) is None or not all(wrap or (True,))):
        raise ValueError(
            f"granule {granule.name} is said to be a twisted torus of {write_sizes(shape)} with wrap "
            f"{_write_flags(wrap)}; only a closed k×k×2k or k×2k×2k is twisted, such as 4x4x8"
        )


def _write_flags(wrap: Sequence[bool] | None) -> str:
    return "not said" if wrap is None else ",".join(str(flag).lower() for flag in wrap)


def _count_places(granule: Granule, devices: Sequence[Device]) -> int:
    """Returns how many places a granule's shape has, else the box from the origin that its coordinates need.

    Raises:
        ValueError: coordinates that no chip of it can have, or two devices at one place.
    """
    places = [(device.coords, device.core_on_chip or 0) for device in devices if device.coords is not None]
    if not places:
        return math.prod(granule.shape or (0,))
    coords, cores = [place for place, _ in places], [core for _, core in places]
    seeing = devices if len(places) == len(devices) else [one for one in devices if one.coords is not None]
    if set(map(len, coords)) != {len(granule.shape or coords[0])} or not 1 <= len(coords[0]) <= MAX_DIMENSION_COUNT:
        raise ValueError(_tell_lengths(granule, seeing))
    lowest = min(map(min, zip(*coords, strict=True)))
    highest = tuple(map(max, zip(*coords, strict=True)))
    if min(lowest, *cores) < 0 or any(top >= size for top, size in zip(highest, granule.shape or (), strict=False)):
        raise ValueError(_tell_outside(granule, seeing))
    if len(set(places)) < len(places):
        raise ValueError(_tell_one_place(granule, seeing))
    return math.prod(granule.shape or (top + 1 for top in highest)) * (max(cores) + 1)


def _tell_lengths(granule: Granule, seeing: Sequence[Device]) -> str:
    length = len(granule.shape or seeing[0].coords or ())
    if not 1 <= length <= MAX_DIMENSION_COUNT:
        return (
            f"granule {granule.name} has chips with {length} coordinates; a chip has 1 to {MAX_DIMENSION_COUNT}, such "
            f"as (0,0,0)"
        )
    odd = next(device for device in seeing if len(device.coords or ()) != length)
    whole = f"the shape {write_sizes(granule.shape)}" if granule.shape else f"chips with {length} coordinates"
    return (
        f"granule {granule.name} has {whole}; host {odd.host} has a chip with {len(odd.coords or ())} coordinates; "
        f"chips of a slice have as many as it has dimensions, {length}"
    )


def _tell_outside(granule: Granule, seeing: Sequence[Device]) -> str:
    shape = granule.shape or (math.inf,) * MAX_DIMENSION_COUNT
    odd = next(
        device
        for device in seeing
        if (device.core_on_chip or 0) < 0
        or any(not 0 <= place < size for place, size in zip(device.coords or (), shape, strict=False))
    )
    there = f"the shape {write_sizes(granule.shape)}" if granule.shape else "no shape that is said"
    return (
        f"granule {granule.name} has {there}; host {odd.host} has a chip at {_write_chip(odd)}; a chip stands inside "
        f"its slice, and coordinates and cores count from 0"
    )


def _tell_one_place(granule: Granule, seeing: Sequence[Device]) -> str:
    first: dict[object, Device] = {}
    for device in seeing:
        other = first.setdefault((device.coords, device.core_on_chip or 0), device)
        if other is not device:
            break
    return (
        f"granule {granule.name} has two devices at {_write_chip(device)}, {_name(other)} and {_name(device)}; at one "
        f"place of a slice there is one device"
    )


def _tell_many(granule: Granule) -> str:
    there = f"the shape {write_sizes(granule.shape)}" if granule.shape else "chips far apart by their coordinates"
    return (
        f"granule {granule.name} has {there}, and with it there are more than {MAX_DEVICE_COUNT:,} places for "
        f"devices; all granules have at most so many together, as 14 slices of 16x20x28 do"
    )


def _name(device: Device) -> str:
    return f"{device.host}/{write_number(device.local_index)}"


def _write_chip(device: Device) -> str:
    if max(map(abs, (*(device.coords or ()), device.core_on_chip or 0))) <= _WRITTEN_MAX:
        return write_chip(device.coords, device.core_on_chip)
    return f"({','.join(map(write_number, device.coords or ()))}) core {write_number(device.core_on_chip or 0)}"


def write_sizes(shape: Sequence[int] | None) -> str:
    """Returns a shape as people write it, 4x4x8, however large its numbers are."""
    return "x".join(map(write_number, shape or ()))


def write_number(number: int) -> str:
    """Returns a number; of one that is too long to read, on which side of everything it lies."""
    if abs(number) <= _WRITTEN_MAX:
        return str(number)
    return f"more than {_WRITTEN_MAX:,}" if number > 0 else f"less than {-_WRITTEN_MAX:,}"
