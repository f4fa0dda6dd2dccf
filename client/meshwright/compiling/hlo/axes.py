"""Which axes of a mesh a collective runs over: told by its groups, never by its size.

Rule: the smallest set of axes whose groups hold each of the collective's groups. XLA cuts an axis in two to go through
a torus dimension by dimension: such groups are smaller than the axis and still its own. Groups that are no box of the
mesh (devices that no choice of coordinates gives) are of no axis.
Ids are places in the mesh, row-major. A program that runs on several slices numbers the places of one of them; what it
sends between slices has devices' own ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from meshwright.wire.verification import UNKNOWN_AXIS

SLICE_IDS: Final = 100_000
"""libtpu's id of a device in another slice: (slice + 1) × 100,000 + its number there (0.0.42, 0.0.50)."""


@dataclass(frozen=True)
class MeshIds:
    """The places of a mesh, as the ids of a program name them.

    Attributes:
        shape: axis sizes.
        device_count: devices whose ids the program has: those of one granule, where it runs on several.
        granules: the granule of each place, row-major; empty: there is one.
        device_ids: JAX's id of the device in each place; empty: the program has no ids of other slices.
    """

    shape: Mapping[str, int]
    device_count: int
    granules: Sequence[int] = ()
    device_ids: Sequence[int] = ()

    @property
    def place_count(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.shape.values())

    def name_axes(self, groups: Iterable[Sequence[int]]) -> str:
        """Returns the axes that groups of a program's ids run over: "tp", "dp,fsdp"; "?" where they are of none."""
        varying: set[int] = set()
        try:
            for group in groups:
                coordinates = [self._coordinates[self._place(device)] for device in group]
                counts = [len(set(along)) for along in zip(*coordinates, strict=True)]
                if math.prod(counts) != len(group):
                    return UNKNOWN_AXIS
                varying.update(axis for axis, count in enumerate(counts) if count > 1)
        except (LookupError, ValueError):
            return UNKNOWN_AXIS
        return self._join(varying)

    def name_moves(self, pairs: Iterable[tuple[int, int]]) -> str:
        """Returns the axes along which pairs of (source, target) send; "?" where an id is of no place."""
        varying: set[int] = set()
        try:
            for pair in pairs:
                source, target = (self._coordinates[self._place(device)] for device in pair)
                varying.update(axis for axis, (a, b) in enumerate(zip(source, target, strict=True)) if a != b)
        except (LookupError, ValueError):
            return UNKNOWN_AXIS
        return self._join(varying)

    def _join(self, varying: set[int]) -> str:
        return ",".join(name for axis, name in enumerate(self.shape) if axis in varying) or UNKNOWN_AXIS

    def _place(self, device: int) -> int:
        return self._by_device[device] if device >= SLICE_IDS else self._of_first_granule[device]

    @cached_property
    def _by_device(self) -> Mapping[int, int]:
        return {device: place for place, device in enumerate(self.device_ids)}

    @cached_property
    def _coordinates(self) -> list[tuple[int, ...]]:
        coordinates: list[tuple[int, ...]] = [()]
        for size in self.shape.values():
            coordinates = [(*place, i) for place in coordinates for i in range(size)]
        return coordinates

    @cached_property
    def _of_first_granule(self) -> Sequence[int]:
        if self.device_count >= self.place_count:
            return range(self.place_count)
        return [place for place, granule in enumerate(self.granules) if granule == min(self.granules)]
