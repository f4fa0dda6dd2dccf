"""JAX's own order, beside what `mesh_utils` gives for stand-ins of the same devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import mesh_utils

from meshwright.planning.importance import weigh_positions
from meshwright.planning.jax_order import Box, find_cuts, find_fixed_order
from meshwright.planning.order import cut_like_jax, search_layout
from meshwright.planning.score import score_order
from meshwright.planning.torus import TorusOrder, list_torus_places
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.topology.torus import Dimension
from tests.fakes.jax_devices import FakeSliced

Shape = tuple[int, ...]

IS_NEW = jax.__version_info__ >= (0, 12)
"""Older releases fail on large prime factors, have no fixed order for the kinds "TPU v5" and "TPU v5e", and count the
cores of a TPU7x last."""

CORES = {"TPU v2": 2, "TPU v3": 2, "TPU7x": 2, "TPU7": 2}
KINDS = ["TPU v2", "TPU v3", "TPU v4", "TPU v5 lite", "TPU v5p", "TPU v6 lite", "TPU v6e", "TPU7x", "TPU7"]
KINDS_NEW = [*KINDS, "TPU v5", "TPU v5e"] if IS_NEW else KINDS


@dataclass(frozen=True)
class FakeCore(FakeSliced):
    """A device of a TPU slice of which there may be several, each chip with one core or two."""

    coords: Shape
    core_on_chip: int


def build_devices(box: Box, slices: int = 1) -> list[Any]:
    """The devices of slices in the order of their coordinates."""
    x, y, z = box.shape
    places = [
        (number, place[::-1], core)
        for number in range(slices)
        for place in product(range(z), range(y), range(x))
        for core in range(box.cores)
    ]
    assert len(set(places)) == slices * box.device_count, "each core of each chip once"
    return [FakeCore(i, number, "tpu", box.kind, number, *place) for i, (number, *place) in enumerate(places)]


def ask_jax(sizes: Shape, box: Box) -> list[int]:
    mesh = mesh_utils.create_device_mesh(sizes, build_devices(box), allow_split_physical_axes=True)
    assert mesh.shape == sizes
    return [device.id for device in mesh.flat]


def ask_ours(sizes: Shape, box: Box, *, core_first: bool = IS_NEW) -> list[int] | None:
    dimensions = tuple(Dimension(size) for size in box.shape[::-1] if size > 1)
    if box.cores > 1:
        dimensions = (*dimensions, Dimension(box.cores, step=0.5))
    found = cut_like_jax(sizes, weigh_positions(sizes), dimensions, box, core_first=core_first)
    return list_torus_places(found, dimensions) if isinstance(found, TorusOrder) else found and list(found)


def list_primes(number: int) -> list[int]:
    prime = next((p for p in range(2, number + 1) if number % p == 0), None)
    return [] if prime is None else [prime, *list_primes(number // prime)]


@st.composite
def draw_cases(draw: st.DrawFn, lengths: tuple[int, ...], kinds: list[str]) -> tuple[Shape, Box]:
    """A slice, and a mesh whose sizes are made by dealing out the slice's prime factors."""
    kind = draw(st.sampled_from(kinds))
    x, y, z = (draw(st.sampled_from(lengths)) for _ in range(3))
    cores = draw(st.sampled_from([1, 2])) if kind == "TPU v5p" else CORES.get(kind, 1)
    box = Box(kind, (x, y, 1 if kind in {"TPU v2", "TPU v3"} else z), cores)
    sizes = [1] * draw(st.integers(1, 4))
    for prime in list_primes(box.device_count):
        sizes[draw(st.integers(0, len(sizes) - 1))] *= prime
    return tuple(sizes), box


@given(draw_cases((1, 2, 3, 4, 6, 8), KINDS_NEW))
@settings(max_examples=250)
def test_every_device_is_where_jax_puts_it(case: tuple[Shape, Box]) -> None:
    assert ask_ours(*case) == ask_jax(*case)


PRIMES = (1, 2, 4, 5, 7, 10, 14) if IS_NEW else (1, 2, 4, 5, 7)
"""Of 10 and 14 an older JAX loses the factor 2, and gives another order."""


@given(draw_cases(PRIMES, KINDS_NEW))
@settings(max_examples=100)
def test_with_large_primes_too_every_device_is_where_jax_puts_it_or_an_older_jax_fails(
    case: tuple[Shape, Box],
) -> None:
    try:
        theirs = ask_jax(*case)
    except (TypeError, ValueError):
        assert not IS_NEW
        assert ask_ours(*case) is not None
        return
    assert ask_ours(*case) == theirs


def test_a_mesh_that_an_older_jax_fails_on_has_the_order_of_newer_releases() -> None:
    sizes, box = (56, 8), Box("TPU v5p", (4, 4, 28))
    if IS_NEW:
        assert ask_ours(sizes, box) == ask_jax(sizes, box)
    else:
        with pytest.raises(TypeError):
            ask_jax(sizes, box)
    assert list_parts(sizes, box) == [[(1, 2, 2), (2, 28, 1)], [(0, 4, 1), (1, 2, 1)]]


def list_parts(sizes: Shape, box: Box) -> list[list[Shape]]:
    """Each axis's cuts: dimension (x, y, z, core), size, stride."""
    cuts = find_cuts(sizes, box)
    assert cuts is not None
    return [[(cut.dimension, cut.size, cut.stride) for cut in axis] for axis in cuts]


def box_of(kind: str, *shape: int) -> Box:
    return Box(kind, shape, CORES.get(kind, 1))


FIXED = [
    ((8,), box_of("TPU v2", 2, 2, 1)),
    ((2, 4), box_of("TPU v3", 2, 2, 1)),
    ((4, 8), box_of("TPU v3", 4, 4, 1)),
    ((2, 2, 8), box_of("TPU v2", 4, 4, 1)),
    ((8, 4), box_of("TPU v3", 4, 4, 1)),
    ((4,), box_of("TPU v5 lite", 2, 2, 1)),
    ((2, 2), box_of("TPU v6 lite", 2, 2, 1)),
    ((8,), box_of("TPU v5 lite", 2, 4, 1)),
    ((2, 4), box_of("TPU v6 lite", 4, 2, 1)),
    ((1, 8), box_of("TPU v5 lite", 8, 1, 1)),
    ((4, 2), box_of("TPU v5 lite", 2, 2, 2)),
    ((16,), box_of("TPU v5 lite", 4, 4, 1)),
    ((1, 16, 1), box_of("TPU v6 lite", 4, 4, 1)),
    ((8,), box_of("TPU v5p", 2, 2, 2)),
    ((2, 2, 2), box_of("TPU v5p", 2, 2, 2)),
    ((8,), box_of("TPU7x", 2, 2, 1)),
    ((4, 4), box_of("TPU7x", 2, 2, 2)),
    ((2, 16), box_of("TPU7x", 2, 2, 4)),
    ((8, 3), box_of("TPU7x", 1, 2, 6)),
]


@pytest.mark.parametrize(("sizes", "box"), FIXED)
def test_small_slices_have_the_order_that_is_fixed_for_them(sizes: Shape, box: Box) -> None:
    fixed = find_fixed_order(sizes, box)
    assert fixed is not None
    assert list(fixed) == ask_jax(sizes, box)


CUT = [
    ((4, 4), box_of("TPU v5 lite", 4, 4, 1)),
    ((2, 8), box_of("TPU v6 lite", 4, 4, 1)),
    ((4,), box_of("TPU v5p", 2, 2, 1)),
    ((16,), box_of("TPU v5p", 2, 2, 4)),
    ((2, 4), box_of("TPU v4", 2, 2, 2)),
    ((64,), box_of("TPU7x", 2, 2, 8)),
    ((8, 4), box_of("TPU7x", 4, 4, 1)),
    ((4,), box_of("TPU7x", 2, 1, 1)),
    ((16,), box_of("TPU v6 lite", 2, 8, 1)),
    ((16, 2, 3), box_of("TPU v4", 4, 6, 4)),
]


@pytest.mark.parametrize(("sizes", "box"), CUT)
def test_others_are_cut(sizes: Shape, box: Box) -> None:
    assert find_fixed_order(sizes, box) is None
    assert ask_ours(sizes, box) == ask_jax(sizes, box)


@pytest.mark.parametrize("box", [box_of("TPU v5", 2, 2, 2), box_of("TPU v5e", 2, 4, 1)])
def test_kinds_that_jax_learnt_late_have_the_order_of_newer_releases(box: Box) -> None:
    fixed = find_fixed_order((8,), box)
    assert fixed is not None
    assert (list(fixed) == ask_jax((8,), box)) == IS_NEW
    alike = {"TPU v5": "TPU v5p", "TPU v5e": "TPU v5 lite"}[box.kind]
    assert fixed == find_fixed_order((8,), Box(alike, box.shape))


MESHES_7X = [(16, 16), (8, 32), (2, 128), (4, 2, 32), (64, 4), (2, 8, 16)]


@pytest.mark.parametrize("sizes", MESHES_7X)
def test_the_cores_of_a_7x_come_first_or_last_as_the_release_has_it(sizes: Shape) -> None:
    box = Box("TPU7x", (4, 4, 8), 2)
    assert ask_ours(sizes, box, core_first=IS_NEW) == ask_jax(sizes, box)


def test_the_releases_differ_on_a_7x_where_the_cores_are_wanted_by_two_axes() -> None:
    box = Box("TPU7x", (4, 4, 8), 2)
    new, old = (find_cuts((16, 16), box, core_first=first) for first in (True, False))
    assert new is not None
    assert old is not None
    assert [[cut.dimension for cut in axis] for axis in new] == [[0, 1], [2, 3]]
    assert [[cut.dimension for cut in axis] for axis in old] == [[2, 3], [0, 1]]


def test_a_mesh_of_another_size_has_no_order() -> None:
    assert find_cuts((3, 5), box_of("TPU v4", 4, 4, 4)) is None
    assert find_cuts((64, 2), box_of("TPU v4", 4, 4, 4)) is None


def test_an_axis_takes_whole_dimensions_first_and_then_of_one_that_is_begun() -> None:
    assert list_parts((8, 8), box_of("TPU v4", 4, 4, 4)) == [[(1, 2, 2), (2, 4, 1)], [(0, 4, 1), (1, 2, 1)]]
    assert list_parts((2, 2, 16), box_of("TPU v4", 4, 4, 4)) == [[(2, 2, 2)], [(2, 2, 1)], [(0, 4, 1), (1, 4, 1)]]


# ---- as plans tell it -----------------------------------------------------------------------------------------------

TARGETS = [
    ("v3:4x4", (4, 8)),
    ("v4:4x4x8", (8, 16)),
    ("v5e:4x4", (16,)),
    ("v5e:8x8", (4, 16)),
    ("v5p:2x2x2", (2, 4)),
    ("v5p:4x4x4", (2, 8, 4)),
    ("v6e:2x4", (2, 4)),
    ("tpu7x:2x2x4", (4, 8)),
]


def read_box(topology: Topology) -> Box:
    """What JAX looks at, by a kind that all releases have a fixed order for."""
    last = topology.devices[-1]
    x, y, z = (value + 1 for value in last.coords or ())
    kind = {"TPU v5": "TPU v5p"}.get(last.kind, last.kind)
    return Box(kind, (x, y, z), (last.core_on_chip or 0) + 1)


@pytest.mark.parametrize(("target", "sizes"), TARGETS)
def test_the_score_of_jaxs_order_is_that_of_the_mesh_it_makes(target: str, sizes: Shape) -> None:
    topology = build_target(target)
    weights = weigh_positions(sizes)
    found = search_layout(sizes, weights, topology, topology.order).jax
    theirs = ask_jax(sizes, read_box(topology))
    assert found is not None
    assert found.key == pytest.approx(score_order(theirs, sizes, weights, topology).key)


BOXES = [
    ("v5e:8x8", (4, 0, 0), (6, 4, 1), (8,)),
    ("v5e:4x4", (1, 0, 0), (3, 1, 1), (2,)),
    ("tpu7x:4x4x4", (2, 2, 2), (4, 4, 4), (16,)),
    ("v4:4x4x4", (0, 1, 2), (4, 3, 4), (2, 8)),
    ("v5p:4x4x4", (2, 2, 2), (4, 4, 4), (8,)),
    ("v5e:4x4", (2, 2, 0), (4, 4, 1), (4,)),
    ("v6e:8x8", (4, 4, 0), (8, 8, 1), (16,)),
    ("v5e:8x8", (0, 0, 0), (4, 4, 1), (16,)),
]


@pytest.mark.parametrize(("target", "low", "high", "sizes"), BOXES)
def test_a_box_inside_a_slice_has_the_score_of_jaxs_order_of_it(
    target: str, low: Shape, high: Shape, sizes: Shape
) -> None:
    topology = build_target(target)
    chosen = [
        index
        for index in topology.order
        if all(a <= c < b for a, c, b in zip(low, topology.devices[index].coords or (), high, strict=True))
    ]
    devices = [
        FakeCore(index, 0, "tpu", device.kind, 0, device.coords or (), device.core_on_chip or 0)
        for index, device in ((index, topology.devices[index]) for index in chosen)
    ]
    mesh = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    weights = weigh_positions(sizes)
    found = search_layout(sizes, weights, topology, chosen).jax
    assert found is not None
    assert found.key == pytest.approx(score_order([d.id for d in mesh.flat], sizes, weights, topology).key)


HYBRID = [("2*v5e:4x4", (4, 8), (2, 1)), ("2*v5e:2x4", (4, 4), (1, 2)), ("4*v5p:2x2x2", (8, 4), (2, 2))]


@pytest.mark.parametrize(("target", "sizes", "dcn"), HYBRID)
def test_over_several_slices_it_is_that_of_the_hybrid_mesh(target: str, sizes: Shape, dcn: Shape) -> None:
    topology = build_target(target)
    weights = weigh_positions(sizes)
    inner = tuple(size // part for size, part in zip(sizes, dcn, strict=True))
    found = search_layout(sizes, weights, topology, topology.order, dcn=dcn).jax
    devices = build_devices(read_box(topology), math.prod(dcn))
    mesh = mesh_utils.create_hybrid_device_mesh(inner, dcn, devices, allow_split_physical_axes=True)
    assert found is not None
    assert found == score_order([device.id for device in mesh.flat], sizes, weights, topology)
