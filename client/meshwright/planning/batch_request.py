"""Requests for the batch of a model's step: finds the mesh and the hardware, and estimates the batch.

Rule: the mesh is a given one, that of a stored plan, or the best of a search. The answer reports which. The agent's
planner and a command without an agent use this module, so that their answers are the same. Compiles nothing; imports
numpy only where something is priced.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from meshwright.errors import InvalidRequestError, NotCompiledError, PlanInfeasibleError
from meshwright.planning.compile_job import bound_batch, build_compile_target, read_memory, read_memory_fraction
from meshwright.planning.device_selection import ANY_LEASE
from meshwright.planning.hardware import HardwareType, parse_hardware
from meshwright.planning.models import fill_sequence_length, read_supported
from meshwright.planning.parallelism import check_divides
from meshwright.planning.request import Inventory, answer_request, find_inventory
from meshwright.topology.chips import find_chip
from meshwright.topology.targets import read_target
from meshwright.wire.batch_size import BatchSizeRequest, EstimatedBatch
from meshwright.wire.mesh import Plan, PlanRequest, SearchRequest
from meshwright.wire.model import ModelSpec, TrainingSpec

if TYPE_CHECKING:
    from meshwright.planning.search.candidates import Question

_refuse = InvalidRequestError.of

_OF_A_MODEL: Final = ("training", "mesh", "plan")
"""Fields that have no meaning without a model."""


def check_batch_fields(request: BatchSizeRequest) -> None:
    """Raises InvalidRequestError if a field about a model is given without one, or the table's batch beside one."""
    if request.model is not None and request.per_device_batch_size is not None:
        message = "per_device_batch_size, tokens, is checked against the table, which knows no model; only one counts"
        raise _refuse("per_device_batch_size", message, "leave out model, or leave out per_device_batch_size")
    for name in _OF_A_MODEL:
        if request.model is None and getattr(request, name) is not None:
            message = f"{name} is about a model's step, and model is not given"
            raise _refuse(name, message, f'add a model, such as "model": "llama3-8b", or leave out {name}')


def check_batch_plan(request: BatchSizeRequest, plan: Plan, there: str) -> None:
    """Raises InvalidRequestError unless the request agrees with the stored plan that it names.

    A fingerprint does not name hardware. The plan may have been made again on other hardware since the caller saw it.

    Args:
        there: the hardware of the plan's last use, as a target where it has that form.

    Raises:
        InvalidRequestError: the request also has a mesh, or another target.
    """
    if request.mesh is not None:
        message = f"mesh {request.mesh!r} stands beside plan {plan.fingerprint}, which has a mesh; only one counts"
        raise _refuse("mesh", message, "leave out mesh, or leave out plan")
    if request.target is not None and str(read_target(request.target)) != there:
        message = f"target {request.target!r} stands beside plan {plan.fingerprint}, which was last made on {there}"
        raise _refuse("target", message, f"plan on {request.target} first (POST /mesh/plan), or leave out target")


def check_batch_hardware(request: BatchSizeRequest, chip: str | None, there: str) -> None:
    """Raises an error unless `hardware`, where given, is the hardware that the step runs on.

    Args:
        chip: of the devices; None: not known.
        there: the devices in words.

    Raises:
        UnknownHardwareError: the name is in no table. InvalidRequestError: the name is that of another chip.
    """
    if request.hardware is None:
        return
    named, real = find_chip(request.hardware), find_chip(chip or "")
    is_same = chip is not None and parse_hardware(request.hardware) is parse_hardware(chip)
    is_family = request.hardware.strip().lower().replace("-", "_") in {each.value for each in HardwareType}
    if is_same and (named == real or named is None or is_family):  # a family may be of several chips
        return
    message = f"hardware {request.hardware!r} stands beside {there}, which is {chip or 'of no known chip'}"
    raise _refuse("hardware", message, "leave out hardware, or name a target of it")


def name_batch_hardware(request: BatchSizeRequest) -> BatchSizeRequest:
    """Returns the request with the hardware that it names, directly or by its target.

    Raises:
        InvalidRequestError: the target is not valid, or has other hardware than the request names.
        PlanInfeasibleError: the target does not exist.
    """
    if request.target is None:
        return request
    target = read_target(request.target)
    if request.hardware is None:
        return request.model_copy(update={"hardware": target.chip})
    check_batch_hardware(request, target.chip, f"target {target}")
    return request


def estimate_request(
    request: BatchSizeRequest, here: Inventory | None = None, *, stored: Plan | None = None
) -> EstimatedBatch:
    """Returns the recommended batch of a training step for the request's model.

    Raises:
        InvalidRequestError: the model or its training is not valid, the fields contradict each other, or there is
            neither hardware nor a host.
        InvalidMeshError, PlanInfeasibleError: the mesh does not fit this hardware, or does not
            divide the model.
        PlanInfeasibleError: no figures are known of this hardware, the devices are too few, or no mesh fits.
    """
    check_batch_fields(request)
    if request.model is None:
        raise _refuse("model", "no model is given, so that there is no step to estimate", 'add "model": "llama3-8b"')
    model = read_supported(request.model, "name another model, or give its dimensions")
    training = fill_sequence_length(model, request.training or TrainingSpec())
    if stored is not None:
        return _estimate_stored(request, model, training, stored)
    if request.plan is not None:
        message = "a stored plan is named, which only its agent knows"
        raise _refuse("plan", message, 'name mesh="fsdp:8" and a target')
    if request.target is None and here is None:
        raise _refuse("target", "no target is named and no agent is asked", 'name a target, such as "v5e:4x4"')
    inventory = find_inventory(request.target, here=here)
    check_batch_hardware(request, _find_chip(inventory), inventory.target or "this host")
    if request.mesh is None:
        return _estimate_searched(request, model, training, inventory)
    asked = PlanRequest(
        mesh=request.mesh, model=request.model, include_devices=False, memory_strategy=request.memory_strategy
    )
    plan = inventory.lay_out(asked.model_copy(update={"lease": ANY_LEASE}))
    question = _ask(request, model, bound_batch(training, plan.mesh_shape), inventory, plan)
    return _estimate(question, plan)


def _find_chip(inventory: Inventory) -> str | None:
    """Returns the alias of the chip of all devices; None if they differ, or the chip is in no table."""
    kinds = {device.kind for device in inventory.topology.devices}
    if inventory.target is not None:
        return read_target(inventory.target).chip
    chip = find_chip(kinds.pop()) if len(kinds) == 1 else None
    return chip.aliases[0] if chip else None


def _estimate(question: Question, plan: Plan) -> EstimatedBatch:
    from meshwright.planning.search.batch import estimate_batch  # here, for its numpy

    return estimate_batch(question, plan)


def _ask(
    request: BatchSizeRequest, model: ModelSpec, training: TrainingSpec, inventory: Inventory, plan: Plan | None = None
) -> Question:
    """Returns the question to price: on the devices of a plan, or on all healthy devices. Leases do not matter here.

    Raises:
        PlanInfeasibleError: the plan's mesh does not divide the model, or no figures are known for
        this hardware.
    """
    if plan is None:
        count = len(inventory.select(lease=ANY_LEASE).indices)
    else:
        check_divides(model, training, plan.mesh_shape)
        count = math.prod(plan.mesh_shape.values())
    try:
        return inventory.ask(model, training, count, request)
    except PlanInfeasibleError as error:
        message = f"no batch can be estimated for a model here: {error.errors[0]['message']}"
        hint = 'name the hardware, as in "target": "v5p:4x4x4", or give a mesh and "compile": true'
        raise PlanInfeasibleError.of("target", message, hint) from error


def _estimate_stored(request: BatchSizeRequest, model: ModelSpec, training: TrainingSpec, plan: Plan) -> EstimatedBatch:
    """Returns the estimate for a stored plan, on the hardware that it was made for and with its part of the memory."""
    try:
        name = plan.target or build_compile_target(plan).name
    except NotCompiledError as error:
        hint = 'name a target and a mesh, as in "target": "v5p:4x4x4", "mesh": "fsdp:64"'
        raise _refuse("plan", f"plan {plan.fingerprint} has no hardware that is priced: {error}", hint) from error
    try:
        chip, inventory = read_target(name).chip, find_inventory(name)
    except PlanInfeasibleError as error:
        hint = "give its mesh in place of the plan, where its devices are"
        raise _refuse("plan", f"plan {plan.fingerprint} is of hardware of no table: {error.detail}", hint) from error
    check_batch_plan(request, plan, name)
    check_batch_hardware(request, chip, name)
    question = _ask(request, model, bound_batch(training, plan.mesh_shape), inventory, plan)
    hardware = replace(question.hardware, memory_bytes=read_memory(plan))
    question = replace(question, hardware=hardware, memory_fraction=read_memory_fraction(plan))
    return _estimate(question, plan.model_copy(update={"target": name}))


def _estimate_searched(
    request: BatchSizeRequest, model: ModelSpec, training: TrainingSpec, inventory: Inventory
) -> EstimatedBatch:
    """Returns the estimate for the fastest mesh that fits one batch.

    That is the largest multiple of the devices within the requested batch, or a batch below their number itself; where
    none is requested, the least near the best tokens/s.
    """
    from meshwright.planning.search.batch import find_first_batch  # here, for its numpy

    devices = len(inventory.select(lease=ANY_LEASE).indices)
    given = training.model_dump(exclude_unset=True, exclude_none=True)
    if most := given.get("global_batch_size"):
        batch = most // devices * devices or most
    else:
        batch = find_first_batch(_ask(request, model, bound_batch(training, {"fsdp": devices}), inventory), devices)
    given["global_batch_size"] = batch
    plan = _search(request, TrainingSpec.model_validate(given), inventory)
    question = _ask(request, model, bound_batch(training, plan.mesh_shape), inventory, plan)
    estimated = _estimate(question, plan)
    said = f"{estimated.message}; the mesh is the fastest that was found for {batch} sequences a step"
    return estimated.model_copy(update={"message": said})


def _search(request: BatchSizeRequest, training: TrainingSpec, inventory: Inventory) -> Plan:
    """Returns the plan of the fastest mesh that fits."""
    assert request.model is not None
    asked = SearchRequest(
        model=request.model, training=training, memory_strategy=request.memory_strategy, include_devices=False, top=1
    )
    plans = answer_request(asked.model_copy(update={"lease": ANY_LEASE}), inventory)
    if plans.plans:
        return plans.plans[0]
    notice = plans.warnings[0]
    raise PlanInfeasibleError.of("training", notice.message, notice.hint.partition(";")[0])
