"""A plan in the form of other programs: JAX's PartitionSpecs as Python, and MaxText's flags.

Rule: pure text. What it does not support is reported or refused, never dropped. The schedule is the plan's where it has
one, otherwise the training's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from meshwright.planning.exports.maxtext import write_maxtext
from meshwright.planning.job_code import Setting, write_jax
from meshwright.wire.mesh import ExportName, Plan
from meshwright.wire.model import ModelSpec, TrainingSpec

_WRITERS: Final[Mapping[ExportName, Callable[[Setting], str]]] = {"jax": write_jax, "maxtext": write_maxtext}


def write_exports(
    names: Iterable[ExportName], plan: Plan, model: ModelSpec, training: TrainingSpec
) -> dict[ExportName, str]:
    """Returns the exports of a plan by name.

    Args:
        names: the requested exports.
        plan: the mesh, and the schedule of the batch where that was chosen.
        model, training: the step.

    Raises:
        InvalidRequestError: an axis, or a part of the model, is not supported by the export.
    """
    setting = Setting.of(plan, model, training)
    return {name: _WRITERS[name](setting) for name in dict.fromkeys(names)}
