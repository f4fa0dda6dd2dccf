"""Colors of an all-reduce, beside what libtpu 0.0.42.1 chose for the same groups (16 MiB a device)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.torus import count_colors, count_group_colors, find_whole, has_cores, is_core
from meshwright.topology.torus import Dimension
from tests.compiler.collective import parse_collective

RECORDED = Path(__file__).parents[2] / "compiler" / "recorded"

Place = tuple[int, ...]
CORES = Dimension(2, step=0.5)


def make_torus(text: str, *, cores: bool = False) -> tuple[Dimension, ...]:
    """A slice by its shape, x first: "4x4x8"."""
    sizes = reversed(text.split("x"))
    return (*(Dimension(int(size), is_ring=True) for size in sizes), *((CORES,) if cores else ()))


def make_box(*sizes: int, stride: int = 1) -> list[Place]:
    """A group by its lengths in x, y, z (and core), x's devices `stride` apart."""
    x, y, z, *core = (range(size) for size in (*sizes, 1, 1)[: max(3, len(sizes))])
    return [(c, b, a * stride, *rest) for c, b, a, *rest in product(z, y, x, *core)]


# ---- one device a chip ----------------------------------------------------------------------------------------------

PARTS = [
    ("4x4x4", make_box(2), 2), ("4x4x4", make_box(4), 2), ("4x4x4", make_box(2, stride=2), 2),
    ("4x4x4", make_box(2, 2), 2), ("4x4x4", make_box(2, 2, 2), 2), ("4x4x4", make_box(4, 2), 2),
    ("8x8x8", make_box(8), 2), ("4x4x4", [(0, 0, 0), (3, 2, 1), (1, 1, 2), (2, 0, 3)], 2),
    ("4x4x12", make_box(1, 1, 12), 1), ("4x4x28", make_box(1, 1, 28), 1), ("8x8x8", make_box(4, 4), 1),
    ("4x4x4", make_box(4, 2, 2), 1), ("4x4x4", make_box(4, 4, 2), 1), ("4x8x8", make_box(2, 8, 8), 1),
    ("8x8x8", make_box(8, 2), 1), ("4x4x12", make_box(4, 4, 6), 1), ("16x16", make_box(16), 1),
    ("16x16", make_box(4, 4), 1), ("16x16", make_box(2, 4), 2), ("8x8", make_box(2, 8), 1),
]  # fmt: skip
"""Groups that are no whole plane: only their number counts."""

PLANES = [
    ("2x2x4", make_box(2, 2), 4), ("4x4x4", make_box(4, 4), 4), ("4x4x4", make_box(4, 1, 4), 4),
    ("4x4x4", make_box(1, 4, 4), 4), ("4x8x8", make_box(1, 8, 8), 4), ("8x8x8", make_box(8, 8), 4),
    ("4x12x12", make_box(1, 12, 12), 2), ("8x16x16", make_box(1, 16, 16), 2), ("2x4x4", make_box(2, 4), 2),
    ("4x4x8", make_box(4, 1, 8), 2), ("4x4x8", make_box(1, 4, 8), 2), ("8x16x16", make_box(8, 16), 2),
    ("4x4x12", make_box(4, 1, 12), 2), ("4x4x12", make_box(1, 4, 12), 1), ("4x4x28", make_box(4, 1, 28), 2),
    ("8x8x12", make_box(8, 1, 12), 2), ("4x12x12", make_box(4, 1, 12), 2), ("4x12x12", make_box(4, 12), 1),
    ("4x8x12", make_box(1, 8, 12), 1), ("12x12x16", make_box(12, 1, 16), 1), ("4x4", make_box(4, 4), 4),
    ("8x8", make_box(8, 8), 4), ("4x8", make_box(4, 8), 2), ("16x16", make_box(16, 16), 2),
    ("2x4", make_box(2, 4), 2), ("4x4x4", make_box(4, 4, 4), 6), ("8x8x8", make_box(8, 8, 8), 6),
    ("12x12x12", make_box(12, 12, 12), 3), ("4x4x8", make_box(4, 4, 8), 3),
]  # fmt: skip
"""Groups of two or three whole dimensions: equal sides, sides of 1 to 2, and others, of which x with z fare better."""


@pytest.mark.parametrize(("torus", "group", "colors"), [*PARTS, *PLANES])
def test_a_group_has_the_colors_that_the_compiler_gives_it(torus: str, group: list[Place], colors: int) -> None:
    dimensions = make_torus(torus)
    assert count_group_colors([place[-len(dimensions) :] for place in group], dimensions) == colors


@pytest.mark.parametrize(("torus", "group", "colors"), [PARTS[9], PLANES[1], PLANES[9], PLANES[16]])
def test_neither_order_nor_where_it_lies_nor_wrap_matters(torus: str, group: list[Place], colors: int) -> None:
    open_torus = tuple(Dimension(dimension.size) for dimension in make_torus(torus))
    shuffled = random.Random(7).sample(group, len(group))
    assert count_group_colors(shuffled, open_torus) == colors
    moved = [
        (z if max(z for z, _, _ in group) else z + 1, y if max(y for _, y, _ in group) else y + 1, x)
        for z, y, x in shuffled
    ]
    assert count_group_colors(moved, open_torus) == colors


@given(st.sets(st.tuples(*[st.integers(0, 3)] * 3), min_size=2, max_size=40))
def test_a_group_that_is_no_box_has_what_its_number_gives(group: set[Place]) -> None:
    colors = count_group_colors(list(group), make_torus("4x4x4"))
    widths = [len(set(values)) for values in zip(*group, strict=True)]
    is_plane = len(group) == 4 ** widths.count(4) and set(widths) <= {1, 4} and widths.count(4) > 1
    assert colors == (4 if is_plane else 2 if len(group) <= 9 else 1)


def test_the_worked_example() -> None:
    torus = make_torus("4x4x8")
    assert count_group_colors(make_box(4, 4), torus) == 4
    for other in (make_box(2, 4, 2), make_box(4, 1, 4), make_box(2, 1, 8), make_box(2, 2, 4)):
        assert count_group_colors(other, torus) == 1


# ---- two devices a chip ---------------------------------------------------------------------------------------------

WITH_CORES = [
    ("2x2x1", make_box(2, 2, 1, 1), 4), ("2x2x1", make_box(2, 2, 1, 2), 4), ("4x4x4", make_box(4, 4, 1, 1), 4),
    ("4x4x12", make_box(4, 1, 12, 2), 4), ("4x4x8", make_box(1, 4, 8, 1), 4), ("4x4x4", make_box(4, 4, 4, 1), 12),
    ("2x2x4", make_box(2, 2, 4, 2), 12), ("4x4x4", make_box(4, 1, 1, 1), 2), ("4x4x4", make_box(4, 1, 1, 2), 2),
    ("4x4x4", make_box(1, 1, 1, 2), 2), ("4x4x4", make_box(2, 4, 1, 2), 2), ("4x4x8", make_box(4, 4, 4, 2), 2),
    ("4x4x4", [(0, y, x, x % 2) for y in range(4) for x in range(4)], 2),
]  # fmt: skip


@pytest.mark.parametrize(("torus", "group", "colors"), WITH_CORES)
def test_sparse_cores_have_more_colors_and_never_one(torus: str, group: list[Place], colors: int) -> None:
    dimensions = make_torus(torus, cores=True)
    assert has_cores(dimensions)
    assert count_group_colors(group, dimensions) == colors


def test_only_the_dimension_of_cores_is_less_than_a_hop_wide() -> None:
    assert is_core(CORES)
    assert not is_core(Dimension(2))
    assert not has_cores((Dimension(4), Dimension(1, step=0.5)))
    assert not has_cores(make_torus("4x4x4"))


# ---- what groups are made of ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "count", "whole"), [
    ((4, 1, 4), 16, (0, 2)), ((4, 4, 4), 64, (0, 1, 2)), ((1, 4, 1), 4, (1,)), ((1, 1, 1), 1, ()), ((4, 2, 1), 8, ()),
    ((4, 4, 1), 8, ()),
])  # fmt: skip
def test_a_group_is_whole_dimensions_or_nothing(sizes: Sequence[int], count: int, whole: Sequence[int]) -> None:
    assert find_whole(sizes, make_torus("4x4x4"), count) == whole


def test_cores_are_no_dimension_of_chips() -> None:
    torus = make_torus("4x4x4", cores=True)
    assert find_whole((1, 4, 4, 2), torus, 32) == find_whole((1, 4, 4, 1), torus, 16) == (1, 2)
    assert find_whole((1, 4, 4, 2), torus, 16) == ()
    assert count_colors((1,), torus, 64) == 2


READ = [("v5p-plane", "2x2x4", make_box(2, 2), False), ("tpu7x-plane", "2x2x1", make_box(2, 2, 1, 1), True)]


@pytest.mark.parametrize(("name", "torus", "group", "cores"), READ)
def test_a_compiled_program_says_the_same(name: str, torus: str, group: list[Place], cores: bool) -> None:
    told = parse_collective((RECORDED / f"{name}.txt").read_text())
    assert count_group_colors(group, make_torus(torus, cores=cores)) == told.colors
