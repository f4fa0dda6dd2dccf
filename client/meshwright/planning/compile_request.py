"""What a request wants of the compiler, complete; or why nothing can be compiled.

Rule: what the request says wrongly is an error; what no compiler can be asked is an answer. The agent's planner and a
command without an agent go this way, so that they ask alike. Knows no process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.axis_names import find_role
from meshwright.planning.compile_job import build_job
from meshwright.planning.models import read_model
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
        check_stages(plan.mesh_shape)
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
    return InvalidRequestError(detail, hint=hint, errors=[{"field": missing, "message": detail}])


def check_stages(mesh_shape: Mapping[str, int]) -> None:
    """Passes over a mesh whose axes the step that is compiled has.

    Raises:
        NotCompiledError: an axis larger than 1 is a pipeline.
    """
    name = next((name for name, size in mesh_shape.items() if size > 1 and find_role(name) == "pipeline"), None)
    if name is not None:
        raise NotCompiledError(
            f"axis {name} of {mesh_shape[name]} is a pipeline, and the step that is compiled has no pipeline stages; "
            f"leave {name} out, and compile one stage by giving the model that many layers fewer"
        )


def _check_sizes(model: ModelSpec) -> None:
    for sizes in _list_weights(model):
        count = math.prod(sizes.values())
        if count > ELEMENTS_MAX:
            product = " × ".join(f"{name} {size}" for name, size in sizes.items())
            detail = f"{product} are {count} elements of one weight; no compiler takes an array of 2**63 or more"
            fields = [{"field": f"model.{name}", "message": detail} for name in sizes]
            raise InvalidRequestError(detail, hint=f"make {max(sizes, key=sizes.__getitem__)} smaller", errors=fields)


def _list_weights(model: ModelSpec) -> Iterator[dict[str, int]]:
    """Yields for each kind of weight the fields whose product is its size, all layers together as the step has them."""
    hidden = {"hidden_size": model.hidden_size}
    layers = {"num_hidden_layers": model.num_hidden_layers, **hidden}
    yield {"vocab_size": model.vocab_size, **hidden}
    if model.positions == "learned":
        yield {"max_position_embeddings": model.max_position_embeddings or 1, **hidden}
    yield {**layers, "num_attention_heads": model.num_attention_heads, "head_dim": model.head_size}
    if model.num_experts:
        yield {**layers, "num_experts": model.num_experts, "moe_intermediate_size": model.expert_size}
        yield {**layers, "num_shared_experts": model.num_shared_experts, "moe_intermediate_size": model.expert_size}
    else:
        yield {**layers, "intermediate_size": model.intermediate_size}


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
    return InvalidRequestError(detail, hint=hint, errors=[{"field": f"training.{field}", "message": detail}])


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
