"""Causal attention in blocks of keys, so that the matrix of scores is never held whole; or plainly, where asked.

Rule: forward keeps the output and one number a row; backward computes scores again, block by block. (Dao et al.,
"FlashAttention-2", arXiv:2307.08691, algorithms 1 and 2, written for XLA: any mesh, any backend.) Queries may be
a part of the sequence, keys and values are whole. Knows no mesh.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp

Array = jax.Array

Rows = tuple[Array, Array, Array]

BLOCK: Final = 512
"""Keys in a block: scores of a block are [.., queries, 512]."""

_MASKED: Final = -1e30
"""Not −inf, of which differences are no numbers."""


def attend(query: Array, key: Array, value: Array, *, blocked: bool) -> Array:
    """Returns causal attention [batch, queries, heads, size] in the type of `query`.

    Args:
        query: [batch, queries, heads, group, size]: `group` queries share each head of keys.
        key, value: [batch, keys, heads, size]; as many keys as queries.
        blocked: in blocks; else scores as one array.
    """
    with jax.named_scope("attention"):
        if not blocked or key.shape[1] <= BLOCK:
            return _attend_whole(query, key, value)
        return _attend_blocks(query, key, value, find_block(key.shape[1]))


def find_block(length: int) -> int:
    """Returns the largest block of at most `BLOCK` keys that divides the sequence."""
    return next(size for size in range(min(BLOCK, length), 0, -1) if length % size == 0)


def _score(query: Array, key: Array, start: Array | int) -> Array:
    """Returns scores [batch, heads, group, queries, keys] in float32; keys begin at `start`.

    Where `start` is traced, the barrier ties it to this turn's keys: the mask hangs on nothing else of the loop, and
    JAX (0.10 to 0.12) would take the masks of all blocks out of it: a byte for each score of the whole sequence.
    """
    scale = query.shape[-1] ** -0.5
    if not isinstance(start, int):
        start, _ = jax.lax.optimization_barrier((start, key))
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", query, key, preferred_element_type=jnp.float32) * scale
    rows = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 3)
    columns = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 4) + start
    return jnp.where(columns <= rows, scores, _MASKED)


def _attend_whole(query: Array, key: Array, value: Array) -> Array:
    weights = jax.nn.softmax(_score(query, key, 0), axis=-1).astype(value.dtype)
    return jnp.einsum("bhgqk,bkhd->bqhgd", weights, value)


def _split(keys: Array, block: int) -> Array:
    """Returns keys [blocks, batch, block, heads, size]."""
    batch, length, *rest = keys.shape
    return jnp.moveaxis(keys.reshape(batch, length // block, block, *rest), 1, 0)


def _starts(length: int, block: int) -> Array:
    return jnp.arange(0, length, block, dtype=jnp.int32)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend_blocks(query: Array, key: Array, value: Array, block: int) -> Array:
    return _forward(query, key, value, block)[0]


def _forward(query: Array, key: Array, value: Array, block: int) -> tuple[Array, Array]:
    """Returns the output, and the logarithm of each row's sum [batch, heads, group, queries]."""
    batch, length, heads, group, size = query.shape
    rows = (batch, heads, group, length)

    def step(carry: Rows, part: Rows) -> tuple[Rows, None]:
        top, total, output = carry
        keys, values, start = part
        scores = _score(query, keys, start)
        new_top = jnp.maximum(top, scores.max(axis=-1))
        weights = jnp.exp(scores - new_top[..., None])
        shrink = jnp.exp(top - new_top)
        added = jnp.einsum(
            "bhgqk,bkhd->bhgqd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        return (new_top, total * shrink + weights.sum(axis=-1), output * shrink[..., None] + added), None

    first = (jnp.full(rows, _MASKED), jnp.zeros(rows), jnp.zeros((*rows, size)))
    parts = (_split(key, block), _split(value, block), _starts(key.shape[1], block))
    (top, total, output), _ = jax.lax.scan(step, first, parts)
    normed = (output / total[..., None]).astype(query.dtype)
    return jnp.einsum("bhgqd->bqhgd", normed), top + jnp.log(total)


def _attend_forward(query: Array, key: Array, value: Array, block: int) -> tuple[Array, tuple[Array, ...]]:
    output, logs = _forward(query, key, value, block)
    return output, (query, key, value, output, logs)


def _attend_backward(block: int, kept: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
    query, key, value, output, logs = kept
    scale = query.shape[-1] ** -0.5
    deltas = jnp.einsum("bqhgd,bqhgd->bhgq", output, gradient, preferred_element_type=jnp.float32)

    def step(of_query: Array, part: Rows) -> tuple[Array, tuple[Array, Array]]:
        keys, values, start = part
        weights = jnp.exp(_score(query, keys, start) - logs[..., None])
        of_value = jnp.einsum("bhgqk,bqhgd->bkhd", weights.astype(gradient.dtype), gradient)
        of_weights = jnp.einsum("bqhgd,bkhd->bhgqk", gradient, values, preferred_element_type=jnp.float32)
        of_scores = (weights * (of_weights - deltas[..., None]) * scale).astype(query.dtype)
        of_key = jnp.einsum("bhgqk,bqhgd->bkhd", of_scores, query)
        added = jnp.einsum("bhgqk,bkhd->bqhgd", of_scores, keys, preferred_element_type=jnp.float32)
        return of_query + added, (of_key, of_value)

    with jax.named_scope("attention"):
        parts = (_split(key, block), _split(value, block), _starts(key.shape[1], block))
        of_query, (of_key, of_value) = jax.lax.scan(step, jnp.zeros(query.shape, jnp.float32), parts)
    return of_query.astype(query.dtype), _join(of_key, key), _join(of_value, value)


def _join(parts: Array, like: Array) -> Array:
    return jnp.moveaxis(parts, 0, 1).reshape(like.shape)


_attend_blocks.defvjp(_attend_forward, _attend_backward)
