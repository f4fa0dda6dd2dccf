"""What an export says: the mesh by what its axes are for, and how the batch goes through it.

Rule: what a plan's schedule says comes before what training says, since a search chose it. Knows no format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import InvalidRequestError
from meshwright.planning.axis_names import Role, find_role
from meshwright.wire.mesh import ExportName, Plan
from meshwright.wire.model import ModelSpec, TrainingSpec

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """A plan with its model.

    Attributes:
        plan: where devices stand.
        model: its dimensions.
        training: with the passes, remat and moments of the plan.
        sizes: of the axes that are larger than 1, the outermost first.
    """

    plan: Plan
    model: ModelSpec
    training: TrainingSpec
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, plan: Plan, model: ModelSpec, training: TrainingSpec) -> Setting:
        """Returns what a plan for this model says, whose axes divide what they cut."""
        chosen = _read_schedule(plan, training)
        return cls(plan, model, chosen, {name: size for name, size in plan.mesh_shape.items() if size > 1})

    def find(self, *roles: Role) -> Axes:
        """Returns the axes of these roles, role by role, the outermost first."""
        return tuple(name for role in roles for name in self.sizes if find_role(name) == role)

    def measure(self, axes: Axes) -> int:
        """Returns into how many parts these axes divide a dimension."""
        return math.prod(self.sizes[name] for name in axes)

    @property
    def batch(self) -> Axes:
        """Axes that a batch lies over."""
        return self.find("data", "fsdp", "expert")

    @property
    def passes(self) -> int:
        """Micro-batches one after the other in a step."""
        return self.training.gradient_accumulation

    @property
    def micro_batch(self) -> int:
        """Sequences that one data-parallel part works on at a time."""
        return self.training.global_batch // self.measure(self.batch) // self.passes


def _read_schedule(plan: Plan, training: TrainingSpec) -> TrainingSpec:
    schedule = plan.schedule
    if schedule is None:
        return training
    chosen = {
        "gradient_accumulation": schedule.passes,
        "remat": schedule.remat,
        "global_batch": schedule.global_batch,
        "sequence_length": schedule.sequence_length,
        "first_moment_dtype": schedule.first_moment_dtype or training.first_moment_dtype,
        "second_moment_dtype": schedule.second_moment_dtype or training.second_moment_dtype,
    }
    return training.model_copy(update=chosen)


def refuse(export: ExportName, message: str, hint: str) -> InvalidRequestError:
    """Returns the refusal of an export that cannot be written."""
    said = f"export {export}: {message}"
    return InvalidRequestError(said, hint=hint, errors=[{"field": "exports", "message": message}])
