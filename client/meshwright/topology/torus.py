"""The grid of chips inside a TPU slice: how long each dimension is, which of them close to rings, and which device is
where.

Rule: wrap-around links are those that the granule states. A host that lists ICI links without a shape has none, and
hardware without both has those of its generation for that shape. Independent of meshes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.topology.chips import find_chip
from meshwright.topology.identity import canonical
from meshwright.topology.links import SAME_CHIP_FACTOR
from meshwright.topology.model import ICI, Topology


@dataclass(frozen=True)
class Dimension:
    """One dimension of a grid of devices. `step`: hops between neighbors. `is_ring`: the last is next to the first."""

    size: int
    is_ring: bool = False
    step: float = 1.0

    def measure(self, steps: int) -> float:
        """Returns the hops between two places of this dimension that are `steps` apart."""
        return self.step * (min(steps, self.size - steps) if self.is_ring else steps)


@dataclass(frozen=True)
class Grid:
    """Devices that fill a box.

    Attributes:
        dimensions: outermost first, so z, y, x, then the cores of a chip.
        members: the devices (indices into the topology), row-major over the dimensions.
    """

    dimensions: tuple[Dimension, ...]
    members: tuple[int, ...]


def find_wraps(kind: str, shape: Sequence[int]) -> tuple[bool, ...]:
    """Returns, for each dimension of a whole slice of `shape` chips, whether it closes to a ring.

    Source: docs.cloud.google.com/tpu/docs/v4 and …/v5e, the wrap that libtpu describes of its named slices, and
    jax-ml/scaling-book, "TPU networking".
    """
    chip = find_chip(kind)
    if chip is None or chip.platform != "tpu":
        return (False,) * len(shape)
    length = _RING_LENGTHS.get(chip.family)
    return tuple(size == length if length else min(shape) >= 4 for size in shape)


_RING_LENGTHS: Final = {"tpu_v2": 16, "tpu_v3": 32, "tpu_v5e": 16, "tpu_v6e": 16}
"""By hardware family; v4, v5p and 7x are built of cubes of 4×4×4 that optical switches close to rings."""


Place = tuple[int, ...]
"""(granule, …, z, y, x, core): the row-major sort key of devices."""


def read_grid(topology: Topology, indices: Sequence[int]) -> Grid | None:
    """Returns the box that these devices fill. None if coordinates are unknown, or there are holes or several slices.

    Dimensions of length 1 are left out.
    """
    if topology.platform != "tpu" or not indices:
        return None
    members, granule = tuple(indices), topology.places[indices[0]][0]
    if members not in topology.grids:
        chosen = [topology.devices[index] for index in members]
        places = [build_place(device.coords, device.core_on_chip, device.granule) for device in chosen]
        found = build_grid(places, members, lambda sizes: _read_wraps(topology, granule, sizes))
        topology.grids[members] = found
    grid: Grid | None = topology.grids[members]
    return grid


def build_place(coords: Sequence[int] | None, core: int | None, granule: int = 0) -> Place | None:
    """Returns the place of a device; None where its coordinates are not known."""
    return None if coords is None else (granule, *canonical(coords, core))


def build_grid(
    places: Sequence[Place | None], members: Sequence[int], find_rings: Callable[[Place], Sequence[bool]]
) -> Grid | None:
    """Returns the box that the places fill; None where they do not fill a box.

    Args:
        places: of the members, one each.
        members: the device at each place.
        find_rings: which dimensions are rings, by their sizes (…, z, y, x).
    """
    there = {place: member for place, member in zip(places, members, strict=True) if place is not None}
    if len(there) != len(members) or not there or len(set(map(len, there))) > 1:
        return None
    sizes = tuple(max(column) - min(column) + 1 for column in zip(*there, strict=True))
    if sizes[0] > 1 or math.prod(sizes) != len(there):
        return None
    _, *chips, cores = sizes
    dimensions = list_dimensions(chips, find_rings(tuple(chips)), cores)
    return Grid(dimensions, tuple(there[place] for place in sorted(there)))


def list_dimensions(chips: Sequence[int], rings: Sequence[bool], cores: int) -> tuple[Dimension, ...]:
    """Returns the dimensions of a box that are longer than 1.

    Args:
        chips: along each of its dimensions, outermost first: z, y, x.
        rings: which of these close.
        cores: JAX devices of a chip.
    """
    dimensions = [Dimension(size, ring) for size, ring in zip(chips, rings, strict=True)]
    return tuple(each for each in (*dimensions, Dimension(cores, step=SAME_CHIP_FACTOR)) if each.size > 1)


def _read_wraps(topology: Topology, ordinal: int, sizes: Place) -> tuple[bool, ...]:
    """Returns which dimensions (outermost first) are rings: by the granule, or by the kind's rule."""
    told = topology.by_ordinal[ordinal]
    if told.shape and told.wrap:
        # of a twisted torus only the long rings come out where they went in
        sides = zip(told.wrap[::-1], sizes, told.shape[::-1], strict=True)
        most = max(told.shape) if told.twisted else 0
        return tuple(wraps and size == whole >= most for wraps, size, whole in sides)
    if any(link.kind == ICI for link in topology.links):
        return (False,) * len(sizes)
    return find_rings(topology.devices[0].kind, sizes)


def find_dimensions(topology: Topology, indices: Iterable[int]) -> tuple[Dimension, ...]:
    """Returns the dimensions of the box that devices of one granule span, outermost first, the cores of a chip last.

    Holes do not matter here. Devices without coordinates have no dimension.
    """
    devices = [topology.devices[index] for index in indices]
    places = [place for d in devices if (place := build_place(d.coords, d.core_on_chip, d.granule)) is not None]
    if not places:
        return ()
    low = tuple(map(min, zip(*places, strict=True)))
    sizes = tuple(max(column) - first + 1 for column, first in zip(zip(*places, strict=True), low, strict=True))
    rings = _read_wraps(topology, low[0], sizes[1:-1])
    chips = (Dimension(size, ring) for size, ring in zip(sizes[1:-1], rings, strict=True))
    return (*chips, Dimension(sizes[-1], step=SAME_CHIP_FACTOR))


def find_rings(kind: str, sizes: Sequence[int]) -> tuple[bool, ...]:
    """Returns `find_wraps` of sizes with the outermost dimension first: z, y, x."""
    return find_wraps(kind, tuple(reversed(sizes)))[::-1]
