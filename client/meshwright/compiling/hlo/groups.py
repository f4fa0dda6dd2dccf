"""Which devices take part in a collective together: replica groups, however XLA writes them.

Rule: written forms only; what an id means, and which axis of a mesh it is, others know.
Forms: {{0,1},{2,3}} · [2,4]<=[8] · [4,2]<=[2,4]T(1,0) · {} (all) · mesh['a'=4,'b'=2] {'a'} with parts of axes 'a':(1)2
and an order of devices. Source: openxla/xla, replica_group.cc and mesh_and_axis.cc.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Final

Groups = tuple[tuple[int, ...], ...]

_LIST: Final = re.compile(r"\{([^{}]*)\}")
_DIGITS: Final = re.compile(r"\d+")
_IOTA: Final = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PLAIN_IOTA: Final = re.compile(r"\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)")
"""The order of a mesh's devices, `device_ids=([64,8]T(1,0))`: counted over these sizes, then transposed."""
_TURNED: Final = re.compile(r"\[([\d,]+)\]T\(([\d,]+)\)")
_MESH: Final = re.compile(r"mesh\[([^\]]*)\](.*)\{([^{}]*)\}\s*$")
_AXIS: Final = re.compile(r"'?([^'=,\s]+)'?=(\d+)")
_PART: Final = re.compile(r"'?([^':,\s]+)'?(?::\((\d+)\)(\d+))?")


def parse_groups(written: str, device_count: int) -> Groups:
    """Returns the groups [group][member] of a replica_groups attribute.

    Args:
        written: as it stands in the text.
        device_count: devices of the program: {} means all of them.

    Raises:
        ValueError: it is none of the forms that are known.
    """
    if meshed := _MESH.match(written):
        return _expand_mesh(*meshed.groups())
    if iota := _IOTA.match(written):
        count, size, *_ = (*_list_numbers(iota.group(1)), 1)
        return _cut(_expand_iota(iota), size if count else 1)
    if not written.startswith("{"):
        raise ValueError(
            f"replica groups {written[:80]!r} are of no known form; known are {{{{0,1}},{{2,3}}}}, [2,4]<=[8] and "
            "mesh['a'=2,'b'=4] {'a'}"
        )
    listed = tuple(tuple(_list_numbers(inside)) for inside in _LIST.findall(written))
    groups = tuple(group for group in listed if group)
    return groups or (tuple(range(device_count)),)


def parse_pairs(written: str) -> tuple[tuple[int, int], ...]:
    """Returns (source, target) of a collective-permute's pairs, without those that send to themselves."""
    numbers = _list_numbers(written)
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return tuple((source, target) for source, target in pairs if source != target)


def join_pairs(pairs: Sequence[tuple[int, int]]) -> Groups:
    """Returns the devices that pairs connect: of a permute round rings, each ring."""
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


def _expand_iota(found: re.Match[str]) -> list[int]:
    sizes = _list_numbers(found.group(2))
    order = _list_numbers(found.group(3)) if found.group(3) else range(len(sizes))
    return _transpose(list(range(math.prod(sizes))), sizes, order)


def _expand_mesh(axes: str, order: str, grouped: str) -> Groups:
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    wanted = [(name, int(pre or 1), int(size or 0)) for name, pre, size in _PART.findall(grouped)]
    cuts = {name: _cut_axis(size, [part for part in wanted if part[0] == name]) for name, size in sizes.items()}
    pieces = [(name, pre, size) for name, parts in cuts.items() for pre, size in parts]
    inside = [i for name, pre, size in wanted for i, piece in enumerate(pieces) if _lies_in(piece, name, pre, size)]
    outside = [i for i in range(len(pieces)) if i not in inside]
    ids = _list_order(order, math.prod(sizes.values()))
    shape = [size for _, _, size in pieces]
    return _cut(_transpose(ids, shape, [*outside, *inside]), math.prod(shape[i] for i in inside))


def _cut_axis(size: int, parts: Sequence[tuple[str, int, int]]) -> list[tuple[int, int]]:
    """Returns (what stands before, size) of the pieces of an axis that parts of it are made of."""
    ends = {1, size}
    for _, pre, part in parts:
        ends |= {pre, pre * part} if part else set()
    return [(before, after // before) for before, after in itertools.pairwise(sorted(ends))]


def _lies_in(piece: tuple[str, int, int], name: str, pre: int, size: int) -> bool:
    axis, before, length = piece
    return axis == name and (not size or (pre <= before and before * length <= pre * size))


def _list_order(written: str, count: int) -> list[int]:
    """Returns the devices of a mesh, row-major: as they are numbered where nothing else is written."""
    if iota := _IOTA.search(written):
        return _expand_iota(iota)
    if plain := _PLAIN_IOTA.search(written):
        sizes = _list_numbers(plain.group(1))
        return _transpose(range(count), sizes, _list_numbers(plain.group(2) or "") or list(range(len(sizes))))
    return _list_numbers(written) or list(range(count))


def _transpose(ids: Sequence[int], sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    places = [0]
    for axis in order:
        places = [place + step for place in places for step in range(0, sizes[axis] * strides[axis], strides[axis])]
    return [ids[place] for place in places]


def _cut(ids: Sequence[int], size: int) -> Groups:
    return tuple(tuple(ids[start : start + size]) for start in range(0, len(ids), size))


def _list_numbers(written: str) -> list[int]:
    return [int(number) for number in _DIGITS.findall(written)]
