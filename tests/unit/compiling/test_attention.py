"""Attention in blocks is attention, and never holds the matrix of scores."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiling.step.layers import BLOCK, attend, find_block
from tests.unit.compiling.traced import list_shapes

LENGTHS = (BLOCK, 2 * BLOCK, 3 * 173)
"""One block; two; and three of 173, the largest divisor of 519 that a block may be."""

Inputs = tuple[jax.Array, jax.Array, jax.Array]


def draw(length: int, *, heads: int = 2, group: int = 2, size: int = 4) -> Inputs:
    """Returns queries, keys and values of one sequence; `group` queries share a key."""
    random = np.random.default_rng(length)
    shapes = ((1, length, heads, group, size), (1, length, heads, size), (1, length, heads, size))
    query, key, value = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    return query, key, value


def attend_by_numpy(query: jax.Array, key: jax.Array, value: jax.Array) -> np.ndarray[Any, Any]:
    """Returns causal attention, a row at a time, in float64."""
    queries, keys, values = (np.asarray(array, np.float64) for array in (query, key, value))
    found = np.zeros(queries.shape)
    for place in np.ndindex(queries.shape[:-1]):
        batch, row, head, _ = place
        scores = keys[batch, : row + 1, head] @ queries[place] / np.sqrt(queries.shape[-1])
        weights = np.exp(scores - scores.max())
        found[place] = weights / weights.sum() @ values[batch, : row + 1, head]
    return found


def run(inputs: Any, *, blocked: bool) -> jax.Array:
    mixed: jax.Array = jax.jit(partial(attend, blocked=blocked))(*inputs)
    return mixed


def differentiate(inputs: Inputs, *, blocked: bool) -> Inputs:
    """Returns the gradients of query, key and value of a sum that weighs each output differently."""

    def total(*parts: jax.Array) -> jax.Array:
        mixed = attend(*parts, blocked=blocked)
        return (mixed * jnp.cos(jnp.arange(mixed.size, dtype=jnp.float32)).reshape(mixed.shape)).sum()

    gradients: Inputs = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*inputs)
    return gradients


@pytest.mark.parametrize("length", LENGTHS)
def test_attention_in_blocks_is_the_whole_ones(length: int) -> None:
    inputs = draw(length)
    whole, blocked = (run(inputs, blocked=each) for each in (False, True))
    np.testing.assert_allclose(blocked, whole, atol=2e-6)


@pytest.mark.parametrize("length", LENGTHS)
def test_gradients_of_attention_in_blocks_are_the_whole_ones(length: int) -> None:
    inputs = draw(length)
    for whole, blocked in zip(*(differentiate(inputs, blocked=each) for each in (False, True)), strict=True):
        np.testing.assert_allclose(blocked, whole, atol=2e-5)


@pytest.mark.parametrize("blocked", [False, True])
def test_attention_is_a_softmax_over_what_came_before_for_every_head_of_a_group(blocked: bool) -> None:
    inputs = draw(2 * BLOCK if blocked else 16, heads=2, group=2, size=4)
    np.testing.assert_allclose(run(inputs, blocked=blocked), attend_by_numpy(*inputs), atol=5e-6)


@pytest.mark.parametrize("blocked", [False, True])
def test_a_later_token_changes_no_earlier_output(blocked: bool) -> None:
    length = 2 * BLOCK
    changed = BLOCK + 7
    inputs = draw(length, group=1)
    other = [array.at[:, changed:].add(1.0) for array in inputs]
    before, after = (run(each, blocked=blocked) for each in (inputs, other))
    np.testing.assert_array_equal(before[:, :changed], after[:, :changed])
    assert not np.allclose(before[:, changed:], after[:, changed:])


@pytest.mark.parametrize("is_backward", [False, True])
def test_no_matrix_of_scores_exists_where_attention_is_in_blocks(is_backward: bool) -> None:
    length = 4 * BLOCK
    inputs = draw(length, heads=1, group=1)

    def list_squares(blocked: bool) -> set[tuple[int, ...]]:
        def total(*parts: jax.Array) -> jax.Array:
            return attend(*parts, blocked=blocked).sum()

        traced = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)) if is_backward else total)(*inputs)
        return {shape for shape in list_shapes(traced) if shape.count(length) > 1}

    assert list_squares(blocked=True) == set()
    assert list_squares(blocked=False), "the check sees a matrix of scores where there is one"


def test_attention_keeps_the_type_of_its_queries() -> None:
    inputs = [array.astype(jnp.bfloat16) for array in draw(2 * BLOCK)]
    whole, blocked = (run(inputs, blocked=each) for each in (False, True))
    assert whole.dtype == blocked.dtype == jnp.bfloat16
    np.testing.assert_allclose(blocked.astype(jnp.float32), whole.astype(jnp.float32), atol=0.03)


@given(st.integers(1, 1 << 16))
def test_a_block_divides_the_sequence_and_none_that_is_larger_does(length: int) -> None:
    size = find_block(length)
    assert length % size == 0
    assert 1 <= size <= BLOCK
    assert all(length % larger for larger in range(size + 1, min(BLOCK, length) + 1))
