"""What the axes of a mesh are for, by their names.

An unknown name means nothing, never the nearest known one. Names are those of MaxText's base.yml, EasyLM, Flax and
Haiku examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

Role = Literal["pipeline", "data", "fsdp", "expert", "context", "tensor"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Least traffic first: a pipeline sends activations between neighbours once a micro-batch, data parallelism gradients
once a step, sharded data parallelism weights twice a layer, experts and sequences tokens several times a layer, and a
tensor axis activations on the critical path of every matmul. Source: jax-ml/scaling-book, "Training" (bytes a layer: DP
8DF, FSDP 12DF, TP 8BD)."""

ROLE_NAMES: Final[Mapping[Role, tuple[str, ...]]] = {
    "pipeline": ("pp", "pipe", "pipeline", "stage"),
    "data": ("dp", "data", "replica", "batch"),
    "fsdp": ("fsdp", "fsdp_transpose", "shard", "zero"),
    "expert": ("ep", "expert", "experts"),
    "context": ("sp", "cp", "sequence", "seq", "context", "context_autoregressive"),
    "tensor": ("tp", "tensor", "tensor_transpose", "tensor_sequence", "model", "mp", "mdl", "autoregressive"),
}

BATCH_ROLES: Final[tuple[Role, ...]] = ("data", "fsdp", "expert")
"""Of axes that a batch lies over."""

_ROLES: Final[Mapping[str, Role]] = {name: role for role, names in ROLE_NAMES.items() for name in names}

Axes = tuple[str, ...]


def find_role(name: str) -> Role | None:
    """Returns what an axis of this name is for, in any case; None for an unknown name."""
    return _ROLES.get(name.lower())


@dataclass(frozen=True)
class MeshAxes:
    """The axes of a mesh that are larger than 1, the outermost first.

    Attributes:
        sizes: axis → size.
    """

    sizes: Mapping[str, int]

    @classmethod
    def of(cls, mesh_shape: Mapping[str, int]) -> MeshAxes:
        """Returns the axes of a mesh of this shape."""
        return cls({name: size for name, size in mesh_shape.items() if size > 1})

    def find(self, *roles: Role | None) -> Axes:
        """Returns the axes of these roles, role by role; None: those of unknown names."""
        return tuple(name for role in roles for name in self.sizes if find_role(name) == role)

    def measure(self, axes: Iterable[str]) -> int:
        """Returns into how many parts these axes divide a dimension."""
        return math.prod(self.sizes[name] for name in axes)

    def write(self, axes: Iterable[str]) -> str:
        """Returns axes with their sizes, as in "dp:2 × fsdp:4"."""
        return " × ".join(f"{name}:{self.sizes[name]}" for name in axes)

    @property
    def batch(self) -> Axes:
        """Axes that a batch lies over."""
        return self.find(*BATCH_ROLES)

    @property
    def context(self) -> Axes:
        """Axes that a sequence lies over inside attention."""
        return self.find("context")

    @property
    def tensor(self) -> Axes:
        """Axes that heads, feed-forward columns and the vocabulary lie over."""
        return self.find("tensor")

    @property
    def expert(self) -> Axes:
        """Axes that experts lie over."""
        return self.find("expert")

    def shard_weights(self, size: int, *, without: Axes = ()) -> Axes:
        """Returns the axes that FSDP splits a weight's dimension of `size` over: context and expert axes too.

        Args:
            size: of the dimension; an axis that does not divide what the axes before it leave is left out.
            without: axes that the weight lies over already.
        """
        if not self.find("fsdp"):
            return ()
        chosen: Axes = ()
        for name in self.find("fsdp", "context", "expert"):
            if name not in without and size % self.measure((*chosen, name)) == 0:
                chosen = (*chosen, name)
        return chosen

    def take_tensor(self, size: int) -> Axes:
        """Returns the tensor axes, or none where they do not divide a dimension of `size`."""
        return self.take(self.tensor, size)

    def take(self, axes: Axes, size: int) -> Axes:
        """Returns the axes, or none where they do not divide a dimension of `size`."""
        return axes if size % self.measure(axes) == 0 else ()
