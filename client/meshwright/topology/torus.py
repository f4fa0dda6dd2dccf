"""The grid of chips inside a TPU slice: how long each dimension is, which of them close to rings, who stands where.

Rule: wrap-around links are those that the topology lists; where it lists no ICI link at all, those that the
generation has on a slice of that shape. Twisted tori are taken for plain ones. Knows no mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.topology.chips import find_chip_by_kind
from meshwright.topology.links import SAME_CHIP_FACTOR
from meshwright.topology.model import ICI, Chip, Topology


@dataclass(frozen=True)
class Dimension:
    """One dimension of a grid of devices. `step`: hops between neighbours. `is_ring`: the last is next to the first."""

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
    chip = find_chip_by_kind(kind)
    rule = _WRAPS.get(chip.family if chip else "")
    return rule(shape) if rule else (False,) * len(shape)


def _wrap_of(length: int) -> Callable[[Sequence[int]], tuple[bool, ...]]:
    return lambda shape: tuple(size == length for size in shape)


def _wrap_cubes(shape: Sequence[int]) -> tuple[bool, ...]:
    return (min(shape) >= 4,) * len(shape)


_WRAPS: Final[Mapping[str, Callable[[Sequence[int]], tuple[bool, ...]]]] = {
    "tpu_v2": _wrap_of(16),
    "tpu_v3": _wrap_of(32),
    "tpu_v4": _wrap_cubes,
    "tpu_v5e": _wrap_of(16),
    "tpu_v5p": _wrap_cubes,
    "tpu_v6e": _wrap_of(16),
    "tpu_7x": _wrap_cubes,
}
"""By hardware family: v4, v5p and 7x are built of cubes of 4×4×4 that optical switches close to rings."""


def read_grid(topology: Topology, indices: Sequence[int]) -> Grid | None:
    """Returns the box that these devices fill; None where they fill none: coordinates unknown, holes, several slices.

    Dimensions of length 1 are left out.
    """
    places = {_find_place(topology, index): index for index in indices}
    if topology.platform != "tpu" or None in places or len(places) != len(indices) or not places:
        return None
    known = sorted(place for place in places if place is not None)
    if len({granule for granule, *_ in known}) > 1 or len({len(place) for place in known}) > 1:
        return None
    ranges = [sorted(set(column)) for column in zip(*known, strict=True)][1:]
    is_box = math.prod(map(len, ranges)) == len(known)
    if not is_box or any(column[-1] - column[0] != len(column) - 1 for column in ranges):
        return None
    return Grid(_build_dimensions(topology, known[0], known[-1]), tuple(places[place] for place in known))


def _find_place(topology: Topology, index: int) -> tuple[int, ...] | None:
    """Returns (granule, …, y, x, core): what sorts devices row-major."""
    device = topology.devices[index]
    if device.coords is None:
        return None
    return (device.granule, *reversed(device.coords), device.core_on_chip or 0)


def _build_dimensions(topology: Topology, first: tuple[int, ...], last: tuple[int, ...]) -> tuple[Dimension, ...]:
    granule, *low = first
    _, *high = last
    sizes = [b - a + 1 for a, b in zip(low, high, strict=True)]
    *chips, cores = sizes
    wraps = _read_wraps(topology, granule, low[:-1], chips)
    dimensions = [Dimension(size, wrap) for size, wrap in zip(chips, wraps, strict=True)]
    return tuple(d for d in (*dimensions, Dimension(cores, step=SAME_CHIP_FACTOR)) if d.size > 1)


def _read_wraps(topology: Topology, granule: int, low: Sequence[int], sizes: Sequence[int]) -> tuple[bool, ...]:
    """Returns which dimensions (outermost first) are rings, by the listed links or else by the generation's rule."""
    if not any(link.kind == ICI for link in topology.links):
        return tuple(reversed(find_wraps(topology.devices[0].kind, tuple(reversed(sizes)))))
    corner: Chip = (granule, tuple(reversed(low)))
    return tuple(
        size > 2 and _step(corner, len(sizes) - 1 - axis, size - 1) in topology.neighbours(corner)
        for axis, size in enumerate(sizes)
    )


def _step(chip: Chip, axis: int, steps: int) -> Chip:
    granule, coords = chip
    return granule, (*coords[:axis], coords[axis] + steps, *coords[axis + 1 :])
