"""What an export says: the mesh by what its axes are for, and how the batch goes through it.

Rule: what a plan's schedule says comes before what training says, since a search chose it. Knows no format.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import InvalidRequestError
from meshwright.planning.parallelism import MeshAxes
from meshwright.wire.mesh import ExportName, Plan
from meshwright.wire.model import ModelSpec, TrainingSpec


@dataclass(frozen=True)
class Setting:
    """A plan with its model.

    Attributes:
        plan: where devices stand.
        model: its dimensions.
        training: with the passes, remat and moments of the plan.
        axes: of its mesh.
    """

    plan: Plan
    model: ModelSpec
    training: TrainingSpec
    axes: MeshAxes

    @classmethod
    def of(cls, plan: Plan, model: ModelSpec, training: TrainingSpec) -> Setting:
        """Returns what a plan for this model says, whose axes divide what they cut."""
        chosen = _read_schedule(plan, training)
        return cls(plan, model, chosen, MeshAxes.of(plan.mesh_shape))

    @property
    def passes(self) -> int:
        """Micro-batches one after the other in a step."""
        return self.training.gradient_accumulation

    @property
    def micro_batch(self) -> int:
        """Sequences that one data-parallel part works on at a time."""
        return self.training.global_batch // self.axes.measure(self.axes.batch) // self.passes


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
