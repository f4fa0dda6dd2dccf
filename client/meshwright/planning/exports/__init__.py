"""A plan in the form of other programs: JAX's PartitionSpecs as Python, and MaxText's flags.

Rule: pure text. What it does not support is reported or refused, never dropped. The schedule is the plan's where it has
one, otherwise the training's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from meshwright.planning.exports.maxtext import write_maxtext
from meshwright.planning.job_code import Setting, write_jax
from meshwright.wire.mesh import ExportName, Plan
from meshwright.wire.model import ModelSpec, TrainingSpec

_WRITERS: Final[Mapping[ExportName, Callable[[Setting], str]]] = {"jax": write_jax, "maxtext": write_maxtext}


def write_export(name: ExportName, plan: Plan, model: ModelSpec, training: TrainingSpec) -> str:
    """Returns an export of a plan.

    Args:
        plan: the mesh, and the schedule of the batch where that was chosen.
        model, training: the step.

    Raises:
        InvalidRequestError: an axis, or a part of the model, is not supported by the export.
    """
    return _WRITERS[name](Setting.of(plan, model, training))
