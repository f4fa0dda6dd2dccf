"""What a request wants of the compiler, complete; or why nothing can be compiled.

Rule: what the request says wrongly is an error; what no compiler can be asked is an answer. The agent's planner and a
command without an agent go this way, so that they ask alike. Knows no process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.axis_names import find_role
from meshwright.planning.compile_job import build_job
from meshwright.planning.models import read_model
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.compiling import CompileJob
from meshwright.wire.mesh import Plan
from meshwright.wire.model import TrainingSpec
from meshwright.wire.verification import Verification

Model = str | dict[str, Any]

BATCH_MAX: Final = 2**24
"""`global_batch`'s bound: where no greatest batch is named, the search may go so far."""


def prepare_verify(plan: Plan, model: Model | None, training: TrainingSpec | None) -> CompileJob | Verification:
    """Returns the job that verifies a plan, or the answer that nothing can be compiled.

    Raises:
        InvalidRequestError: no model, or not how it is trained; or they are none.
        DoesNotDivideError: an axis does not divide what it cuts.
    """
    if model is None or training is None:
        missing = "model" if model is None else "training"
        detail = f"verify is 'compile' and {missing} is not given; what is compiled is a training step"
        hint = 'give both: "model": "llama3-8b", "training": {"global_batch": 64}'
        raise InvalidRequestError(detail, hint=hint, errors=[{"field": missing, "message": detail}])
    try:
        return build_job(plan, read_model(model), training)
    except NotCompiledError as error:
        return Verification(status="not_compiled", reason=str(error), target=plan.target)


def prepare_fit(plan: Plan, model: Model | None, training: TrainingSpec | None) -> CompileJob | CompiledBatch:
    """Returns the job that finds the largest batch on a plan's mesh, or the answer that nothing can be compiled.

    Raises:
        InvalidRequestError, DoesNotDivideError: as `prepare_verify`.
    """
    found = prepare_verify(plan, model, None if training is None else bound_batch(training, plan.mesh_shape))
    if isinstance(found, CompileJob):
        return found.model_copy(update={"search": "largest_batch"})
    return build_unfitted(count_parts(plan.mesh_shape), found)


def bound_batch(training: TrainingSpec, mesh_shape: Mapping[str, int]) -> TrainingSpec:
    """Returns how the model is trained, with the greatest batch to look at: where none is named, one that divides."""
    fields = training.model_dump(exclude_none=True)
    unit = math.prod(mesh_shape.values()) * training.gradient_accumulation
    return TrainingSpec.model_validate({"global_batch": max(1, BATCH_MAX // unit) * unit, **fields})


def build_unfitted(data_parallel_size: int, verification: Verification) -> CompiledBatch:
    """Returns the answer to a search that came to no batch: nothing was compiled, or not to the end."""
    return CompiledBatch(
        batch_per_device=None,
        global_batch=None,
        data_parallel_size=data_parallel_size,
        compile_count=0,
        limit=None,
        verification=verification,
    )


def count_parts(mesh_shape: Mapping[str, int]) -> int:
    """Returns over how many parts the step lays a batch."""
    return math.prod(size for name, size in mesh_shape.items() if find_role(name) in ("data", "fsdp", "expert"))
