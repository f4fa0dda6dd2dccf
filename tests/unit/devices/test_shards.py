from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._devices.shards import plan_rows, split_rows

counts = st.integers(0, 200)
shard_counts = st.integers(1, 17)


@given(counts, shard_counts)
def test_every_row_is_in_exactly_one_shard_and_in_order(rows: int, shards: int) -> None:
    parts = plan_rows(rows, shards)
    assert len(parts) == shards
    assert [row for part in parts for row in range(rows)[part]] == list(range(rows))


@given(counts, shard_counts)
def test_sizes_differ_by_one_at_most_and_the_larger_come_first(rows: int, shards: int) -> None:
    sizes = [part.stop - part.start for part in plan_rows(rows, shards)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert sizes.count(max(sizes)) == (rows % shards or shards)


@pytest.mark.parametrize(
    ("rows", "shards", "sizes"), [(7, 3, [3, 2, 2]), (2, 4, [1, 1, 0, 0]), (0, 2, [0, 0]), (8, 8, [1] * 8)]
)
def test_rows_are_dealt_out_as_the_examples_say(rows: int, shards: int, sizes: list[int]) -> None:
    assert [part.stop - part.start for part in plan_rows(rows, shards)] == sizes


@pytest.mark.parametrize(("rows", "shards"), [(1, 0), (1, -1), (-1, 1)])
def test_there_are_no_fewer_than_one_shard_and_no_rows(rows: int, shards: int) -> None:
    with pytest.raises(ValueError, match="1 shard at least"):
        plan_rows(rows, shards)


@given(st.integers(0, 40), shard_counts)
def test_shards_put_together_are_the_data(rows: int, shards: int) -> None:
    data = {"x": np.arange(rows * 3).reshape(rows, 3), "y": [np.arange(rows) > 2, (np.zeros((rows, 0)),)]}
    parts = split_rows(data, shards)
    again = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    assert jax.tree.structure(again) == jax.tree.structure(data)
    for leaf, expected in zip(jax.tree.leaves(again), jax.tree.leaves(data), strict=True):
        assert leaf.dtype == expected.dtype
        np.testing.assert_array_equal(leaf, expected)


def test_a_shard_is_a_copy_of_its_rows() -> None:
    data = np.zeros((4, 2))
    parts = split_rows(data, 2)
    data[:] = 7
    assert not np.concatenate(parts).any()


def test_random_keys_and_types_that_numpy_lacks_are_arrays_too() -> None:
    data = (jax.random.split(jax.random.key(0), 5), jnp.ones((5, 2), jnp.bfloat16))
    keys, ones = split_rows(data, 2)[0]
    assert (keys.shape, keys.dtype) == ((3,), data[0].dtype)
    assert (ones.shape, ones.dtype) == ((3, 2), jnp.bfloat16)


def test_an_empty_place_of_a_pytree_stays_empty() -> None:
    assert split_rows({"x": np.arange(2), "y": None}, 2)[1]["y"] is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": np.zeros((4, 2)), "y": [np.zeros(3)]}, [r"\['x'\] has 4", r"\['y'\]\[0\] has 3", "the same"]),
        ({"x": np.zeros(4), "step": 3}, [r"leaf \['step'\] is a scalar", "replicate"]),
        (np.float32(1), [r"leaf \(data\) is a scalar"]),
        ({}, ["no leaf", r"numpy\.zeros"]),
        (None, ["no leaf"]),
    ],
)
def test_data_that_cannot_be_split_is_refused_by_the_leafs_path(data: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        split_rows(data, 2)
    for word in words:
        assert caught.match(word)


@pytest.mark.parametrize("leaf", ["text", object(), np.array(["a", "b"]), np.array([1, None])])
def test_what_is_no_array_of_numbers_is_refused_by_its_path(leaf: object) -> None:
    with pytest.raises(TypeError, match=r"leaf \['x'\]\[0\] is a .* array of numbers"):
        split_rows({"x": [leaf]}, 2)
