"""Replica groups in every form that XLA writes, and the axes that they are of."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiling.hlo.groups import Groups, MeshIds, read_groups
from meshwright.compiling.hlo.module import build_message
from tests.unit.compiling.hlo_text import build_module

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def list_groups(shape: tuple[int, ...], axes: tuple[int, ...]) -> set[frozenset[int]]:
    """Groups of a mesh over some of its axes, by their definition: the other coordinates are equal."""
    groups: dict[tuple[int, ...], set[int]] = {}
    for place, coordinates in enumerate(itertools.product(*map(range, shape))):
        outside = tuple(c for axis, c in enumerate(coordinates) if axis not in axes)
        groups.setdefault(outside, set()).add(place)
    return {frozenset(group) for group in groups.values()}


def name_mesh(shape: tuple[int, ...]) -> dict[str, int]:
    return {f"a{axis}": size for axis, size in enumerate(shape)}


@st.composite
def shapes_and_axes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(SHAPES)
    return shape, tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1)))))


@pytest.mark.parametrize(("written", "groups"), [
    ("{{0,1},{2,3}}", [(0, 1), (2, 3)]), ("{{0,2},{1,3}}", [(0, 2), (1, 3)]), ("{}", [tuple(range(8))]),
    ("[2,4]<=[8]", [(0, 1, 2, 3), (4, 5, 6, 7)]), ("[4,2]<=[2,4]T(1,0)", [(0, 4), (1, 5), (2, 6), (3, 7)]),
    ("[8,1]<=[8]", [(i,) for i in range(8)]), ("mesh['axis_0'=8,'axis_1'=1] {'axis_0'}", [tuple(range(8))]),
    ("mesh['fsdp'=4,'tp'=2] {'fsdp'}", [(0, 2, 4, 6), (1, 3, 5, 7)]),
    ("mesh['fsdp'=4,'tp'=2] {'tp'}", [(0, 1), (2, 3), (4, 5), (6, 7)]),
    ("mesh['a'=4,'b'=2] {'a':(1)2}", [(0, 4), (2, 6), (1, 5), (3, 7)]),
    ("mesh['a'=4,'b'=2] {'a':(2)2}", [(0, 2), (4, 6), (1, 3), (5, 7)]),
    ("mesh['a'=8] {'a':(2)2}", [(0, 2), (1, 3), (4, 6), (5, 7)]),
    ("mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'a'}", [(0, 1), (2, 3), (4, 5), (6, 7)]),
    ("mesh['a'=2,'b'=2], device_ids=(0,3,1,2) {'b'}", [(0, 3), (1, 2)]),
])  # fmt: skip
def test_each_form_of_replica_groups_is_read(written: str, groups: list[tuple[int, ...]]) -> None:
    found = read_text(written, 8)
    assert {frozenset(group) for group in found} == {frozenset(group) for group in groups}
    assert len(found) == len(groups)


def read_text(written: str, device_count: int) -> Groups:
    text = f"""HloModule m, num_partitions={device_count}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}

ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  ROOT %r = f32[8]{{0}} all-reduce(%a), channel_id=1, replica_groups={written}, to_apply=%add
}}
"""
    computations = build_module(text).computations
    (reduced,) = (each for computation in computations for each in computation.instructions if each.channel_id)
    return read_groups(reduced, device_count)


def test_a_collective_without_groups_in_a_known_form_is_refused() -> None:
    with pytest.raises(ValueError, match="no list of groups"):
        read_groups(build_message("Instruction"), 8)


@given(shapes_and_axes())
def test_groups_are_named_by_their_axes_whatever_the_sizes(case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, axes = case
    wide = [f"a{axis}" for axis in axes if shape[axis] > 1]

    named = MeshIds(name_mesh(shape), math.prod(shape)).name_axes([sorted(g) for g in list_groups(shape, axes)])

    assert named == (",".join(wide) or "?")


@pytest.mark.parametrize(("groups", "axis"), [
    ([(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)], "tp"),  # half of tp
    ([(0, 8), (1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14), (7, 15)], "fsdp"),  # half of fsdp
    ([(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)], "fsdp,tp"),  # half of fsdp with all of tp
    ([(0, 5), (1, 4)], "?"),  # a diagonal
    ([(0, 1, 4)], "?"),  # no box
    ([(0, 99)], "?"),  # no place of the mesh
])  # fmt: skip
def test_parts_of_axes_are_of_their_axes_and_no_box_is_of_none(groups: list[tuple[int, ...]], axis: str) -> None:
    assert MeshIds({"fsdp": 4, "tp": 4}, 16).name_axes(groups) == axis


def test_pairs_are_of_the_axes_along_which_they_go() -> None:
    ids = MeshIds({"dp": 2, "tp": 4}, 8)
    ring = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)]

    assert ids.name_axes(ring, are_moves=True) == "tp"
    assert ids.name_axes([(0, 4), (4, 0)], are_moves=True) == "dp"
    assert ids.name_axes([(0, 5), (5, 0)], are_moves=True) == "dp,tp"
    assert ids.name_axes([(0, 8)], are_moves=True) == "?"


def test_ids_between_slices_are_those_of_devices_wherever_they_stand() -> None:
    """2*v5e:2x2, {"dp": 2, "fsdp": 2, "tp": 2}, each slice in an order of its own; groups as libtpu wrote them."""
    places = ((0, 3), (0, 1), (0, 2), (0, 0), (1, 2), (1, 0), (1, 3), (1, 1))
    device_ids = [(granule + 1) * 100_000 + position for granule, position in places]
    ids = MeshIds({"dp": 2, "fsdp": 2, "tp": 2}, 4, [granule for granule, _ in places], device_ids)
    pairs = [(100_003, 200_002), (100_002, 200_003), (100_001, 200_000), (100_000, 200_001)]
    assert ids.name_axes(pairs) == "dp"
    assert ids.name_axes([(100_003, 100_002, 200_002, 200_003)]) == "dp,fsdp"
    assert ids.name_axes([(0, 1), (2, 3)]) == "tp"
    assert ids.name_axes([(100_003, 300_000)]) == "?"
