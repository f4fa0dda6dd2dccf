"""Splitting a mesh over granules: by one function, for plans, `create_mesh` and `calculate_host_mesh_shape`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._mesh_order import order_devices
from meshwright.mesh import calculate_host_mesh_shape
from meshwright.planning.granules import interleave_granules, split_axes
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.spec import MeshSpec
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import PlanRequest
from tests.fakes.jax_devices import build_gpus

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)

Sizes = tuple[int, ...]


@pytest.mark.parametrize(("sizes", "granules", "expected"), [
    ((2, 4), 2, (2, 1)), ((3, 4), 2, (1, 2)), ((2, 2), 4, (2, 2)), ((2, 4), 4, (2, 2)), ((6, 10), 15, (3, 5)),
    ((2, 2, 4), 4, (2, 2, 1)), ((4, 2, 8), 8, (4, 2, 1)), ((8, 64), 64, (8, 8)), ((1, 8), 1, (1, 1)),
    ((4, 4), 3, None), ((2, 4), 16, None),
])  # fmt: skip
def test_outer_axes_are_split_first(sizes: Sizes, granules: int, expected: Sizes | None) -> None:
    assert split_axes(sizes, granules) == expected


@pytest.mark.parametrize(
    ("sizes", "granules", "turns", "expected"),
    [((4, 4), 2, (1, 0), (1, 2)), ((4, 2, 8), 8, (2, 0, 1), (1, 1, 8)), ((4, 2), 4, (1, 0), (2, 2))],
)
def test_axes_take_granules_in_their_turns(sizes: Sizes, granules: int, turns: Sizes, expected: Sizes) -> None:
    assert split_axes(sizes, granules, turns) == expected


@given(SIZES, st.integers(1, 60))
def test_there_is_a_split_exactly_when_the_granules_divide_the_mesh(sizes: Sizes, granules: int) -> None:
    found = split_axes(sizes, granules)
    assert (found is not None) == (math.prod(sizes) % granules == 0)
    if found is not None:
        assert math.prod(found) == granules
        assert all(size % part == 0 for size, part in zip(sizes, found, strict=True))


def list_shapes(count: int, axes: int) -> Iterator[Sizes]:
    """Yields all meshes of so many axes that have so many places."""
    if axes == 1:
        yield (count,)
        return
    for size in range(1, count + 1):
        if count % size == 0:
            yield from ((size, *rest) for rest in list_shapes(count // size, axes - 1))


def list_splits(sizes: Sizes, granules: int) -> Iterator[Sizes]:
    """Yields all splits of a mesh over so many granules."""
    parts = product(*([part for part in range(1, size + 1) if size % part == 0] for size in sizes))
    return (split for split in parts if math.prod(split) == granules)


def count_suffixes(split: Sizes) -> Sizes:
    """Over how many granules the last axis goes, the last two, and so on."""
    return tuple(math.prod(split[axis:]) for axis in range(len(split)))


def count_crossed(owners: np.ndarray) -> Sizes:
    """Over how many granules the groups of each axis go; every group over as many."""
    found = []
    for axis in range(owners.ndim):
        lines = np.moveaxis(owners, axis, -1).reshape(-1, owners.shape[axis])
        (count,) = {len(set(line)) for line in lines.tolist()}
        found.append(count)
    return tuple(found)


@pytest.mark.parametrize("each", [1, 2, 4])
@pytest.mark.parametrize("granules", [2, 3, 4, 6, 8, 9, 12, 16])
def test_no_inner_axis_crosses_granules_where_another_split_exists_and_all_agree(granules: int, each: int) -> None:
    devices, topology = build_gpus(granules, each), build_target(f"{granules}*cpu:{each}")
    for sizes in [*list_shapes(granules * each, 2), *list_shapes(granules * each, 3)]:
        split: Any = split_axes(sizes, granules)
        least = [min(counts) for counts in zip(*map(count_suffixes, list_splits(sizes, granules)), strict=True)]
        assert list(count_suffixes(split)) == least, sizes

        spec = MeshSpec(tuple(zip("abc", sizes, strict=False)))
        owners = [device.process_index for device in order_devices(spec, devices)]
        assert count_crossed(np.array(owners).reshape(sizes)) == split, sizes
        plan = plan_mesh(PlanRequest(mesh=str(spec)), topology)
        assert tuple(axis.dcn_size for axis in plan.axes) == split, sizes
        assert [device.granule for device in plan.devices] == owners, sizes
        inside = calculate_host_mesh_shape(sizes, each, granules)
        assert inside == tuple(size // part for size, part in zip(sizes, split, strict=True)), sizes


PARTS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3)


@given(PARTS)
def test_every_member_stands_once_and_the_granule_is_the_outer_part_of_each_axis(parts: list[tuple[int, int]]) -> None:
    dcn, inner = [outer for outer, _ in parts], [inside for _, inside in parts]
    granules = [[(granule, rank) for rank in range(math.prod(inner))] for granule in range(math.prod(dcn))]
    order = interleave_granules(dcn, inner, granules)
    assert sorted(order) == sorted(member for granule in granules for member in granule)
    outer_places, inner_places = (list(product(*map(range, sizes))) for sizes in (dcn, inner))
    for place, (granule, rank) in zip(product(*(range(a * b) for a, b in parts)), order, strict=True):
        outer = tuple(step // size for step, size in zip(place, inner, strict=True))
        inside = tuple(step % size for step, size in zip(place, inner, strict=True))
        assert (outer_places[granule], inner_places[rank]) == (outer, inside)
