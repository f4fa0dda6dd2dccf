"""Causal attention in blocks, forward and backward, so that no matrix of S × S scores ever stands in memory.

Rule: scores live for one pair of blocks; backward has them again, from the sums that forward kept. Knows no mesh:
whoever holds a part of the queries says at which position it begins.
Source: Dao, FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2, with queries and keys in passes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp

BLOCK: Final = 512
"""Positions of a block, at most."""

Array = Any
NEVER: Final = -1e30
"""The score of a key that comes later. Finite, for a row of -inf alone would make NaN."""


def attend_plain(query: Array, key: Array, value: Array, begin: Array) -> Array:
    """Returns attention with all scores at once, as [batch, kv_head, group, position, head_dim].

    Args:
        query: [batch, kv_head, group, position, head_dim], scaled.
        key: [batch, kv_head, all positions, head_dim].
        value: as key.
        begin: position of the first query.
    """
    scores = _score(query, key, begin, 0)
    return _mix(jax.nn.softmax(scores, axis=-1), value).astype(query.dtype)


@jax.custom_vjp
def attend_blocks(query: Array, key: Array, value: Array, begin: Array) -> Array:
    """Returns what `attend_plain` does, block by block."""
    return _run_forward(query, key, value, begin)[0]


def _keep(query: Array, key: Array, value: Array, begin: Array) -> tuple[Array, tuple[Array, ...]]:
    out, logsum = _run_forward(query, key, value, begin)
    return out, (query, key, value, begin, out, logsum)


def _return(kept: tuple[Array, ...], told: Array) -> tuple[Array, ...]:
    query, key, value, begin, out, logsum = kept
    dot = jnp.sum(told.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)
    queries = (query, told, logsum, dot)
    return _return_queries(queries, key, value, begin), *_return_keys(queries, key, value, begin), None


attend_blocks.defvjp(_keep, _return)


def _run_forward(query: Array, key: Array, value: Array, begin: Array) -> tuple[Array, Array]:
    keys, values = _cut(key, 2), _cut(value, 2)

    def one(at: Array, query: Array) -> tuple[Array, Array]:
        def add(sums: tuple[Array, ...], block: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
            return _add_block(sums, query, block, at), None

        start = (jnp.full(query.shape[:-1], NEVER), jnp.zeros(query.shape[:-1]), jnp.zeros(query.shape, jnp.float32))
        (top, total, out), _ = jax.lax.scan(add, start, (_list_starts(keys), keys, values))
        return (out / total[..., None]).astype(query.dtype), top + jnp.log(total)

    out, logsum = _map_blocks(one, _cut(query, 3), begin)
    return _join(out, 3), _join(logsum, 3)


def _add_block(sums: tuple[Array, ...], query: Array, block: tuple[Array, ...], at: Array) -> tuple[Array, ...]:
    """Returns greatest score, sum of exponentials and weighted values with one more block of keys."""
    top, total, out = sums
    place, key, value = block
    scores = _score(query, key, at, place)
    higher = jnp.maximum(top, scores.max(axis=-1))
    weights, shrink = jnp.exp(scores - higher[..., None]), jnp.exp(top - higher)
    return higher, total * shrink + weights.sum(axis=-1), out * shrink[..., None] + _mix(weights, value)


def _return_queries(queries: tuple[Array, ...], key: Array, value: Array, begin: Array) -> Array:
    keys, values = _cut(key, 2), _cut(value, 2)

    def one(at: Array, block: tuple[Array, ...]) -> Array:
        def add(grown: Array, other: tuple[Array, ...]) -> tuple[Array, None]:
            place, key, value = other
            _, slope = _slope(block, key, value, at, place)
            return grown + jnp.einsum("bkgst,bktd->bkgsd", slope, key, preferred_element_type=jnp.float32), None

        start = jnp.zeros(block[0].shape, jnp.float32)
        return jax.lax.scan(add, start, (_list_starts(keys), keys, values))[0].astype(block[0].dtype)

    return _join(_map_blocks(one, _cut_queries(queries), begin), 3)


def _return_keys(queries: tuple[Array, ...], key: Array, value: Array, begin: Array) -> tuple[Array, Array]:
    cut = _cut_queries(queries)
    starts = begin + _list_starts(cut[0])

    def one(place: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        def add(grown: tuple[Array, Array], other: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
            at, *block = other
            weights, slope = _slope(tuple(block), *pair, at, place)
            query, told, *_ = block
            sum_up = partial(jnp.einsum, "bkgst,bkgsd->bktd", preferred_element_type=jnp.float32)
            return (grown[0] + sum_up(slope, query), grown[1] + sum_up(weights.astype(told.dtype), told)), None

        start = jnp.zeros(pair[0].shape, jnp.float32)
        grown, _ = jax.lax.scan(add, (start, start), (starts, *cut))
        return grown[0].astype(key.dtype), grown[1].astype(value.dtype)

    grown_key, grown_value = _map_blocks(one, (_cut(key, 2), _cut(value, 2)), jnp.int32(0))
    return _join(grown_key, 2), _join(grown_value, 2)


def _slope(block: tuple[Array, ...], key: Array, value: Array, at: Array, place: Array | int) -> tuple[Array, Array]:
    """Returns the weights of a pair of blocks, and the loss's slope by its scores."""
    query, told, logsum, dot = block
    weights = jnp.exp(_score(query, key, at, place) - logsum[..., None])
    by_weight = jnp.einsum("bkgsd,bktd->bkgst", told, value, preferred_element_type=jnp.float32)
    return weights, (weights * (by_weight - dot[..., None])).astype(query.dtype)


def _score(query: Array, key: Array, at: Array, place: Array | int) -> Array:
    scores = jnp.einsum("bkgsd,bktd->bkgst", query, key, preferred_element_type=jnp.float32)
    late = at + jnp.arange(query.shape[-2])[:, None] < place + jnp.arange(key.shape[-2])[None, :]
    return jnp.where(late, NEVER, scores)


def _mix(weights: Array, value: Array) -> Array:
    return jnp.einsum("bkgst,bktd->bkgsd", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)


def find_block(length: int, most: int = BLOCK) -> int:
    """Returns the greatest divisor of a length that is at most so long."""
    return next(size for size in range(min(length, most), 0, -1) if length % size == 0)


def _cut(whole: Array, axis: int) -> Array:
    """Returns blocks along an axis, stacked in front."""
    size = find_block(whole.shape[axis])
    shape = (*whole.shape[:axis], whole.shape[axis] // size, size, *whole.shape[axis + 1 :])
    return jnp.moveaxis(whole.reshape(shape), axis, 0)


def _join(blocks: Array, axis: int) -> Array:
    moved = jnp.moveaxis(blocks, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])


def _cut_queries(queries: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(_cut(each, 3) for each in queries)


def _list_starts(blocks: Array) -> Array:
    return jnp.arange(blocks.shape[0]) * blocks.shape[-2]


def _map_blocks(one: Callable[[Array, Any], Any], blocks: Any, begin: Array) -> Any:
    first = jax.tree.leaves(blocks)[0]
    return jax.lax.map(lambda pair: one(*pair), (begin + _list_starts(first), blocks))
