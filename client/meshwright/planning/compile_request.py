"""What a request wants of the compiler, complete; or why nothing can be compiled.

Rule: what the request says wrongly is an error; what no compiler can be asked is an answer. The agent's planner and a
command without an agent go this way, so that they ask alike. Knows no process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.compile_job import build_job
from meshwright.planning.expressible import check_axes
from meshwright.planning.models import read_model
from meshwright.planning.parallelism import MeshAxes
from meshwright.planning.tensors import Part, Tensor, list_tensors
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.compiling import CompileJob
from meshwright.wire.cost import PlanSchedule
from meshwright.wire.mesh import Plan
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.verification import Verification

Model = str | dict[str, Any]

BATCH_MAX: Final = 2**24
"""`global_batch`'s bound: where no greatest batch is named, the search may go so far."""
ELEMENTS_MAX: Final = 2**63 - 1
"""Of one array: compilers count elements in 64 bits with a sign."""


def prepare_verify(plan: Plan, model: Model | None, training: TrainingSpec | None) -> CompileJob | Verification:
    """Returns the job that verifies a plan, or the answer that nothing can be compiled.

    Raises:
        InvalidRequestError: no model, or not how it is trained; or they are none; or a weight larger than any array.
        DoesNotDivideError: an axis does not divide what it cuts.
    """
    if model is None or training is None:
        raise _refuse_missing(model, '{"global_batch": 64}')
    try:
        spec = read_model(model)
        _check_sizes(spec)
        job = build_job(plan, spec, apply_schedule(training, plan.schedule))
        check_axes(plan.mesh_shape)
    except NotCompiledError as error:
        return Verification(status="not_compiled", reason=str(error), target=plan.target)
    return job


def apply_schedule(training: TrainingSpec, schedule: PlanSchedule | None) -> TrainingSpec:
    """Returns the training as a plan goes through it: with the passes, remat and moments that a search chose."""
    if schedule is None:
        return training
    chosen: dict[str, Any] = {"gradient_accumulation": schedule.passes, "remat": schedule.remat}
    for name in ("first_moment_dtype", "second_moment_dtype"):
        dtype = getattr(schedule, name)
        if dtype not in (None, getattr(training, name) or training.weight_dtype):
            chosen[name] = dtype
    return training.model_copy(update=chosen)


def order_verified(statuses: Sequence[str]) -> list[int]:
    """Returns the places of plans, those first of which the compiler says that they fit and those last that do not."""
    ranks = {"verified": 0, "does_not_fit": 2}
    return sorted(range(len(statuses)), key=lambda place: ranks.get(statuses[place], 1))


def _refuse_missing(model: Model | None, training: str) -> InvalidRequestError:
    missing = "model" if model is None else "training"
    detail = f"verify is 'compile' and {missing} is not given; what is compiled is a training step"
    hint = f'give both: "model": "llama3-8b", "training": {training}'
    return InvalidRequestError.of(missing, detail, hint)


def _check_sizes(model: ModelSpec) -> None:
    tensors = list_tensors(model)
    arrays: list[tuple[Tensor, tuple[int, ...]]] = [(tensor, tensor.shape) for tensor in tensors.outer]
    arrays += [(tensor, (layer.count, *tensor.shape)) for layer in tensors.layers for tensor in layer.tensors]
    for tensor, shape in arrays:
        count = math.prod(shape)
        if count > ELEMENTS_MAX:
            said = f"weight {tensor.name} {list(shape)} has {count} elements"
            detail = f"{said}; no compiler takes an array of 2**63 or more"
            names = [name for name in (*_SIZES[tensor.part], *_SHARED_SIZES) if getattr(model, name)]
            largest = max(names, key=lambda name: int(getattr(model, name)))
            fields = [{"field": f"model.{name}", "message": detail} for name in names]
            raise InvalidRequestError(detail, hint=f"make {largest} smaller", errors=fields)


_SHARED_SIZES: Final = ("hidden_size", "num_hidden_layers")
_SIZES: Final[Mapping[Part, tuple[str, ...]]] = {
    "embedding": ("vocab_size", "max_position_embeddings"),
    "head": ("vocab_size",),
    "attention": ("num_attention_heads", "head_dim", "kv_lora_rank"),
    "norms": (),
    "mlp": ("intermediate_size",),
    "router": ("num_experts",),
    "experts": ("num_experts", "moe_intermediate_size"),
}
"""Fields of a model that make a tensor large."""


def prepare_fit(plan: Plan, model: Model | None, training: TrainingSpec | None) -> CompileJob | CompiledBatch:
    """Returns the job that finds the largest batch on a plan's mesh, or the answer that nothing can be compiled.

    Raises:
        InvalidRequestError, DoesNotDivideError: as `prepare_verify`.
    """
    if model is None or training is None:
        raise _refuse_missing(model, '{"sequence_length": 4096}')
    found = prepare_verify(plan, model, bound_batch(training, plan.mesh_shape))
    if isinstance(found, CompileJob):
        return found.model_copy(update={"search": "largest_batch"})
    return build_unfitted(count_parts(plan.mesh_shape), found)


def bound_batch(training: TrainingSpec, mesh_shape: Mapping[str, int]) -> TrainingSpec:
    """Returns how the model is trained, with the greatest batch to look at: of those that divide, up to the one named.

    Raises:
        InvalidRequestError: no batch is so small that each part gets a sequence in each accumulated pass.
    """
    fields = training.model_dump(exclude_none=True)
    parts, passes = count_parts(mesh_shape), training.gradient_accumulation
    unit, greatest = parts * passes, fields.get("global_batch", BATCH_MAX)
    if unit > BATCH_MAX:
        detail = f"gradient_accumulation {passes} × {parts} data-parallel parts need a batch of {unit} sequences"
        rule = f"{detail}; the greatest is {BATCH_MAX}"
        raise _refuse("gradient_accumulation", rule, f"use gradient_accumulation {BATCH_MAX // parts} or less")
    if greatest < unit:
        detail = f"global_batch {greatest} is less than one sequence for each of {parts} data-parallel parts"
        passed = f" in each of {passes} accumulated passes" if passes > 1 else ""
        raise _refuse("global_batch", detail + passed, f"use {unit} or more, or name none")
    return TrainingSpec.model_validate({**fields, "global_batch": greatest // unit * unit})


def _refuse(field: str, detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError.of(f"training.{field}", detail, hint)


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
    axes = MeshAxes.of(mesh_shape)
    return axes.measure(axes.batch)
