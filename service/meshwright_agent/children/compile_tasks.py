"""Tasks for the compiler: what a request wants of the compiler, complete, or why nothing can be compiled.

Rule: made in the planner's room; what comes out is JSON that the agent stores and passes on, and never reads. Knows
which compilers are installed, by their versions alone; imports no jax.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from meshwright.compiling.compilers import build_key, explain_missing
from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.batch_request import check_batch_hardware, check_batch_plan
from meshwright.planning.compile_job import build_compile_target, count_parts, prepare_fit, prepare_verify
from meshwright.planning.request import Inventory, find_inventory
from meshwright.topology.targets import read_target
from meshwright.wire.batch_size import BatchSizeRequest, CompiledBatch
from meshwright.wire.compiling import CompileJob, CompileTarget
from meshwright.wire.mesh import Plan, PlanRequest, SearchRequest
from meshwright.wire.verification import Verification

_BATCH_WAYS: Final = 'give model, training and either plan or mesh: {"model": "llama3-8b", "mesh": "fsdp:16", …}'


Operation = Literal["verify", "fit"]
"""What the compiler's child does: one step, or the largest batch."""


@dataclass(frozen=True)
class CompileTask:
    """One thing to ask the compiler.

    Attributes:
        op: what the compiler's child does.
        target: the hardware, as people write it.
        chip: an alias of the chip table where a target or a stored plan was named; None: this host's.
        key: what the answer is kept under.
        job: a CompileJob, JSON.
        answer: a not_compiled Verification, JSON, where the answer is known without a compile; else None.
        data_parallel_size: parts that the batch is cut into.
    """

    op: Operation
    target: str | None
    chip: str | None = None
    key: str = ""
    job: str = ""
    answer: str | None = None
    data_parallel_size: int = 1


def build_verify_task(plan: Plan, request: PlanRequest | SearchRequest) -> CompileTask:
    """Returns what is to be compiled for a plan.

    Args:
        plan: with its devices.
        request: what was asked; its model and how it is trained.

    Raises:
        InvalidRequestError: no model, or not how it is trained.
    """
    return _build_task("verify", plan, prepare_verify(plan, request.model, request.training))


def build_fit_task(request: BatchSizeRequest, plan: Plan | None, here: Inventory | None = None) -> CompileTask:
    """Returns what is to be compiled to find the largest batch.

    Args:
        request: what was asked.
        plan: the stored plan that it names; None: it names a mesh.
        here: this host.

    Raises:
        ProblemError: the request is refused, or this host is not known.
    """
    stored, plan = plan, _plan_mesh(request, here) if plan is None else plan
    if stored is not None:
        check_batch_plan(request, stored, _name_hardware(stored))
    check_batch_hardware(request, _find_chip(plan), _name_hardware(plan))
    found = prepare_fit(plan, request.model, request.training)
    task = _build_task("fit", plan, found.verification if isinstance(found, CompiledBatch) else found)
    return task if stored is None else replace(task, chip=_find_chip(stored))


def _name_hardware(plan: Plan) -> str:
    if plan.target is not None:
        return plan.target
    target = _describe(plan)
    return target.name if target else "hosts that are no target"


def _find_chip(plan: Plan) -> str | None:
    """Returns the alias of a plan's chip; None: it is not one that compilers know."""
    if plan.target is not None:
        return read_target(plan.target).chip
    target = _describe(plan)
    return target.chip if target else None


def _describe(plan: Plan) -> CompileTarget | None:
    try:
        return build_compile_target(plan)
    except NotCompiledError:
        return None


def _plan_mesh(request: BatchSizeRequest, here: Inventory | None) -> Plan:
    if request.mesh is None:
        detail = "neither plan nor mesh is given; the batch that fits depends on the mesh"
        raise InvalidRequestError.of("mesh", detail, _BATCH_WAYS)
    asked = PlanRequest(mesh=request.mesh, model=request.model, memory_strategy=request.memory_strategy)
    return find_inventory(request.target, here=here).lay_out(asked)


def _build_task(op: Operation, plan: Plan, found: CompileJob | Verification) -> CompileTask:
    chip = None if plan.target is None else read_target(plan.target).chip
    task = CompileTask(op, plan.target, chip, data_parallel_size=count_parts(plan.mesh_shape))
    if isinstance(found, Verification):
        return replace(task, answer=found.model_dump_json())
    name = found.target.name
    if reason := explain_missing(found.target.platform, chip=found.target.chip):
        return replace(task, answer=Verification(status="not_compiled", reason=reason, target=name).model_dump_json())
    return replace(task, target=name, key=build_key(found), job=found.model_dump_json())
