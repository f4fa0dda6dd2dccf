"""Mesh axes by what they are for, and the collectives over them, written by hand.

Rule: inside `jax.shard_map` a loss is a device's share, and a gradient that of the sum of all shares; so a weight's
gradient is summed over every axis that does not split the weight, and the sum is scattered where it is sharded for
storage alone. Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from meshwright.planning.parallelism import Role, find_role

Array = Any
Splits = tuple[Role | None, ...]
"""What splits each dimension of a weight."""


@dataclass(frozen=True)
class Axes:
    """The axes of a mesh."""

    mesh: Mesh

    def __post_init__(self) -> None:
        odd = [name for name in self.mesh.axis_names if find_role(name) in (None, "pipeline")]
        if odd:
            raise ValueError(f"axes {odd}: this step knows dp, fsdp, ep, cp and tp, and names that mean the same")

    def list_names(self, *roles: Role) -> tuple[str, ...]:
        """Returns the axes for any of these, in the order of the mesh; none of size 1."""
        shape = self.mesh.shape
        return tuple(name for name in self.mesh.axis_names if find_role(name) in roles and shape[name] > 1)

    def size(self, *roles: Role) -> int:
        """Returns over how many devices they go."""
        found = 1
        for name in self.list_names(*roles):
            found *= self.mesh.shape[name]
        return found

    def build_spec(self, splits: Splits) -> PartitionSpec:
        """Returns how a weight is stored."""
        return PartitionSpec(*(self.list_names(role) or None if role else None for role in splits))

    def gather(self, part: Array, axis: int, *roles: Role) -> Array:
        """Returns the whole along one dimension; backward, the sum of all gradients is scattered."""
        names = self.list_names(*roles)
        return jax.lax.all_gather(part, names, axis=axis, tiled=True) if names else part

    def scatter_sum(self, partial: Array, axis: int, *roles: Role) -> Array:
        """Returns this device's part of the sum; backward, gradients are gathered."""
        names = self.list_names(*roles)
        return jax.lax.psum_scatter(partial, names, scatter_dimension=axis, tiled=True) if names else partial

    def sum_up(self, share: Array, *roles: Role) -> Array:
        """Returns the sum over axes."""
        names = self.list_names(*roles)
        return jax.lax.psum(share, names) if names else share

    def place(self, *roles: Role) -> Array:
        """Returns which of the devices along axes this one is."""
        names = self.list_names(*roles)
        return jax.lax.axis_index(names) if names else jnp.int32(0)

    def use(self, weight: Array, splits: Splits, dtype: Any) -> Array:
        """Returns a stored weight as a layer uses it: cast, then gathered over fsdp."""

        def cast_whole(weight: Array) -> Array:
            cast = weight.astype(dtype)
            return self.gather(cast, splits.index("fsdp"), "fsdp") if "fsdp" in splits else cast

        def give_back(_: None, slope: Array) -> tuple[Array]:
            own = self.scatter_sum(slope, splits.index("fsdp"), "fsdp") if "fsdp" in splits else slope
            return (self.sum_up(own, *self._list_others(splits)).astype(weight.dtype),)

        use = jax.custom_vjp(cast_whole)
        use.defvjp(lambda weight: (cast_whole(weight), None), give_back)  # a remat policy sees the gather in it
        used: Array = use(weight)
        return used

    def _list_others(self, splits: Splits) -> tuple[Role, ...]:
        everything: tuple[Role, ...] = ("data", "fsdp", "expert", "context", "tensor")
        return tuple(role for role in everything if role not in splits)
