"""`make order-table` on a small fixed sample, its parts on what is made up, and orders that it must not let through."""

from __future__ import annotations

import pytest

from tests.compiler.sweep.cases import Case, find_generation, list_several
from tests.compiler.sweep.orders import Row, compare_cases
from tests.compiler.sweep.table import list_complaints
from tests.fakes.slices import read_named_slices

pytestmark = pytest.mark.exhaustive

NAMED = {named.name: named for named in read_named_slices()}

SAMPLE: dict[str, list[tuple[int, ...]]] = {
    "v4-16": [(8,), (2, 4), (4, 2), (2, 2, 2)], "v4-128": [(64,), (16, 4), (4, 16), (2, 32), (8, 4, 2), (2, 4, 8)],
    "v5e-8": [(8,), (2, 4), (2, 2, 2)], "v5e-16": [(16,), (2, 8)], "v5e-128": [(8, 16), (32, 4), (2, 64), (4, 2, 16)],
    "v6e-64": [(8, 8), (4, 16), (2, 4, 8)], "v6e-256": [(16, 16), (32, 8), (4, 64), (2, 8, 16)],
    "v5p-8": [(4,), (2, 2)], "v5p-16": [(8,), (2, 4), (2, 2, 2)],
    "v5p-896": [(56, 8), (8, 56), (28, 16), (7, 64), (2, 224), (4, 14, 8), (2, 7, 32)],
    "v5p-1408": [(44, 16), (11, 64), (22, 4, 8)], "v5p-2944": [(23, 64), (92, 16), (2, 46, 16)],
    "tpu7x-8": [(8,), (4, 2), (2, 2, 2)], "tpu7x-64": [(8, 8), (4, 2, 8), (2, 4, 8)],
    "tpu7x-256": [(16, 16), (8, 32), (2, 128), (4, 2, 32)], "tpu7x-896": [(56, 16), (7, 128), (4, 28, 8)],
}  # fmt: skip
"""Every generation; small slices of which JAX has fixed orders; lengths with the factors 7, 11 and 23."""

CASES = [Case(NAMED[name], sizes) for name, meshes in SAMPLE.items() for sizes in meshes]
ODD = Case(NAMED["v5p-896"], (56, 8))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return compare_cases(CASES)


# ---- a sample -------------------------------------------------------------------------------------------------------


def test_on_a_sample_of_every_generation_our_order_is_never_worse(rows: list[Row]) -> None:
    assert list_complaints(rows) == []
    assert not [row for row in rows if row.is_worse]
    assert {find_generation(row.case.slice) for row in rows} == {"v4", "v5e", "v5p", "v6e", "tpu7x"}


def test_where_a_long_dimension_must_be_split_our_steps_are_short(rows: list[Row]) -> None:
    row = next(row for row in rows if row.case == ODD)
    assert row.ours
    assert row.ours.hops <= 2
    assert row.jax is None or row.jax.hops > row.ours.hops


def test_on_several_slices_ours_is_never_worse_for_the_same_split() -> None:
    cases = [case for case in list_several() if case.slice.device_count * case.slice_count <= 256][:12]
    found = compare_cases(cases)
    assert not [row for row in found if row.faults or row.is_worse]
    assert sum(row.jax is not None for row in found) > len(found) // 2
