"""Numbers that come back only if every byte went where it should."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.children.bench.measure import (
    build_tile,
    choose_modulus,
    count_wrong,
    expand_tile,
    move_off_alignment,
)

dtypes = st.sampled_from(["float32", "bfloat16", "float16"])


@given(dtypes, st.integers(1, 128))
def test_a_sum_over_the_ranks_is_exact_in_every_dtype(dtype: str, ranks: int) -> None:
    largest = choose_modulus(dtype, ranks) - 1
    total = np.array(0, jnp.dtype(dtype))
    for _ in range(ranks):
        total = (total + np.array(largest, jnp.dtype(dtype))).astype(jnp.dtype(dtype))
    assert float(total) == ranks * largest
    assert largest >= 1


def test_wrong_elements_are_counted_one_by_one_and_nan_is_wrong() -> None:
    expected = np.arange(6, dtype=np.float32)
    got = expected.copy()
    assert count_wrong(got, expected) == 0
    got[2], got[5] = 0, np.nan
    assert count_wrong(got, expected) == 2


@given(st.integers(1, 400), dtypes)
def test_an_array_off_alignment_is_equal_and_aligned_to_its_items_only(count: int, dtype: str) -> None:
    array = expand_tile(build_tile(1, 100), count, jnp.dtype(dtype)).reshape(-1, 1)
    moved = move_off_alignment(array)
    assert moved.dtype == array.dtype
    assert np.array_equal(moved, array)
    assert moved.ctypes.data % array.itemsize == 0
    assert moved.ctypes.data % 64 == array.itemsize
    assert not np.shares_memory(moved, array)
