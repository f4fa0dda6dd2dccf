"""Requests for the best mesh of a model: the candidates, the ranking, and each of the best as a whole plan.

Rule: the fastest that fit come first; where nothing does, no plan comes and every family is told with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshwright.environment import MemoryStrategy
from meshwright.errors import PlanInfeasibleError
from meshwright.planning.divisors import choose_near, list_divisors, write_values
from meshwright.planning.search.answer import Question, read_layout, tell
from meshwright.planning.search.hardware import Hardware
from meshwright.planning.search.ranking import rank
from meshwright.planning.search.space import AXES, Bounds, Space, list_space
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.cost import SearchSpec
from meshwright.wire.mesh import Plan, PlanRequest, Plans, Rejected
from meshwright.wire.model import ModelSpec, Remat, TrainingSpec

ALL_REMATS: Final[tuple[Remat, ...]] = ("none", "minimal", "full")

LEFT_MOST: Final = 6
"""Sizes that are told as not dividing the model."""


def build_question(
    request: PlanRequest, model: ModelSpec, training: TrainingSpec, topology: Topology, devices: int
) -> Question:
    """Returns what is priced for a request.

    Raises:
        PlanInfeasibleError: no figures are known for such hardware.
    """
    fraction = MemoryStrategy(request.memory_strategy).fraction or 1.0
    search = request.search or SearchSpec()
    price = None if search.price_per_device_hour is None else float(search.price_per_device_hour)
    return Question(model, training, Hardware.of(topology, devices), fraction, price)


def price_plan(plan: Plan, question: Question) -> Plan:
    """Returns a plan for a mesh that somebody gave, with what it costs; warns where it does not fit."""
    priced = question.price(read_layout(plan.mesh_shape, question.training))
    told = tell(question, priced, 0, plan.mesh_shape)
    memory = told["memory"]
    told["warnings"] = (*plan.warnings, *_tell_dtype(question.training))
    if not memory.fits:
        notice = Notice(
            code="memory_does_not_fit",
            message=f"the step needs about {memory.per_device_bytes / 2**30:.1f} GiB of a device's "
            f"{(memory.capacity_bytes or 0) / 2**30:.1f}",
            hint="a smaller batch, more passes, remat full, or more devices on fsdp or tp need less; leave out mesh to "
            "have the best that fits",
        )
        told["warnings"] = (*told["warnings"], notice)
    return plan.model_copy(update=told)


def search_plans(request: PlanRequest, question: Question, plan: Callable[[str], Plans]) -> Plans:
    """Returns the best meshes for a model, each with its device order, and why other families are not among them.

    Args:
        request: without a mesh.
        question: what is priced.
        plan: makes the plan for one mesh on the request's devices.

    Raises:
        PlanInfeasibleError: no mesh cuts model, batch and devices into equal parts.
    """
    bounds = read_bounds(request)
    space = list_space(question.hardware.devices, question.model, question.training, bounds)
    if not space.size:
        raise _refuse(question, bounds, space)
    priced = question.price(space.layout)
    ranking = rank(priced, request.top)
    plans = []
    for place in ranking.best:
        chosen = priced.layout.take(place)
        shape = {axis: int(getattr(chosen, axis)) for axis in AXES if int(getattr(chosen, axis)) > 1}
        made = plan(",".join(f"{axis}:{size}" for axis, size in (shape or {"dp": 1}).items())).plans[0]
        plans.append(made.model_copy(update=tell(question, priced, place, made.mesh_shape)))
    warnings = _tell_dtype(question.training) if plans else (_tell_nothing_fits(question),)
    return Plans(plans=tuple(plans), rejected=(*ranking.rejected, *_tell_left(space)), warnings=warnings)


def read_bounds(request: PlanRequest) -> Bounds:
    """Returns what a search may choose: what training says is given, and what it leaves out is free."""
    search, training = request.search or SearchSpec(), request.training
    given = training.model_fields_set if training is not None else set()
    remats = search.remat or ((training.remat,) if training is not None and "remat" in given else ALL_REMATS)
    passes = training.gradient_accumulation if training is not None and "gradient_accumulation" in given else None
    axes = {str(axis): size for axis, size in search.axes.items()}
    at_most = {str(axis): size for axis, size in search.at_most.items()}
    return Bounds(axes, at_most, tuple(dict.fromkeys(remats)), passes)


def _tell_left(space: Space) -> list[Rejected]:
    """Returns sizes that no mesh can have with this model, the smallest of each axis first."""
    smallest = sorted(space.left, key=lambda left: (left.size, AXES.index(left.axis)))[:LEFT_MOST]
    return [Rejected(mesh_shape={left.axis: left.size}, reason="divisibility", message=left.rule) for left in smallest]


def _tell_dtype(training: TrainingSpec) -> tuple[Notice, ...]:
    """Returns the warning that times are those of another dtype, where they are."""
    if training.compute_dtype != "float32":
        return ()
    message = "compute_dtype is float32, and the step's time is reckoned as of bfloat16: it will take longer"
    return (Notice(code="priced_in_16_bits", message=message, hint="compute in bfloat16, or verify by a run"),)


def _tell_nothing_fits(question: Question) -> Notice:
    count = question.hardware.devices
    return Notice(
        code="nothing_fits",
        message=f"no mesh of {count} device{'s' * (count > 1)} holds this training step",
        hint="more devices, a shorter sequence, a smaller global_batch, bfloat16 moments, or a chip with more memory; "
        "`rejected` has what each family needs at least",
    )


def _refuse(question: Question, bounds: Bounds, space: Space) -> PlanInfeasibleError:
    devices, batch = question.hardware.devices, question.training.global_batch
    rules = "; ".join(dict.fromkeys(left.rule for left in space.left[:LEFT_MOST]))
    detail = (
        f"no mesh of {devices} devices cuts this model and a global_batch of {batch} into equal parts within what the "
        f"search may choose{f' ({rules})' if rules else ''}"
    )
    batches = choose_near([size for size in _list_batches(devices, batch) if _is_legal(question, bounds, size)], batch)
    hint = f"use a global_batch of {write_values(batches)}" if batches else "leave more axes of `search` free"
    return PlanInfeasibleError(detail, hint=hint, errors=[{"field": "training.global_batch", "message": detail}])


def _list_batches(devices: int, batch: int) -> list[int]:
    """Returns the least batches, from the one that is asked on, that so many data-parallel parts divide."""
    return sorted({-(-batch // parts) * parts for parts in list_divisors(devices)})


def _is_legal(question: Question, bounds: Bounds, batch: int) -> bool:
    training = question.training.model_copy(update={"global_batch": batch})
    return list_space(question.hardware.devices, question.model, training, bounds).size > 0
