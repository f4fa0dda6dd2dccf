"""Which k of n devices: those with as few slow links between them as can be.

Rule: few fast domains (slices, NVLink domains, hosts) are filled, the one that fits best first, and inside a torus a
box. Of equal choices the one with the lowest devices wins. Knows no mesh and no health: the caller gives devices that
may be used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, product
from typing import Final

from meshwright.planning.assign import search_subset
from meshwright.topology.links import price_pairs
from meshwright.topology.model import Topology
from meshwright.topology.torus import Dimension, Place, build_place, find_dimensions

SUBSET_COUNT_MAX: Final = 64
"""Above, devices that fill no box are taken as they stand: comparing all pairs would take seconds."""

EVEN_SETS_MAX: Final = 3
"""How many numbers of domains are tried for equal parts, the lowest first."""


def sort_plain(topology: Topology, indices: Sequence[int]) -> tuple[int, ...]:
    """Returns devices in plain order."""
    ranks = {index: rank for rank, index in enumerate(topology.order)}
    return tuple(sorted(indices, key=ranks.__getitem__))


def pack_devices(topology: Topology, pool: Sequence[int], count: int) -> tuple[int, ...]:
    """Returns `count` devices with the least between them, in plain order.

    Args:
        topology: has the devices.
        pool: those that may be taken, in plain order; at least `count`.
        count: how many.
    """
    if count >= len(pool):
        return tuple(pool)
    groups = _part_domains(topology, pool)
    if len(groups) == 1:
        return _pack_group(topology, pool, count)
    chosen: list[int] = []
    for group, share in _fill(groups, count):
        chosen += pack_devices(topology, group, share)
    return sort_plain(topology, chosen)


def list_packings(topology: Topology, pool: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Yields sets of `count` devices that fill few domains: the packed one, then those with as many in each domain.

    The packed set has the fewest slow links, but a mesh may lie better on equal parts: 12 of two hosts of 8 as 6 and 6.
    """
    packed = pack_devices(topology, pool, count)
    yield packed
    if count >= len(pool):
        return
    groups = sorted(topology.group(pool), key=len)
    fewest = len(topology.group(packed))
    parts = (parts for parts in range(max(2, fewest), len(groups) + 1) if count % parts == 0)
    for number in islice(parts, EVEN_SETS_MAX):
        enough = [group for group in groups if len(group) >= count // number][:number]
        if len(enough) == number:
            chosen = [index for group in enough for index in pack_devices(topology, group, count // number)]
            yield sort_plain(topology, chosen)


def _part_domains(topology: Topology, pool: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the devices by fast domain; those of a single one by granule."""
    groups = topology.group(pool)
    if len(groups) > 1:
        return groups
    hosts: dict[int, list[int]] = defaultdict(list)
    for index in pool:
        hosts[topology.places[index][0]].append(index)
    return tuple(map(tuple, hosts.values()))


def _fill(groups: Sequence[tuple[int, ...]], count: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields which groups give how many: the smallest that is enough for what is left, else the largest one."""
    left = list(groups)
    while count:
        enough = [group for group in left if len(group) >= count]
        group = min(enough, key=len) if enough else max(left, key=len)
        left.remove(group)
        yield group, min(len(group), count)
        count -= min(len(group), count)


def _pack_group(topology: Topology, pool: Sequence[int], count: int) -> tuple[int, ...]:
    if topology.is_uniform:
        return tuple(pool[:count])
    box = _find_box(topology, pool, count) if topology.platform == "tpu" else None
    if box is not None:
        return sort_plain(topology, box)
    if len(pool) > SUBSET_COUNT_MAX:
        return tuple(pool[:count])
    return tuple(pool[rank] for rank in search_subset(count, price_pairs(topology, pool)))


def _find_box(topology: Topology, pool: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Returns the devices of a box of whole chips, the most compact one there is room for; None where there is none."""
    granule = topology.places[pool[0]][0]
    everyone = (index for index, place in enumerate(topology.places) if place[0] == granule)
    *dimensions, core = find_dimensions(topology, everyone) or (Dimension(0),)
    chips = _group_chips(topology, pool)
    whole = {place for place, members in chips.items() if len(members) == core.size}
    if not whole or count % core.size:
        return None
    low = tuple(map(min, zip(*chips, strict=True)))
    free = {tuple(a - b for a, b in zip(place, low, strict=True)) for place in whole}
    for shape in _list_shapes(count // core.size, dimensions):
        for corner in _list_corners(shape, dimensions, free):
            if all(map(free.__contains__, product(*(range(c, c + n) for c, n in zip(corner, shape, strict=True))))):
                places = product(*(range(a + c, a + c + n) for a, c, n in zip(low, corner, shape, strict=True)))
                return tuple(index for place in places for index in chips[place])
    return None


def _group_chips(topology: Topology, pool: Sequence[int]) -> dict[Place, list[int]]:
    """Returns the devices by the place of their chip, (z, y, x); those without coordinates are left out."""
    chips: dict[Place, list[int]] = defaultdict(list)
    for index in pool:
        place = build_place(topology.devices[index].coords, None)
        if place is not None:
            chips[place[1:-1]].append(index)
    return chips


def _list_shapes(chip_count: int, dimensions: Sequence[Dimension]) -> list[Place]:
    """Returns the boxes of so many chips that fit, those with the shortest ways inside first."""
    if not dimensions:
        return [()] if chip_count == 1 else []
    shapes = [
        (size, *rest)
        for size in range(1, min(chip_count, dimensions[0].size) + 1)
        if chip_count % size == 0
        for rest in _list_shapes(chip_count // size, dimensions[1:])
    ]
    return sorted(shapes, key=lambda shape: (_measure_ways(shape, dimensions), shape))


def _measure_ways(shape: Sequence[int], dimensions: Sequence[Dimension]) -> float:
    """Returns the mean way between two chips of a box, in hops: a third of each length, of a whole ring a quarter."""
    return sum(
        size / 4 if dimension.is_ring and size == dimension.size else (size - 1 / size) / 3
        for size, dimension in zip(shape, dimensions, strict=True)
    )


def _list_corners(shape: Sequence[int], dimensions: Sequence[Dimension], free: Collection[Place]) -> list[Place]:
    """Returns where a box can stand, its lowest chip being free: at multiples of its own lengths first, so that what is
    left can be filled too."""
    ends = [dimension.size - size for size, dimension in zip(shape, dimensions, strict=True)]
    fitting = (place for place in free if all(value <= end for value, end in zip(place, ends, strict=True)))
    return sorted(fitting, key=lambda corner: (any(c % size for c, size in zip(corner, shape, strict=True)), corner))
