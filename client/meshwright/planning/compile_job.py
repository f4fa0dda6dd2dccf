"""What a compiler is asked about a plan: its hardware as a target, its mesh, its model, and the memory there is.

Rule: pure, and the plan says all of it, so that a plan from a file is asked about as well as one just made. What cannot
be asked is said with the reason. Knows no compiler and no process.
"""

from __future__ import annotations

import math
from typing import Final

from meshwright.environment import MEM_FRACTION, NEW_MEM_FRACTION, MemoryStrategy
from meshwright.errors import NotCompiledError
from meshwright.planning.cost.capacity import find_capacity
from meshwright.planning.expressible import check_expressible
from meshwright.planning.parallelism import check_divides
from meshwright.topology.chips import Chip, find_chip
from meshwright.wire.compiling import CompileJob, CompileMesh, CompileTarget
from meshwright.wire.mesh import Plan, PlanGranule
from meshwright.wire.model import ModelSpec, TrainingSpec

_WAY: Final = "plan on a target instead, such as v5p:4x4x4"


def build_job(plan: Plan, model: ModelSpec, training: TrainingSpec) -> CompileJob:
    """Returns the job that verifies a plan.

    Args:
        plan: with its devices.
        model, training: the step.

    Raises:
        NotCompiledError: no compiler can be asked about such hardware, or the compiled step has not what the model has.
        DoesNotDivideError: an axis does not divide what it cuts.
        InvalidRequestError: an axis says nothing of what it cuts.
    """
    check_divides(model, training, plan.mesh_shape)
    check_expressible(model, training.sequence_length)
    return CompileJob(
        target=build_compile_target(plan),
        mesh=build_compile_mesh(plan),
        model=model,
        training=training,
        capacity_bytes=read_capacity(plan),
    )


def build_compile_target(plan: Plan) -> CompileTarget:
    """Returns the hardware of a plan as compilers describe it.

    Raises:
        NotCompiledError: its devices are of several kinds or of none that is known, slices have no shape or differ, or
            lack chips; or the plan, of an older release, does not say.
    """
    if plan.platform == "cpu":
        return _build_target(plan, "cpu", (max(granule.device_count for granule in plan.granules),))
    chip = _find_chip(plan)
    if plan.platform == "tpu":
        return _build_target(plan, chip.aliases[0], _find_shape(plan, chip))
    return _build_target(plan, chip.aliases[0], (max(granule.device_count for granule in plan.granules),))


def _find_chip(plan: Plan) -> Chip:
    kinds = {granule.device_kind for granule in plan.granules}
    kind = kinds.pop()
    if kinds or kind is None:
        raise NotCompiledError(f"the plan's devices are not all of one kind that it names; {_WAY}")
    chip = find_chip(kind)
    if chip is None:
        raise NotCompiledError(f"no chip of the table is called {kind!r}, so no compiler is known for it; {_WAY}")
    return chip


def _find_shape(plan: Plan, chip: Chip) -> tuple[int, ...]:
    first, *others = plan.granules
    if first.shape is None or any(_describe(granule) != _describe(first) for granule in others):
        raise NotCompiledError(f"the slices have no shape, or not the same one, and compilers know them by it; {_WAY}")
    whole = math.prod(first.shape) * chip.jax_devices_per_chip
    if any(granule.device_count != whole for granule in plan.granules):
        shape = "x".join(map(str, first.shape))
        raise NotCompiledError(f"a slice of {shape} chips has {whole} devices, and one here lacks some; {_WAY}")
    return first.shape


def _describe(granule: PlanGranule) -> tuple[object, ...]:
    return granule.shape, granule.wrap, granule.twisted


def _build_target(plan: Plan, chip: str, shape: tuple[int, ...]) -> CompileTarget:
    first, count = plan.granules[0], len(plan.granules)
    written = f"{count}*" * (count > 1) + f"{chip}:{'x'.join(map(str, shape))}" + "_twisted" * first.twisted
    return CompileTarget(
        platform=plan.platform,
        chip=chip,
        shape=shape,
        granules=count,
        wrap=first.wrap,
        twisted=first.twisted,
        name=plan.target or written,
    )


def build_compile_mesh(plan: Plan) -> CompileMesh:
    """Returns the mesh of a plan, by granule and position.

    Raises:
        NotCompiledError: the plan's devices were left out.
    """
    if plan.devices is None:
        raise NotCompiledError("the plan's devices were left out, so its order is not known; ask with include_devices")
    ordinals = {granule.ordinal: place for place, granule in enumerate(plan.granules)}
    places = tuple((ordinals[device.granule], device.position) for device in plan.devices)
    return CompileMesh(shape=dict(plan.mesh_shape), axis_types=dict(plan.axis_types), places=places)


def read_capacity(plan: Plan) -> int | None:
    """Returns the bytes of a device that the plan's job may use; None: its compiler says it.

    Of a GPU the least memory of any × the fraction that the job is started with; of a CPU device its part of the host's
    memory, where the plan was made on a host.
    """
    if plan.platform == "tpu":
        return None
    memory_bytes = read_memory(plan)
    if plan.platform == "cpu":
        return memory_bytes
    return find_capacity(_find_chip(plan), memory_bytes, read_memory_fraction(plan))


def read_memory(plan: Plan) -> int | None:
    """Returns the memory of the plan's device that has least; None: the plan does not say."""
    known = (granule.device_memory_bytes for granule in plan.granules)
    return min((size for size in known if size is not None), default=None)


def read_memory_fraction(plan: Plan) -> float:
    """Returns the part of a GPU's memory that the plan's job is started with."""
    text = plan.environment.get(NEW_MEM_FRACTION) or plan.environment.get(MEM_FRACTION)
    return float(text) if text else MemoryStrategy.BALANCED.fraction or 1.0
