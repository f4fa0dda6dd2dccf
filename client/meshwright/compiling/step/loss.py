"""Cross-entropy over a vocabulary that lies over the tensor axes, a piece of the sequence at a time.

Rule: the logits of a whole batch never exist at once; each piece's are computed again in the backward pass. Knows no
layer.
"""

from __future__ import annotations

import math
from typing import Final

import jax
import jax.numpy as jnp

from meshwright.compiling.step.sharding import Layout

Array = jax.Array

PIECE: Final = 1024
"""Positions of each device's sequence whose logits exist at one time."""


def measure_loss(hidden: Array, targets: Array, head: Array, layout: Layout) -> Array:
    """Returns the mean cross-entropy in nats.

    Args:
        hidden: [batch, sequence, hidden].
        targets: [batch, sequence], the token that follows each position.
        head: [hidden, vocabulary], its columns over the tensor axes.
        layout: the mesh.
    """
    axes = layout.axes
    shards = axes.measure(axes.context)
    pieces = count_pieces(hidden.shape[1] // shards)
    with jax.named_scope("loss"):
        hidden = layout.put(hidden, axes.batch, axes.context, None)
        parts = (_cut(hidden, shards, pieces, layout), _cut(targets, shards, pieces, layout))
        total = _loop(head, parts, layout)
    return total / float(math.prod(targets.shape))  # as an integer it may be none of 32 bits


def count_pieces(length: int) -> int:
    """Returns into how many equal pieces a device's sequence is cut so that none is above `PIECE`."""
    return next(count for count in range(math.ceil(length / PIECE), length + 1) if length % count == 0)


def _loop(head: Array, parts: tuple[Array, Array], layout: Layout) -> Array:
    if len(parts[0]) == 1:
        return _add_loss(head, (parts[0][0], parts[1][0]), layout)

    @jax.checkpoint
    def step(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + _add_loss(head, part, layout), None

    return jax.lax.scan(step, jnp.zeros((), jnp.float32), parts)[0]


def _cut(value: Array, shards: int, pieces: int, layout: Layout) -> Array:
    """Returns [pieces, batch, shards, positions, …]: each piece has a part of every context shard."""
    batch, length, *rest = value.shape
    split = value.reshape(batch, shards, pieces, length // shards // pieces, *rest)
    moved = jnp.moveaxis(split, 2, 0)
    return layout.put(moved, None, layout.axes.batch, layout.axes.context, None, *(None for _ in rest))


def _add_loss(head: Array, part: tuple[Array, Array], layout: Layout) -> Array:
    """Returns the sum over one piece: hidden [batch, shards, positions, hidden] and its targets."""
    hidden, targets = part
    axes = layout.axes
    logits = jnp.einsum("bcsd,dv->bcsv", hidden, head)  # in bfloat16, so that gradients are sent in it too
    logits = layout.put(logits, axes.batch, axes.context, None, axes.tensor).astype(jnp.float32)
    top = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    sums = jnp.log(jnp.exp(logits - top).sum(axis=-1)) + top[..., 0]
    hits = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 3) == targets[..., None]
    return (sums - jnp.where(hits, logits, 0.0).sum(axis=-1)).sum()
