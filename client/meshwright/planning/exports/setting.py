"""What an export says: the mesh by what its axes are for, and how the batch goes through it.

Rule: what a plan's schedule says comes before what training says, since a search chose it. Knows no format.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import InvalidRequestError
from meshwright.planning.compile_request import apply_schedule
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
        return cls(plan, model, apply_schedule(training, plan.schedule), MeshAxes.of(plan.mesh_shape))

    @property
    def passes(self) -> int:
        """Micro-batches one after the other in a step."""
        return self.training.gradient_accumulation

    @property
    def micro_batch(self) -> int:
        """Sequences that one data-parallel part works on at a time."""
        return self.training.global_batch // self.axes.measure(self.axes.batch) // self.passes


def refuse(export: ExportName, message: str, hint: str) -> InvalidRequestError:
    """Returns the refusal of an export that cannot be written."""
    said = f"export {export}: {message}"
    return InvalidRequestError.of("exports", said, hint, message)
