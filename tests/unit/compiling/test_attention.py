"""Attention in blocks is attention, and never holds the matrix of scores."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiling.step.layers import BLOCK, attend
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
def test_attention_in_blocks_and_its_gradients_are_the_whole_ones(length: int) -> None:
    inputs = draw(length)
    whole, blocked = (run(inputs, blocked=each) for each in (False, True))
    np.testing.assert_allclose(blocked, whole, atol=2e-6)
    for whole, blocked in zip(*(differentiate(inputs, blocked=each) for each in (False, True)), strict=True):
        np.testing.assert_allclose(blocked, whole, atol=2e-5)


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
