"""Compile tasks: the complete job of a request for the compiler, or the reason why nothing can be compiled.

Rule: the planner builds tasks. The result is JSON that the agent stores and forwards without parsing. This module reads
only the versions of the installed compilers and does not import jax.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from meshwright.compiling.compilers import build_key, explain_missing
from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.batch_request import check_batch_hardware, check_batch_plan
from meshwright.planning.compile_job import CompileJob, build_compile_target, prepare_fit, prepare_verify
from meshwright.planning.request import Inventory, find_inventory
from meshwright.topology.targets import read_target
from meshwright.wire.batch_size import BatchSizeRequest, CompiledBatch
from meshwright.wire.mesh import Plan, PlanRequest, SearchRequest
from meshwright.wire.verification import Verification

_BATCH_WAYS: Final = 'give model, training and either plan or mesh: {"model": "llama3-8b", "mesh": "fsdp:16", …}'


Operation = Literal["verify", "fit"]
"""The operation of the compiler's child: verify one step, or find the largest batch."""


@dataclass(frozen=True)
class CompileTask:
    """One task for the compiler.

    Attributes:
        op: the operation of the compiler's child.
        target: the hardware in its written form.
        chip: an alias of the chip table if a target or a stored plan was named; None: this host's chip.
        key: the store key of the answer.
        job: a CompileJob, JSON.
        answer: a not_compiled Verification, JSON, if the answer is known without a compile; else None.
    """

    op: Operation
    target: str | None
    chip: str | None = None
    key: str = ""
    job: str = ""
    answer: str | None = None


def build_verify_task(plan: Plan, request: PlanRequest | SearchRequest) -> CompileTask:
    """Returns the compile task of a plan.

    Raises:
        InvalidRequestError: the request does not have a model or a training.
    """
    return _build_task("verify", plan, prepare_verify(plan, request.model, request.training))


def build_fit_task(request: BatchSizeRequest, plan: Plan | None, here: Inventory | None = None) -> CompileTask:
    """Returns the compile task of finding the largest batch.

    Args:
        plan: the stored plan that the request names; None: the request names a mesh.

    Raises:
        ProblemError: the request is rejected, or this host is not known.
    """
    stored, plan = plan, _plan_mesh(request, here) if plan is None else plan
    there, chip = _describe_hardware(plan)
    if stored is not None:
        check_batch_plan(request, stored, there)
    check_batch_hardware(request, chip, there)
    found = prepare_fit(plan, request.model, request.training)
    task = _build_task("fit", plan, found.verification if isinstance(found, CompiledBatch) else found)
    return task if stored is None else replace(task, chip=chip)


def _describe_hardware(plan: Plan) -> tuple[str, str | None]:
    """Returns a plan's hardware in words, and the alias of its chip; None if compilers do not support the chip."""
    if plan.target is not None:
        return plan.target, read_target(plan.target).chip
    try:
        target = build_compile_target(plan)
    except NotCompiledError:
        return "hosts that are no target", None
    return target.name, target.chip


def _plan_mesh(request: BatchSizeRequest, here: Inventory | None) -> Plan:
    if request.mesh is None:
        detail = "neither plan nor mesh is given; the batch that fits depends on the mesh"
        raise InvalidRequestError.of("mesh", detail, _BATCH_WAYS)
    asked = PlanRequest(mesh=request.mesh, model=request.model, memory_strategy=request.memory_strategy)
    return find_inventory(request.target, here=here).lay_out(asked)


def _build_task(op: Operation, plan: Plan, found: CompileJob | Verification) -> CompileTask:
    chip = None if plan.target is None else read_target(plan.target).chip
    task = CompileTask(op, plan.target, chip)
    if isinstance(found, Verification):
        return replace(task, answer=found.model_dump_json())
    name = found.target.name
    if reason := explain_missing(found.target.platform, chip=found.target.chip):
        return replace(task, answer=Verification(status="not_compiled", reason=reason, target=name).model_dump_json())
    return replace(task, target=name, key=build_key(found), job=found.model_dump_json())
