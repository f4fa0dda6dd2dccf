"""Numbers that come back only if every byte went where it should."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.children.bench.measure import (
    PERIOD,
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


@given(st.integers(0, 3 * PERIOD), st.integers(0, 2 * PERIOD + 7))
def test_a_part_is_the_same_as_cut_out_of_the_whole(start: int, count: int) -> None:
    tile = build_tile(3, 31)
    whole = np.tile(tile, 7)
    assert np.array_equal(expand_tile(tile, count, np.float32, start=start), whole[start : start + count])


@given(st.integers(0, 50), st.integers(1, 2**20))
def test_other_seeds_and_shifted_parts_look_different(seed: int, shift: int) -> None:
    tile = build_tile(seed, 31)
    part = expand_tile(tile, 512, np.float32)
    assert count_wrong(expand_tile(build_tile(seed + 1, 31), 512, np.float32), part) > 400
    if shift % PERIOD:
        assert count_wrong(expand_tile(tile, 512, np.float32, start=shift), part) > 100


def test_wrong_elements_are_counted_one_by_one_and_nan_is_wrong() -> None:
    expected = np.arange(6, dtype=np.float32)
    got = expected.copy()
    assert count_wrong(got, expected) == 0
    got[2], got[5] = 0, np.nan
    assert count_wrong(got, expected) == 2


@pytest.mark.parametrize("shape", [(5,), (2, 3), (0,)])
def test_another_shape_is_wrong_altogether(shape: tuple[int, ...]) -> None:
    assert count_wrong(np.zeros(shape), np.zeros(6)) == 6
    assert count_wrong(np.zeros(6), np.zeros(shape)) == 6


@given(st.integers(1, 400), dtypes)
def test_an_array_off_alignment_is_equal_and_aligned_to_its_items_only(count: int, dtype: str) -> None:
    array = expand_tile(build_tile(1, 100), count, jnp.dtype(dtype)).reshape(-1, 1)
    moved = move_off_alignment(array)
    assert moved.dtype == array.dtype
    assert np.array_equal(moved, array)
    assert moved.ctypes.data % array.itemsize == 0
    assert moved.ctypes.data % 64 == array.itemsize
    assert not np.shares_memory(moved, array)
