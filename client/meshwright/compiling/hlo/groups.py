"""The groups of devices of a collective, and the mesh axes of these groups.

Groups are read in each form that XLA's protobuf has: lists, iota lists, and axes of a mesh. The axes of a collective
come from its groups, never from its size: the smallest set of axes whose groups hold each of the collective's groups.
XLA splits an axis in two to go through a torus dimension by dimension. Such groups are smaller than the axis and still
belong to it. Groups that are not a box of the mesh have no axis.
Ids are places in the mesh, row-major. A program that runs on several slices numbers the places of one of them.
Transfers between slices use the devices' own ids.
Source: openxla/xla, replica_group.cc and mesh_and_axis.cc.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from meshwright.compiling.hlo.module import list_unknown_fields
from meshwright.wire.verification import UNKNOWN_AXIS

Groups = tuple[tuple[int, ...], ...]

SLICE_IDS: Final = 100_000
"""libtpu's id of a device in another slice: (slice + 1) × 100,000 + its number there (0.0.42, 0.0.50)."""

_CROSS: Final = re.compile(r"\{([\d,]+)\}x\{(\d+):(\d+)\}")


def read_groups(message: Any, device_count: int) -> Groups:
    """Returns the groups of a collective as [group][member].

    Args:
        message: the instruction, in XLA's protobuf.
        device_count: devices of the program: an empty list means all of them.

    Raises:
        ValueError: it has groups in no form that is known.
    """
    if message.HasField("mesh"):
        _check_known(message.mesh, message.mesh.mesh, *message.mesh.axes)
        return _expand_mesh(message.mesh)
    if message.HasField("iota") or message.device_list.HasField("iota"):
        iota = message.iota if message.HasField("iota") else message.device_list.iota
        _check_known(iota)
        ids = _transpose(range(math.prod(iota.sizes)), iota.sizes, iota.order or range(len(iota.sizes)))
        return _cut(ids, iota.group_size)
    if not (message.HasField("device_list") or message.replica_groups):
        raise ValueError("no list of groups, iota list or mesh")
    _check_known(message.device_list)
    listed = [tuple(each.ids) for each in (*message.replica_groups, *message.device_list.replica_groups)]
    groups = tuple(group for group in listed if group)
    return groups or (tuple(range(device_count)),)


def parse_target(written: str) -> Groups:
    """Returns the groups of a transfer between slices: {1,2}x{0:3} is each device with those of its number."""
    if cross := _CROSS.search(written):
        slices = [int(number) for number in cross.group(1).split(",")]
        numbers = range(int(cross.group(2)), int(cross.group(3)) + 1)
        return tuple(tuple(slice_ * SLICE_IDS + number for slice_ in slices) for number in numbers)
    inside = re.findall(r"\{([^{}]*)\}", written)
    return tuple(tuple(int(number) for number in re.findall(r"\d+", group)) for group in inside)


def join_pairs(pairs: Sequence[tuple[int, int]]) -> Groups:
    """Returns the devices that pairs of (source, target) connect: of a permute round rings, each ring."""
    heads: dict[int, int] = {}

    def find(device: int) -> int:
        while heads.setdefault(device, device) != device:
            heads[device] = heads[heads[device]]
            device = heads[device]
        return device

    for source, target in pairs:
        heads[find(source)] = find(target)
    members: dict[int, list[int]] = {}
    for device in list(heads):
        members.setdefault(find(device), []).append(device)
    return tuple(tuple(group) for group in members.values())


@dataclass(frozen=True)
class MeshIds:
    """The places of a mesh, as numbered by the ids of a program.

    Attributes:
        shape: axis sizes.
        device_count: number of devices with ids in the program: those of one granule, where it runs on several.
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

    def name_axes(self, groups: Iterable[Sequence[int]], *, are_moves: bool = False) -> str:
        """Returns the axes that groups of a program's ids run over: "tp", "dp,fsdp"; "?" where they match no axes.

        Args:
            groups: of ids.
            are_moves: each is a pair of (source, target), which may move along several axes at once.
        """
        varying: set[int] = set()
        try:
            for group in groups:
                coordinates = [self._coordinates[self._place(device)] for device in group]
                counts = [len(set(along)) for along in zip(*coordinates, strict=True)]
                if not are_moves and math.prod(counts) != len(group):
                    return UNKNOWN_AXIS
                varying.update(axis for axis, count in enumerate(counts) if count > 1)
        except (LookupError, ValueError):
            return UNKNOWN_AXIS
        return ",".join(name for axis, name in enumerate(self.shape) if axis in varying) or UNKNOWN_AXIS

    def _place(self, device: int) -> int:
        return self._by_device[device] if device >= SLICE_IDS else self._of_first_granule[device]

    @cached_property
    def _by_device(self) -> Mapping[int, int]:
        return {device: place for place, device in enumerate(self.device_ids)}

    @cached_property
    def _coordinates(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*map(range, self.shape.values())))

    @cached_property
    def _of_first_granule(self) -> Sequence[int]:
        if self.device_count >= self.place_count:
            return range(self.place_count)
        return [place for place, granule in enumerate(self.granules) if granule == min(self.granules)]


def _check_known(*messages: Any) -> None:
    if any(list_unknown_fields(each) for each in messages):
        raise ValueError("groups with fields that are not known")


def _expand_mesh(groups: Any) -> Groups:
    mesh = groups.mesh
    wanted = [(each.axis, each.part.before or 1, each.part.size) for each in groups.axes]
    pieces = [
        (axis, before, size)
        for axis, whole in enumerate(mesh.axes)
        for before, size in _cut_axis(whole.size, [part for part in wanted if part[0] == axis])
    ]
    inside = [i for part in wanted for i, piece in enumerate(pieces) if _lies_in(piece, *part)]
    outside = [i for i in range(len(pieces)) if i not in inside]
    count = math.prod(axis.size for axis in mesh.axes)
    ids = mesh.device_ids or _transpose(range(count), mesh.iota.sizes or [count], mesh.iota.order or [0])
    shape = [size for _, _, size in pieces]
    return _cut(_transpose(ids, shape, [*outside, *inside]), math.prod(shape[i] for i in inside))


def _cut_axis(size: int, parts: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Returns (product of the sizes before it, size) of the pieces that parts of an axis consist of."""
    ends = {1, size}
    for _, before, part in parts:
        ends |= {before, before * part} if part else set()
    return [(before, after // before) for before, after in itertools.pairwise(sorted(ends))]


def _lies_in(piece: tuple[int, int, int], axis: int, before: int, size: int) -> bool:
    found, start, length = piece
    return found == axis and (not size or (before <= start and start * length <= before * size))


def _transpose(ids: Sequence[int], sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    places = [0]
    for axis in order:
        places = [place + step for place in places for step in range(0, sizes[axis] * strides[axis], strides[axis])]
    return [ids[place] for place in places]


def _cut(ids: Sequence[int], size: int) -> Groups:
    return tuple(tuple(ids[start : start + size]) for start in range(0, len(ids), size))
