"""Answers requests that need a compile in this process: plans here, compiles in a child process.

Rule: the answers are those of an agent, but nothing is stored. `--offline` of `meshwright plan`, `search` and
`batch-size` uses this module. Independent of jax and of the terminal.
"""

from __future__ import annotations

from meshwright.compiling.compilers import explain_missing
from meshwright.compiling.process import (
    FUNCTIONS,
    LIMIT_S,
    Ended,
    OnProgress,
    build_aborted,
    read_default_limit_bytes,
    run_child,
)
from meshwright.errors import InvalidRequestError
from meshwright.planning.batch_request import check_batch_fields, estimate_request, name_batch_hardware
from meshwright.planning.batch_size import answer_batch_size
from meshwright.planning.compile_job import CompileJob, build_unfitted, prepare_fit, prepare_verify
from meshwright.planning.request import answer_request, find_inventory, leave_out_all_devices, order_verified, reorder
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, CompiledBatch
from meshwright.wire.mesh import PlanRequest, Plans, SearchRequest
from meshwright.wire.verification import Verification

_refuse = InvalidRequestError.of


def compile_in_child(
    job: CompileJob, *, limit_s: float = LIMIT_S, on_progress: OnProgress | None = None
) -> Verification | CompiledBatch:
    """Returns the report of XLA's compiler on a job: a Verification, or of a search the largest batch.

    An abort, a kill and a limit that was reached are a Verification too, with the status "aborted"; without a compiler
    it is one with the status "not_compiled" that says how to install it. The compiler may use three quarters of this
    host's memory. Arguments and errors are those of `run_child`.
    """
    is_search = job.search == "largest_batch"
    if missing := explain_missing(job.target.platform, chip=job.target.chip):
        return Verification(status="not_compiled", reason=missing, target=job.target.name)
    found = run_child(
        FUNCTIONS["fit" if is_search else "verify"],
        job.model_dump(mode="json"),
        limit_s=limit_s,
        memory_limit_bytes=read_default_limit_bytes(),
        on_progress=on_progress,
    )
    if isinstance(found, Ended):
        return build_aborted(found, job.target.name)
    return CompiledBatch.model_validate(found) if is_search else Verification.model_validate(found)


def answer_plans(
    request: PlanRequest | SearchRequest, *, limit_s: float = LIMIT_S, on_progress: OnProgress | None = None
) -> Plans:
    """Returns the answer of `POST /mesh/plan` or `/mesh/search`, with verifications where the request has `compile`.

    Args:
        request: a mesh, or a model to find one for.
        limit_s: of each compile.
        on_progress: called with each progress of a compile.

    Raises:
        RequestError: as `answer_request`; or a compile is requested without a model or its training.
    """
    if not request.compile:
        return answer_request(request)
    plans = answer_request(request.model_copy(update={"include_devices": True}))
    verified = []
    for plan in plans.plans:
        answer: CompileJob | Verification | CompiledBatch = prepare_verify(plan, request.model, request.training)
        if isinstance(job := answer, CompileJob):
            answer = compile_in_child(job, limit_s=limit_s, on_progress=on_progress)
        verified.append(plan.model_copy(update={"verification": answer}))
    order = order_verified([plan.verification.status for plan in verified if plan.verification])
    plans = reorder(plans.model_copy(update={"plans": tuple(verified)}), order)
    return plans if request.include_devices else leave_out_all_devices(plans)


def answer_batch(
    request: BatchSizeRequest, *, limit_s: float = LIMIT_S, on_progress: OnProgress | None = None
) -> BatchSize:
    """Returns the answer of `POST /batch-size`, with the batch of a model's step: estimated, or by the compiler.

    Raises:
        RequestError: neither hardware nor target is given; a field is about a model, and no model is given; a compile
            is requested without a model or a mesh; or a plan is named, which only an agent stores.
    """
    check_batch_fields(request)
    named = name_batch_hardware(request)
    if named.hardware is None:
        raise _refuse("hardware", "no hardware is named and no agent is asked", 'name a target, such as "h100:8"')
    reply = answer_batch_size(named, platform=None, kind=named.hardware, basis="declared")
    if not request.compile:
        estimated = None if request.model is None else estimate_request(request)
        return reply.model_copy(update={"estimated": estimated})
    return reply.model_copy(update={"compiled": _fit(request, limit_s, on_progress)})


def _fit(request: BatchSizeRequest, limit_s: float, on_progress: OnProgress | None) -> CompiledBatch:
    if request.mesh is None:
        missing = "a stored plan is named, which only its agent knows" if request.plan else "no mesh is given"
        raise _refuse("mesh", f"{missing}; the batch that fits depends on the mesh", 'name mesh="fsdp:8" and a target')
    asked = PlanRequest(mesh=request.mesh, model=request.model, memory_strategy=request.memory_strategy)
    plan = find_inventory(request.target).lay_out(asked)
    job = prepare_fit(plan, request.model, request.training)
    if isinstance(job, CompiledBatch):
        return job
    found = compile_in_child(job, limit_s=limit_s, on_progress=on_progress)
    return found if isinstance(found, CompiledBatch) else build_unfitted(found)
