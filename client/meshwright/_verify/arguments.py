"""Arguments without values: what a step is called with, as shapes, dtypes and the mesh axes that split them.

Rule: whatever the caller gives, arrays too, only its shape goes on; scalars and what is no array stay as they are.
Imports jax, and starts no backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path


@dataclass(frozen=True)
class Leaf:
    """An array without its values. `spec` None: the caller says nothing of how it is split."""

    shape: tuple[int, ...]
    dtype: Any
    spec: PartitionSpec | None


@dataclass(frozen=True)
class Call:
    """What a step is called with, and what of it a step that is not jitted yet gives away."""

    args: tuple[Any, ...]
    donate_argnums: int | Sequence[int] | None = None


def describe_leaves(tree: Any, specs: Any, axes: Mapping[str, int]) -> Any:
    """Returns the tree with each array as a Leaf.

    Args:
        tree: arrays, `jax.ShapeDtypeStruct`s, scalars and other values.
        specs: a prefix of the tree: PartitionSpecs, None where the leaf's own sharding counts.
        axes: the plan's, name to size.

    Raises:
        ValueError: the specs are no prefix, or a leaf is split over an axis that the plan does not have, or by a mesh
            whose axes have other sizes.
    """
    structure: Any
    flat, structure = tree_flatten_with_path(tree)
    try:
        spread = jax.tree.leaves(
            jax.tree.map(lambda spec, part: jax.tree.map(lambda _: _Spec(spec), part), specs, tree, is_leaf=_is_spec)
        )
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"in_specs is no prefix of the arguments ({str(error).splitlines()[0]}); give one PartitionSpec an "
            "argument, or one for all, such as (P('fsdp'), P('dp'))"
        ) from error
    leaves = [_describe(keystr(path), leaf, spec.value, axes) for (path, leaf), spec in zip(flat, spread, strict=True)]
    return structure.unflatten(leaves)


@dataclass(frozen=True)
class _Spec:
    """Holds a spec as one leaf, None too."""

    value: PartitionSpec | None


def _is_spec(value: object) -> bool:
    return value is None or isinstance(value, PartitionSpec)


def _describe(path: str, leaf: Any, spec: PartitionSpec | None, axes: Mapping[str, int]) -> Any:
    if isinstance(leaf, bool | int | float | complex) or not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    if spec is None and isinstance(sharding, NamedSharding):
        _check_mesh(path, dict(sharding.mesh.shape), axes)
        spec = sharding.spec
    if spec is not None:
        _check_spec(path, spec, axes)
    return Leaf(tuple(leaf.shape), leaf.dtype, spec)


def _check_mesh(path: str, found: Mapping[str, int], axes: Mapping[str, int]) -> None:
    if any(axes.get(name) != size for name, size in found.items()):
        raise ValueError(
            f"leaf {path} is sharded on a mesh of {dict(found)}; the plan's mesh is {dict(axes)}, and its axes must be "
            "the plan's; give in_specs, or shard it on the plan's mesh"
        )


def _check_spec(path: str, spec: PartitionSpec, axes: Mapping[str, int]) -> None:
    names = [name for entry in spec for name in (entry if isinstance(entry, tuple) else (entry,))]
    strangers = [name for name in names if isinstance(name, str) and name not in axes]
    if strangers:
        raise ValueError(
            f"leaf {path} is split over the axis {strangers[0]!r}; the plan has {', '.join(axes)}; use one of them"
        )


def place_leaves(tree: Any, mesh: Mesh) -> Any:
    """Returns the tree with each Leaf as a `jax.ShapeDtypeStruct` on the mesh; without a spec, whole on each device."""

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Leaf):
            return leaf
        sharding = NamedSharding(mesh, PartitionSpec() if leaf.spec is None else leaf.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, tree, is_leaf=lambda value: isinstance(value, Leaf))


def count_split(tree: Any) -> tuple[int, int]:
    """Returns how many arrays there are, and how many of them are split over some axis."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda value: isinstance(value, Leaf))
    arrays = [leaf for leaf in leaves if isinstance(leaf, Leaf)]
    return len(arrays), sum(any(entry is not None for entry in leaf.spec or ()) for leaf in arrays)
