"""Looking tokens up in a table whose columns are split, and the gradient of that.

Rule: rows of gradients go to the devices that keep their columns, by an all-to-all over each axis, and are added up
there; no device ever holds the gradient of the whole table. Written device by device, since left to itself the
partitioner gathers the gradients of the whole batch on every device. Knows no layer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiling.step.axes import Axes, build_spec
from meshwright.compiling.step.parameters import Tensor
from meshwright.compiling.step.sharding import Layout

Array = jax.Array

_BATCH, _SEQUENCE, _HIDDEN = range(3)


def look_up(weight: Array, tokens: Array, tensor: Tensor, layout: Layout, dtype: Any) -> Array:
    """Returns the rows [batch, sequence, hidden] of the table [vocabulary, hidden], hidden as its columns are used."""
    used = _list_axes(tensor.used[1])

    @jax.custom_vjp
    def find(weight: Array, tokens: Array) -> Array:
        table = layout.gather(weight, tensor, dtype)
        return layout.put(jnp.take(table, tokens, axis=0), layout.axes.batch, layout.axes.context, used)

    def forward(weight: Array, tokens: Array) -> tuple[Array, Array]:
        return find(weight, tokens), tokens

    def backward(tokens: Array, gradient: Array) -> tuple[Array, None]:
        return _add_rows(gradient, tokens, tensor, layout).astype(weight.dtype), None

    find.defvjp(forward, backward)
    return find(weight, tokens)


def _add_rows(gradient: Array, tokens: Array, tensor: Tensor, layout: Layout) -> Array:
    """Returns the table's gradient [vocabulary, hidden], where the table is stored."""
    batch, context = layout.axes.batch, layout.axes.context
    used = _list_axes(tensor.used[1])
    kept = _list_axes(tensor.stored[1])[len(used) :]

    def add(gradient: Array, tokens: Array) -> Array:
        for name in kept:
            here = _BATCH if name in batch else _SEQUENCE
            gradient = jax.lax.all_to_all(gradient, name, _HIDDEN, here, tiled=True)
            tokens = jax.lax.all_gather(tokens, name, axis=here, tiled=True)
        summed = jnp.zeros((tensor.shape[0], gradient.shape[_HIDDEN]), gradient.dtype).at[tokens].add(gradient)
        others = tuple(name for name in (*batch, *context) if name not in kept)
        return jax.lax.psum(summed, others) if others else summed

    rows = build_spec(batch, context)
    added: Array = jax.shard_map(
        add,
        mesh=layout.mesh,
        in_specs=(build_spec(batch, context, used), rows),
        out_specs=tensor.stored,
        check_vma=False,
    )(gradient, tokens)
    return added


def _list_axes(entry: str | Axes | None) -> Axes:
    """Returns the axes of one dimension of a PartitionSpec."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
