"""Looking tokens up in a table whose columns are split, and the gradient of that.

Rule: rows of gradients go to the devices that keep their columns (all-to-all, one axis after the other), and are added up
there; no device ever holds the gradient of the whole table. Knows no layer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiling.step.axes import Axes
from meshwright.compiling.step.parameters import Tensor
from meshwright.compiling.step.sharding import Layout, pin

Array = jax.Array


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
        gradient, tokens = _bring_home(gradient, tokens, tensor, layout)
        summed = jnp.zeros(tensor.shape, gradient.dtype).at[tokens].add(gradient)
        return pin(summed, layout.store(tensor)).astype(weight.dtype), None

    find.defvjp(forward, backward)
    return find(weight, tokens)


def _bring_home(gradient: Array, tokens: Array, tensor: Tensor, layout: Layout) -> tuple[Array, Array]:
    """Returns gradients [batch, sequence, hidden] and tokens, with every row where the columns are that it has."""
    columns = _list_axes(tensor.used[1])
    rows = [layout.axes.batch, layout.axes.context]
    for name in _list_axes(tensor.stored[1])[len(columns) :]:
        columns = (*columns, name)
        rows = [tuple(axis for axis in axes if axis != name) for axes in rows]
        gradient = layout.put(gradient, *rows, columns)
    return gradient, layout.put(tokens, *rows)


def _list_axes(entry: str | Axes | None) -> Axes:
    """Returns the axes of one dimension of a PartitionSpec."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
