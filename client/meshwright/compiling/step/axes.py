"""Where the step puts each dimension: mesh axes by what their names say they are for.

Rule: batches lie over data, fsdp and expert axes; sequences over context axes, and between layers over tensor axes too;
weights over fsdp and tensor axes, experts over expert axes. A mesh with an fsdp axis has said that weights are
sharded, so they lie over its context and expert axes too, as far as they divide (MaxText's `embed` rule and
torchtitan's dp_shard_cp do so). Knows no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from meshwright.compiling import NotCompiledError
from meshwright.planning.axis_names import ROLE_NAMES, Role, find_role

Axes = tuple[str, ...]


@dataclass(frozen=True)
class StepAxes:
    """The axes of a mesh by role, outermost first; those of size 1 are left out.

    Attributes:
        sizes: axis → size.
        by_role: role → axes.
    """

    sizes: Mapping[str, int]
    by_role: Mapping[Role, Axes]

    @classmethod
    def of(cls, shape: Mapping[str, int]) -> StepAxes:
        """Returns the axes of a mesh of this shape.

        Raises:
            NotCompiledError: an axis has a name that says nothing, or is one that the step does not have.
        """
        wide = {name: size for name, size in shape.items() if size > 1}
        roles: dict[Role, list[str]] = {}
        for name in wide:
            roles.setdefault(_read_role(name), []).append(name)
        if "pipeline" in roles:
            name = roles["pipeline"][0]
            raise NotCompiledError(
                f"axis {name} of {wide[name]} is a pipeline, and the step that is compiled has no pipeline stages; "
                f"leave {name} out, and compile one stage by giving the model that many layers fewer"
            )
        return cls(wide, {role: tuple(names) for role, names in roles.items()})

    def find(self, *roles: Role) -> Axes:
        """Returns the axes of these roles, role by role."""
        return tuple(name for role in roles for name in self.by_role.get(role, ()))

    def measure(self, axes: Sequence[str]) -> int:
        """Returns over how many parts these axes divide a dimension."""
        return math.prod(self.sizes[name] for name in axes)

    @property
    def batch(self) -> Axes:
        """Axes that a batch lies over."""
        return self.find("data", "fsdp", "expert")

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
        """Returns the axes that a weight's dimension of `size` lies over, beside those it has already."""
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


def _read_role(name: str) -> Role:
    role = find_role(name)
    if role is None:
        known = ", ".join(names[0] for names in ROLE_NAMES.values())
        raise NotCompiledError(f"axis {name} says nothing of what it is for; the step knows axes by name, as {known}")
    return role


def build_spec(*dimensions: Axes | None) -> PartitionSpec:
    """Returns the spec of an array of which each dimension lies over these axes."""
    return PartitionSpec(*(axes or None for axes in dimensions))
