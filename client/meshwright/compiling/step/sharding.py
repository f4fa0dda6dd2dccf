"""Putting arrays where the step wants them, on the mesh that is traced for.

Rule: what is gathered gives a gradient that is scattered again, so that no device ever sums whole gradients of what it
keeps a part of.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiling.step.axes import Axes, StepAxes, build_spec
from meshwright.compiling.step.parameters import Tensor

Array = jax.Array
Way = tuple[NamedSharding, ...]
"""Shardings that a gradient goes through, the last of them that of its weight."""

GATHERED: Final = "gathered_weight"
"""The name by which remat knows weights that were gathered: they are gathered again, never kept."""


EXPERT_MATMUL: Final = "expert_matmul"
"""The name of what experts' matmuls give, which remat's own rule for matmuls takes for a batch of small ones."""


@dataclass(frozen=True)
class Layout:
    """A mesh and its axes by role."""

    mesh: Mesh
    axes: StepAxes

    def put(self, value: Array, *dimensions: Axes | None) -> Array:
        """Returns the array, each dimension over these axes."""
        return pin(value, NamedSharding(self.mesh, build_spec(*dimensions)))

    def gather(self, weight: Array, tensor: Tensor, dtype: Any) -> Array:
        """Returns a weight as a matmul takes it: in `dtype`, gathered over fsdp; its gradient is scattered."""
        if tensor.stored == tensor.used:
            return weight.astype(dtype)
        stored, used = NamedSharding(self.mesh, tensor.stored), NamedSharding(self.mesh, tensor.used)
        # Over batch axes first: asked at once for parts over context axes too, the partitioner would split the far
        # larger operands like the gradient, and gather the whole batch for it.
        batched = NamedSharding(self.mesh, _leave_out(tensor.stored, self.axes.context))
        way = (stored,) if batched == stored else (batched, stored)
        return keep(_gather(weight, way, used, dtype), GATHERED)

    def spread(self, value: Array, here: tuple[Axes, ...], there: tuple[Axes, ...]) -> Array:
        """Returns an activation moved from here to there; its gradient is moved back, not summed where it is."""
        return _spread(value, self.shard(build_spec(*here)), self.shard(build_spec(*there)))

    def store(self, tensor: Tensor) -> NamedSharding:
        """Returns where a tensor lies between its uses."""
        return NamedSharding(self.mesh, tensor.stored)

    def shard(self, spec: PartitionSpec) -> NamedSharding:
        """Returns a sharding on this mesh."""
        return NamedSharding(self.mesh, spec)


def _leave_out(spec: PartitionSpec, names: Axes) -> PartitionSpec:
    """Returns a spec without these axes."""
    entries = (() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec)
    return build_spec(*(tuple(name for name in entry if name not in names) for entry in entries))


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
