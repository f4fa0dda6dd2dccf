"""A pytree dealt out along its first dimension.

Rule: every row goes to exactly one shard, in order; the first `rows % shards` shards get one more. Pure: rows are
sliced here and placed elsewhere.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr


def plan_rows(row_count: int, shard_count: int) -> tuple[slice, ...]:
    """Returns the rows of each shard: in order, sizes differing by one at most, the larger ones first.

    (7, 3) → rows 0-2, 3-4, 5-6. Fewer rows than shards leave the last shards empty.

    Raises:
        ValueError: `shard_count` is below 1, or `row_count` below 0.
    """
    if shard_count < 1 or row_count < 0:
        raise ValueError(f"{row_count} rows for {shard_count} shards; there is 1 shard at least, and 0 rows")
    size, more = divmod(row_count, shard_count)
    starts = [index * size + min(index, more) for index in range(shard_count + 1)]
    return tuple(slice(start, stop) for start, stop in pairwise(starts))


def split_rows(data: Any, shard_count: int) -> list[Any]:
    """Returns `shard_count` pytrees like `data`, each with its rows of every leaf: [rows, …] → [its rows, …].

    Rows of host arrays are copied: JAX would share the CPU's memory with them for good, and writing to the source later
    would change the distributed data.

    Raises:
        ValueError: a leaf has no first dimension, or another one than the first leaf, or lies on devices of
            other processes too; or there is no leaf. Names the leaf's path.
        TypeError: a leaf is not an array of numbers.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(data)
    arrays = {keystr(path): _to_array(keystr(path), leaf) for path, leaf in leaves}
    rows = plan_rows(_count_rows(arrays), shard_count)
    return [jax.tree_util.tree_unflatten(structure, [_cut(array, part) for array in arrays.values()]) for part in rows]


def _to_array(path: str, leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        if not leaf.is_fully_addressable:
            raise ValueError(
                f"leaf {name_leaf(path)} of shape {leaf.shape} lies on devices of other processes too; each process "
                f"deals out its own rows: give it those, such as the ones of its addressable_shards"
            )
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind in "OSUmM" or array.dtype.type is np.void:  # bfloat16 and its like are of kind V too
        raise TypeError(
            f"leaf {name_leaf(path)} is a {type(leaf).__name__} of dtype {array.dtype}; a leaf is an array of "
            f"numbers or booleans, such as numpy.zeros((8, 2))"
        )
    return array


def _count_rows(arrays: dict[str, Any]) -> int:
    if not arrays:
        raise ValueError("data has no leaf, so there is nothing to split; give it arrays, such as numpy.zeros((8, 2))")
    for path, array in arrays.items():
        if array.ndim == 0:
            raise ValueError(
                f"leaf {name_leaf(path)} is a scalar; each leaf is split along its first dimension: give it one, or "
                f"replicate it by itself with meshwright.placement.DevicePlacement().replicate_across_devices"
            )
    sizes = {path: int(array.shape[0]) for path, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        named = ", ".join(f"{name_leaf(path)} has {size}" for path, size in sizes.items())
        raise ValueError(
            f"the leaves differ in their first dimension: {named}; rows belong together, so all must have the same "
            f"number, such as {next(iter(sizes.values()))}"
        )
    return next(iter(sizes.values()))


def name_leaf(path: str) -> str:
    """Returns how messages call a leaf: ['x'][0]; of data that is one array, (data)."""
    return path or "(data)"


def _cut(array: Any, rows: slice) -> Any:
    part = array[rows]
    return part if isinstance(part, jax.Array) else np.array(part)
