"""Where the compiled step places its tensors: mesh axes for each dimension, the model's parameters, and array
shardings.

Axes are used by the roles of their names. Batches are split over data, fsdp and expert axes; sequences over context
axes, and between layers over tensor axes too; weights over fsdp and tensor axes, experts over expert axes. In a mesh
with an fsdp axis weights are split over its context and expert axes too, as far as they divide (as MaxText's `embed`
rule and torchtitan's dp_shard_cp do).

The parameters here, and no others, are trained; their number is the model's parameter count. Layers are stacked, or
listed where they are not scanned. A gather has a scatter as its gradient, so that no device sums whole gradients of
what it keeps a part of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.planning.parallelism import Axes, MeshAxes
from meshwright.planning.tensors import Tensor, list_tensors
from meshwright.wire.model import ModelSpec


def build_spec(*dimensions: Axes | None) -> PartitionSpec:
    """Returns the spec of an array of which each dimension lies over these axes."""
    return PartitionSpec(*(axes or None for axes in dimensions))


def list_axes(entry: str | Axes | None) -> Axes:
    """Returns the axes of one dimension of a PartitionSpec."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


@dataclass(frozen=True)
class ShardedTensor:
    """One trained tensor on a mesh.

    Attributes:
        shape: of the whole.
        stored: where it lies between its uses.
        used: where it lies in a matmul: gathered over fsdp.
    """

    shape: tuple[int, ...]
    stored: PartitionSpec
    used: PartitionSpec


Tensors = dict[str, Any]
"""Name → ShardedTensor, or a dict of them, or for layers that are not scanned a tuple of dicts."""


def build_tensors(model: ModelSpec, axes: MeshAxes, *, scanned: bool) -> Tensors:
    """Returns all tensors of a model whose layers are alike: those outside the layers, and "layers"."""
    tensors = list_tensors(model)
    (layer,) = tensors.layers
    layers: Any = _place(layer.tensors, axes, stack=(layer.count,) if scanned else ())
    return {**_place(tensors.outer, axes), "layers": layers if scanned else (layers,) * layer.count}


def _place(tensors: Iterable[Tensor], axes: MeshAxes, stack: tuple[int, ...] = ()) -> Tensors:
    """Returns tensors on a mesh, by name; `stack`: a first dimension that no axis cuts."""
    placed = {}
    for tensor in tensors:
        stored, used = (build_spec(*(None for _ in stack), *place) for place in tensor.place(axes))
        placed[tensor.name] = ShardedTensor((*stack, *tensor.shape), stored, used)
    return placed


Array = jax.Array
Way = tuple[NamedSharding, ...]
"""Shardings that a gradient goes through, the last of them that of its weight."""


@dataclass(frozen=True)
class StepSharding:
    """A mesh and its axes by role."""

    mesh: Mesh
    axes: MeshAxes

    def put(self, value: Array, *dimensions: Axes | None) -> Array:
        """Returns the array, each dimension over these axes."""
        return pin(value, NamedSharding(self.mesh, build_spec(*dimensions)))

    def gather(self, weight: Array, tensor: ShardedTensor, dtype: Any) -> Array:
        """Returns a weight in the form of a matmul: in `dtype`, gathered over fsdp. Its gradient is scattered."""
        if tensor.stored == tensor.used:
            return weight.astype(dtype)
        stored, used = NamedSharding(self.mesh, tensor.stored), NamedSharding(self.mesh, tensor.used)
        # Over batch axes first: given a constraint over context axes at the same time, the partitioner would split the
        # far larger operands like the gradient, and gather the whole batch for it.
        batched = NamedSharding(self.mesh, _leave_out(tensor.stored, self.axes.context))
        way = (stored,) if batched == stored else (batched, stored)
        return _gather(weight, way, used, dtype)

    def spread(self, value: Array, here: tuple[Axes, ...], there: tuple[Axes, ...]) -> Array:
        """Returns an activation moved from here to there; its gradient is moved back, not summed where it is."""
        return _spread(value, self.shard(build_spec(*here)), self.shard(build_spec(*there)))

    def shard(self, spec: PartitionSpec) -> NamedSharding:
        """Returns a sharding on this mesh."""
        return NamedSharding(self.mesh, spec)


def _leave_out(spec: PartitionSpec, names: Axes) -> PartitionSpec:
    """Returns a spec without these axes."""
    return build_spec(*(tuple(name for name in list_axes(entry) if name not in names) for entry in spec))


def keep(value: Array, name: str) -> Array:
    """Returns the array under a name that remat knows."""
    named: Array = checkpoint_name(value, name)
    return named


def pin(value: Array, sharding: NamedSharding) -> Array:
    """Returns the array, held to a sharding."""
    held: Array = jax.lax.with_sharding_constraint(value, sharding)
    return held


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(weight: Array, way: Way, used: NamedSharding, dtype: Any) -> Array:
    return pin(pin(weight.astype(dtype), way[-1]), used)  # cast first: half the bytes to gather


def _gather_forward(weight: Array, way: Way, used: NamedSharding, dtype: Any) -> tuple[Array, Array]:
    return _gather(weight, way, used, dtype), weight[:0]


def _gather_backward(way: Way, _used: NamedSharding, _dtype: Any, kept: Array, gradient: Array) -> tuple[Array]:
    for sharding in way:
        gradient = pin(gradient, sharding)
    return (gradient.astype(kept.dtype),)


_gather.defvjp(_gather_forward, _gather_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _spread(value: Array, here: NamedSharding, there: NamedSharding) -> Array:
    return pin(pin(value, here), there)


def _spread_forward(value: Array, here: NamedSharding, there: NamedSharding) -> tuple[Array, None]:
    return _spread(value, here, there), None


def _spread_backward(here: NamedSharding, _there: NamedSharding, _kept: None, gradient: Array) -> tuple[Array]:
    return (pin(gradient, here),)


_spread.defvjp(_spread_forward, _spread_backward)
