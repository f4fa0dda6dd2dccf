"""`make verify-order` on a few cheap slices with the real compiler."""

from __future__ import annotations

import pytest

from tests.compiler.cases import Case
from tests.compiler.compare import compare_orders, list_complaints
from tests.process.slice_environment import needs_tpu_compiler

pytestmark = pytest.mark.exhaustive


CHEAP = {
    Case("v5p:2x2x4", (4, 4)): [("UniDirection1DRingStrategy", 2), ("UniDirectionNDRingStrategy", 4)],
    Case("tpu7x:2x2x1", (8,)): [("SparseCoreND", 4)],
}


@needs_tpu_compiler
def test_the_compiler_gives_our_order_as_many_colors_as_jax_s() -> None:
    rows = compare_orders(CHEAP)
    assert [(row.case, row.axis) for row in rows] == [(case, axis) for case in CHEAP for axis in case.axes]
    assert not list_complaints(rows)
    assert all(row.jax.failure is None for row in rows)
    chosen = [(row.ours.strategy, row.ours.colors) for row in rows]
    assert chosen == [expected for case in CHEAP.values() for expected in case]
