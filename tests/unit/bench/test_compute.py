"""The check of a matmul, and the arrays that are sent; on one CPU device, in this process."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.children.bench.compute import (
    CHECK_FLOPS,
    ComputeCall,
    build_matrix,
    choose_rows,
    count_off,
    multiply,
)
from meshwright_agent.children.bench.measure import Stage
from meshwright_agent.children.bench.transfers import round_sizes
from tests.fakes.stored import ManualClock

DTYPES = ["float32", "bfloat16", "float16"]


@given(st.integers(1, 200_000))
def test_the_first_and_the_last_row_are_checked_and_no_more_than_there_is_time_for(n: int) -> None:
    rows = choose_rows(n)
    assert (rows[0], rows[-1]) == (0, n - 1)
    assert len(set(rows.tolist())) == len(rows) <= n
    assert len(rows) <= 2 or len(rows) * n * n <= CHECK_FLOPS


@given(st.integers(1, 40), st.integers(1, 3000), st.integers(1, 40))
def test_a_product_in_blocks_is_the_product(rows: int, inner: int, columns: int) -> None:
    random = np.random.default_rng(0)
    left = random.integers(-9, 9, (rows, inner)).astype(np.float32)
    right = random.integers(-9, 9, (inner, columns)).astype(np.float32)
    assert np.array_equal(multiply(left, right), left.astype(np.float64) @ right.astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_no_fault_and_one_wrong_element_is(dtype: str) -> None:
    n = 256
    left, right = (build_matrix(n, seed, jnp.dtype(dtype)) for seed in (1, 2))
    expected = multiply(left, right)
    got = expected.astype(jnp.dtype(dtype))
    assert count_off(got, expected, dtype) == 0
    got[3, 5] += got.dtype.type(1 + abs(float(got[3, 5])))
    got[7, 7] = np.nan
    assert count_off(got, expected, dtype) == 2


@given(
    sizes=st.lists(st.integers(4, 2**40), min_size=1, max_size=5),
    item=st.sampled_from([2, 4]),
    parts=st.integers(1, 64),
)
def test_sizes_are_rounded_down_to_whole_parts_and_never_to_nothing(sizes: list[int], item: int, parts: int) -> None:
    rounded = round_sizes(tuple(sizes), item, parts=parts)
    assert len(set(rounded)) == len(rounded)
    for size in rounded:
        assert size % (parts * item) == 0
        assert size > 0
    assert max(rounded) <= max(*sizes, parts * item)
    assert max(rounded) > max(sizes) - parts * 64
    if parts > 1 and max(sizes) >= parts * 64:
        assert max(rounded) // parts % 64 == 0


class Ticking(ComputeCall):
    """Work that takes 3 ms of the stage's clock."""

    def call(self) -> Any:
        self.stage.clock.advance(0.003)
        return jnp.zeros(1)

    def verify(self) -> Any:
        raise NotImplementedError


def test_a_sample_is_the_mean_of_the_calls_that_fill_twenty_milliseconds() -> None:
    work = Ticking(Stage({}, "cpu", "float32", ManualClock()))
    assert work.sample() == pytest.approx(0.003)
    work.choose_calls()
    assert work.calls == 6
    assert work.sample() == pytest.approx(0.003)
