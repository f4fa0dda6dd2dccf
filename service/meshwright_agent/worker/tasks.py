"""Tasks for the compiler: what a request wants of the compiler, complete, or why nothing can be compiled.

Rule: made in the planner's room; what comes out is JSON that the agent stores and passes on, and never reads. Knows
which compilers are installed, by their versions alone; imports no jax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from meshwright.compiling.identity import build_key, read_versions
from meshwright.errors import InvalidRequestError
from meshwright.planning.compile_request import count_parts, prepare_fit, prepare_verify
from meshwright.planning.request import Here, answer_request
from meshwright.topology.assemble import read_target
from meshwright.wire.batch_size import BatchSizeRequest, CompiledBatch
from meshwright.wire.compiling import CompileJob
from meshwright.wire.mesh import Plan, PlanRequest
from meshwright.wire.verification import Verification
from meshwright_agent.worker.compile_task import CompileTask, Operation, explain_missing

_BATCH_WAYS: Final = 'give model, training and either plan or mesh: {"model": "llama3-8b", "mesh": "fsdp:16", …}'


def build_verify_task(plan: Plan, request: PlanRequest) -> CompileTask:
    """Returns what is to be compiled for a plan.

    Args:
        plan: with its devices.
        request: what was asked; its model and how it is trained.

    Raises:
        InvalidRequestError: no model, or not how it is trained.
    """
    return _build_task("verify", plan, prepare_verify(plan, request.model, request.training))


def build_fit_task(
    request: BatchSizeRequest, plan: Plan | None, here: Here, health: Mapping[int, str] | None = None
) -> CompileTask:
    """Returns what is to be compiled to find the largest batch.

    Args:
        request: what was asked.
        plan: the stored plan that it names; None: it names a mesh.
        here: this host.
        health: the state of this host's devices.

    Raises:
        ProblemError: the request is refused, or this host is not known.
    """
    plan = _plan_mesh(request, here, health) if plan is None else plan
    found = prepare_fit(plan, request.model, request.training)
    return _build_task("fit", plan, found.verification if isinstance(found, CompiledBatch) else found)


def _plan_mesh(request: BatchSizeRequest, here: Here, health: Mapping[int, str] | None) -> Plan:
    if request.mesh is None:
        detail = "neither plan nor mesh is given; the batch that fits depends on the mesh"
        raise InvalidRequestError(detail, hint=_BATCH_WAYS, errors=[{"field": "mesh", "message": detail}])
    asked = PlanRequest(mesh=request.mesh, target=request.target, memory_strategy=request.memory_strategy)
    return answer_request(asked, here, health=health).plans[0]


def _build_task(op: Operation, plan: Plan, found: CompileJob | Verification) -> CompileTask:
    chip = None if plan.target is None else read_target(plan.target).chip
    task = CompileTask(op, plan.target, chip, data_parallel_size=count_parts(plan.mesh_shape))
    if isinstance(found, Verification):
        return replace(task, answer=found.model_dump_json())
    platform, name = found.target.platform, found.target.name
    if reason := explain_missing(read_versions(platform), platform):
        return replace(task, answer=Verification(status="not_compiled", reason=reason, target=name).model_dump_json())
    return replace(task, target=name, key=build_key(found), job=found.model_dump_json())
