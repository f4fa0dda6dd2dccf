"""A search for the best mesh of a model: the fastest that fit, each as a whole plan, and why the others were rejected.

Where nothing fits, there is no plan, and every family is reported with its reason.

An audit offers the best that the devices of a given mesh could do with the same batch: a mesh that was priced by its
sizes, is legal and fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.planning.cost.memory import DTYPE_BYTES, count_optimizer_bytes, read_moments
from meshwright.planning.cost.spans import AXES, REMATS, Layout, Spans
from meshwright.planning.cost.step_time import find_spread
from meshwright.planning.exports.maxtext import find_runnable
from meshwright.planning.hardware import GPU_FRACTION, find_capacity
from meshwright.planning.parallelism import MeshAxes, choose_near, list_divisors, name_axis, write_mesh, write_values
from meshwright.planning.search.candidates import PARTS, Bounds, Hardware, Priced, Question, Space
from meshwright.topology.targets import read_target
from meshwright.wire.base import Notice
from meshwright.wire.mesh import (
    EQUAL_WITHIN,
    AuditAlternative,
    Plan,
    PlanMemory,
    Plans,
    PlanSchedule,
    PlanStepTime,
    Rejected,
    SearchRequest,
)
from meshwright.wire.model import TrainingSpec

LARGEST_LOG2: Final = 20
"""A micro-batch of 2^20 sequences is the largest that is tried."""


def read_layout(mesh_shape: Mapping[str, int], training: TrainingSpec) -> Layout:
    """Returns a mesh and its training as a layout of one candidate; unknown names count as data."""
    sizes = dict.fromkeys(AXES, 1)
    for name, size in mesh_shape.items():
        sizes[name_axis(name)] *= size
    passes = training.gradient_accumulation_steps
    micro = training.global_batch_size // (sizes["dp"] * sizes["fsdp"] * sizes["ep"]) // passes
    remat, states = REMATS.index(training.remat), count_optimizer_bytes(training)
    return Layout(
        **sizes, micro_batch_size=micro, gradient_accumulation_steps=passes, remat=remat, optimizer_bytes=states
    )


def find_names(names: Iterable[str]) -> dict[str, str]:
    """Returns axes → their names in a mesh; of several, the outermost."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name_axis(name), name)
    return found


def list_schedules(mesh_shape: Mapping[str, int], question: Question) -> Layout:
    """Returns a mesh with all accumulation steps and remats that training leaves free, as candidates."""
    training = question.training
    layout, given = read_layout(mesh_shape, training), training.model_fields_set
    steps = int(layout.gradient_accumulation_steps)
    share = int(layout.micro_batch_size) * steps
    remats = bound_schedule(training).remats or question.remats
    passes = [steps] if "gradient_accumulation_steps" in given else list_divisors(share)
    stages = int(layout.pp)
    gathers = (False, True) if stages > 1 and int(layout.fsdp) > 1 else (False,)
    runs = [(steps, many) for steps in passes for many in _list_runs(stages, steps)]
    choices = [(*run, kind, once) for run in runs for kind in map(REMATS.index, remats) for once in gathers]
    counts, many, kinds, once = np.array(choices).T
    batches = replace(layout, micro_batch_size=share // counts, gradient_accumulation_steps=counts, pipeline_runs=many)
    return replace(batches, remat=kinds, gathers_once=once > 0)


def _list_runs(stages: int, steps: int) -> tuple[int, ...]:
    """Returns how often the loop of a pipeline may run: once, or each time with as many micro-batches as stages."""
    return (1, steps // stages) if stages > 1 and steps % stages == 0 and steps > stages else (1,)


def build_costs(question: Question, priced: Priced, place: int, mesh_shape: Mapping[str, int]) -> dict[str, Any]:
    """Returns the cost fields of a plan for a candidate; `mesh_shape` has the names of its axes."""
    layout = priced.layout.take(place)
    total_s = float(priced.total_s[place])
    sequences = question.training.global_batch_size
    tokens, peak = sequences * question.training.seq_len, question.hardware.chip.device_flops_per_s
    costs: dict[str, Any] = {
        "memory": _build_memory(priced, place),
        "step_time": _build_step_time(priced, place, mesh_shape),
        "schedule": build_schedule(question, layout),
        "tokens_per_s": tokens / total_s,
        "mfu": priced.work.flops_per_token * tokens / total_s / question.hardware.devices / peak,
        "largest_batch": find_largest_batch(question, layout, int(layout.micro_batches_at_once)),
        "measured": tuple(factor.to_figure() for factor in question.hardware.factors if factor.is_taken),
    }
    if (price := question.price_per_device_hour) is not None:
        costs["price_per_million_tokens"] = price * question.hardware.devices / 3600 * total_s / tokens * 1e6
    return costs


def _build_memory(priced: Priced, place: int) -> PlanMemory:
    parts = {name: round(float(sizes[place])) for name, sizes in priced.memory.items()}
    return PlanMemory(
        per_device_bytes=sum(parts.values()),
        capacity_bytes=int(priced.capacity_bytes),
        fits=bool(priced.fits[place]),
        parts={name: size for name, size in parts.items() if size},
        host_bytes=round(float(priced.host_bytes[place])),
    )


def _build_step_time(priced: Priced, place: int, mesh_shape: Mapping[str, int]) -> PlanStepTime:
    parts = {name: float(seconds[place]) for name, seconds in priced.parts.items()}
    total_s = sum(parts.values())
    least_s = 1e-2 if priced.hardware.chip.platform == "gpu" else 1e-3
    short = "; a step this short is mostly the latency of launches, which is not priced" if total_s < least_s else ""
    spread, reason = find_spread(priced.hardware.chip, priced.work, priced.layout.take(place))
    return PlanStepTime(
        total_s=total_s,
        low_s=total_s / spread,
        high_s=total_s * spread,
        compute_s=parts["compute"],
        remat_s=parts["remat"],
        communication_s=_name_parts(parts, mesh_shape),
        bubble_s=parts["bubble"],
        basis=f"{priced.hardware.basis}; interval: {reason}{short}",
    )


def _name_parts(parts: Mapping[str, float], mesh_shape: Mapping[str, int]) -> dict[str, float]:
    """Returns seconds of communication by the axes of a mesh.

    Where a mesh has two axes of one role the outer one represents both. Where it has no data axis, gradients that are
    summed over expert or context axes count there.
    """
    names, found = find_names(MeshAxes.of(mesh_shape).sizes), dict[str, float]()
    for axis in AXES:
        name = next((names[each] for each in (axis, "ep", "cp") if each in names), axis)
        if parts[axis] > 0:
            found[name] = found.get(name, 0.0) + parts[axis]
    return found


def build_schedule(question: Question, layout: Layout) -> PlanSchedule:
    """Returns how the batch goes through a candidate."""
    training = question.training
    moments = read_moments(training)
    if layout.optimizer_bytes != count_optimizer_bytes(training):  # a search chose another
        moments = tuple(dtype for dtype, size in DTYPE_BYTES.items() if 2 * size == layout.optimizer_bytes) * 2
    first, second = (*moments, None, None)[:2]
    return PlanSchedule(
        micro_batch_size=int(layout.micro_batch_size),
        gradient_accumulation_steps=int(layout.gradient_accumulation_steps),
        pipeline_repeats=int(layout.count_repeats(question.model.num_hidden_layers)),
        pipeline_runs=int(layout.pipeline_runs),
        pipeline_gathers_once=bool(layout.gathers_once),
        remat=REMATS[int(layout.remat)],
        global_batch_size=training.global_batch_size,
        seq_len=training.seq_len,
        first_moment_dtype=first,
        second_moment_dtype=second,
    )


def find_largest_batch(question: Question, layout: Layout, passes: int = 1) -> int | None:
    """Returns the largest number of sequences of a step that fits on a candidate's mesh with its gradient accumulation;
    None: less than one per part."""
    low, width = 0, 2**LARGEST_LOG2
    while width > 1:
        width //= _TRIED_AT_ONCE
        tried = low + width * np.arange(1, _TRIED_AT_ONCE + 1, dtype=np.int64)
        batch = replace(layout, micro_batch_size=tried, gradient_accumulation_steps=passes, pipeline_runs=1)
        low = int(tried[question.fits(batch)].max(initial=low))
    return low * int(layout.data_parts) * passes or None


_TRIED_AT_ONCE: Final = 16
"""Micro-batches: 2^20 is narrowed down to 1 in five rounds."""

FAMILIES_MOST: Final = 12
"""The maximum number of reported families of each kind: slower fitting ones, the fastest first; and those that do not
fit, the nearest first."""


ROOM: Final = 0.08
"""Part of the memory that is left free where an equal mesh allows it."""


UNTESTED: Final = 0.05
"""The part of a step by which a mesh must be faster that people use and no run tests. Assumed."""

UNUSUAL: Final = 0.15
"""The same of one that people do not use. Assumed."""

LONG: Final = 16_384
"""Tokens of a sequence from which people cut it."""


def find_handicaps(priced: Priced) -> dict[str, NDArray[np.float64]]:
    """Returns the parts of a step by which candidates with an untested axis must be faster, by the axis in words."""
    layout, sequence, hardware = priced.layout, priced.work.seq_len, priced.hardware
    cp, tp, pp = (np.asarray(size) > 1 for size in (layout.cp, layout.tp, layout.pp))
    far_tp, far_ep = (np.asarray(priced.spans[axis].outer.size) > 1 for axis in ("tp", "ep"))
    found = {"tp over the network": UNUSUAL * far_tp, "ep over the network": UNTESTED * far_ep}
    if sequence < LONG:
        found[f"cp for sequences of {sequence:,} tokens"] = UNUSUAL * cp
    if hardware.chip.platform != "gpu" or hardware.devices <= hardware.domain:  # people use it between hosts of GPUs
        found["pp"] = UNUSUAL * pp
    if hardware.chip.platform == "gpu":
        found["cp on GPUs"] = UNTESTED * cp * (sequence >= LONG)
        found["tp on GPUs"] = (UNUSUAL if priced.work.has_experts else UNTESTED) * tp  # whose matrices are narrow
    return {words: np.broadcast_to(each, priced.total_s.shape) for words, each in found.items()}


def weigh(priced: Priced) -> NDArray[np.float64]:
    """Returns the seconds of a step by which candidates are compared, with their handicaps."""
    return np.asarray(priced.total_s * (1 + np.sum(list(find_handicaps(priced).values()), axis=0)))


def choose_schedule(priced: Priced) -> int:
    """Returns the place of the best candidate."""
    return int(_order(priced)[0])


@dataclass(frozen=True)
class Best:
    """The best candidate of a search; `weighed_s` is of `weigh`, and both are infinite where none fits."""

    mesh_shape: dict[str, int]
    seconds: float
    weighed_s: float


def price_best(question: Question, bounds: Bounds) -> Best | None:
    """Returns the best candidate, by sizes alone; None: no mesh divides model, batch and devices."""
    space = question.list_space(bounds)
    if not space.size:
        return None
    priced = question.price(space.layout)
    return _read_best(priced, choose_schedule(priced))


def _read_best(priced: Priced, place: int) -> Best:
    shape, far = priced.layout.take(place).mesh_shape, 0.0 if priced.fits[place] else math.inf
    return Best(shape, far + float(priced.total_s[place]), far + float(weigh(priced)[place]))


def _is_feasible(question: Question, bounds: Bounds) -> bool:
    return (best := price_best(question, bounds)) is not None and best.seconds < math.inf


def list_leaders(priced: Priced) -> NDArray[np.int64]:
    """Returns the place of the best candidate of each mesh: those that fit first, among these the best first.

    The fastest is the best, with handicaps; but among those equal within the error, the one with free memory, then
    with the least handicap, then with the fewest of pp, cp and tp, then with the fewest axes, then with the most memory
    of what is too little, then without the host's memory, then with the largest moments.
    """
    order, first = _order(priced), dict[tuple[int, ...], int]()
    sizes = (getattr(priced.layout, axis)[order].tolist() for axis in AXES)
    for place, *mesh in zip(order.tolist(), *sizes, strict=True):
        first.setdefault(tuple(mesh), place)
    return np.array(list(first.values()), dtype=np.int64)


def list_rejected(
    priced: Priced, leaders: NDArray[np.int64], best: Sequence[int], ordered: Mapping[int, float]
) -> tuple[Rejected, ...]:
    """Returns the best of each family that is not among `best`, whose first entry is the reference for the others.

    Args:
        priced: all candidates.
        leaders: result of `list_leaders`.
        best: places of the reported candidates.
        ordered: place → seconds of a step, for the candidates whose devices were ordered.
    """
    shapes = {place: priced.layout.take(place).mesh_shape or {"dp": 1} for place in map(int, leaders)}
    told = {tuple(shapes[place]) for place in best}
    found: dict[bool, list[Rejected]] = {True: [], False: []}
    for place, shape in shapes.items():
        family, same = tuple(shape), found[bool(priced.fits[place])]
        if family not in told and len(same) < FAMILIES_MOST:
            told.add(family)
            reason, message = _explain(priced, place, best[0] if best else None, ordered)
            same.append(Rejected(mesh_shape=shape, reason=reason, message=message))
    return (*found[True], *found[False])


def _order(priced: Priced) -> NDArray[np.int64]:
    """Returns all places, fitting candidates first; the others by the memory that they need."""
    wide = [np.asarray(getattr(priced.layout, axis)) > 1 for axis in AXES]
    extra = np.sum([each for axis, each in zip(AXES, wide, strict=True) if axis in _EXTRA], axis=0)
    seconds = weigh(priced)
    is_near = priced.fits & (seconds <= (1 + EQUAL_WITHIN) * seconds[priced.fits].min(initial=np.inf))
    missing = np.maximum(priced.memory_bytes - (1 - ROOM) * priced.capacity_bytes, 0)
    key = np.where(priced.fits, seconds, priced.memory_bytes)
    states = -np.asarray(priced.layout.optimizer_bytes) * np.ones(key.shape)
    handicaps, offloads = np.round(seconds / priced.total_s, 6), priced.host_bytes > 0
    rules = (states, offloads, missing, np.sum(wide, axis=0), extra, handicaps, missing > 0)
    preferred = [np.where(is_near, each, 0) for each in rules]
    micro = np.broadcast_to(priced.layout.micro_batch_size, key.shape)  # of equal ones, the smaller
    return np.lexsort((micro, key, *preferred, ~is_near, ~priced.fits))


_EXTRA: Final = ("pp", "cp", "tp")
"""Axes that people use only where a mesh without them is slower."""


def _explain(priced: Priced, place: int, winner: int | None, ordered: Mapping[int, float]) -> tuple[str, str]:
    """Returns the reason and a sentence: for a candidate that does not fit its memory, else the part that is longest
    beyond the winner's."""
    if not priced.fits[place]:
        needs = f"needs {priced.memory_bytes[place] / 2**30:.1f} GiB of a device's {priced.capacity_bytes / 2**30:.1f}"
        return "memory", f"{needs} at least, with each micro-batch and remat that was looked at"
    total = ordered.get(place, float(priced.total_s[place]))
    if winner is None or place == winner:
        return "order", f"takes {total:.3g} s a step"
    best = ordered.get(winner, float(priced.total_s[winner]))
    unusual = [words for words, each in find_handicaps(priced).items() if each[place]]
    if unusual and total < best * (1 + EQUAL_WITHIN):
        said = f"{abs(total / best - 1):.1%} {'less' if total < best else 'more'} than the best, by {unusual[0]}"
        return "unusual", f"takes {total:.3g} s a step, {said}, which no run tests: measure it"
    if total <= (1 + EQUAL_WITHIN) * best:
        same = f"as long as the best within the planner's error of {EQUAL_WITHIN:.0%}"
        return "equal", f"takes {total:.3g} s a step, {same}"
    more = {part: float(priced.parts[part][place] - priced.parts[part][winner]) for part in PARTS}
    part = max(more, key=lambda name: more[name])
    wire = priced.name_wire(part, place)
    longer = f"{total / best - 1:.1%} more than the best"
    if more[part] <= 0:
        return "order", f"takes {total:.3g} s a step, {longer}"
    words = _PARTS.get(part, f"communication of {part} over {wire}")
    most = f"most of that is {words}, {more[part]:.3g} s more"
    return "compute" if part == "remat" else wire, f"takes {total:.3g} s a step, {longer}; {most}"


_PARTS: Final = {"bubble": "the pipeline's bubble", "compute": "compute", "remat": "what is computed again"}
"""Parts of a step in words; the others are the communication of an axis."""

SPARE: Final = 8
"""The maximum number of meshes beyond the reported ones whose devices are ordered."""

SPARE_DEVICES_MOST: Final = 4096
"""With more devices an order takes a second, and no further mesh is ordered."""

LEFT_MOST: Final = 6
"""The maximum number of reported sizes that do not divide the model."""


def price_plan(plan: Plan, question: Question) -> Plan:
    """Returns a plan for a given mesh, with its cost; warns where it does not fit.

    Where training does not give gradient accumulation and remat, the search chooses them for this mesh.
    """
    layout = list_schedules(plan.mesh_shape, question)
    priced = question.price(layout, read_order(plan, question.hardware))
    costs = build_costs(question, priced, choose_schedule(priced), plan.mesh_shape)
    memory = costs["memory"]
    costs["warnings"] = (*plan.warnings, *_list_basis_notices(question), *_list_notices(question, memory))
    if not memory.fits:
        message = f"the step needs about {memory.per_device_bytes / 2**30:.1f} GiB of a device's "
        message += f"{(memory.capacity_bytes or 0) / 2**30:.1f}"
        most = question.hardware.host_capacity_bytes / 2**30
        message += f", and {memory.host_bytes / 2**30:.1f} of the {most:.1f} on its host" if memory.host_bytes else ""
        best = price_best(question, bounds := bound_schedule(question.training))
        fits = best is not None and best.seconds < math.inf
        hint = f"{write_mesh(best.mesh_shape)} fits" if best and fits else build_nothing_fits(question, bounds).hint
        costs["warnings"] += (Notice(code="memory_does_not_fit", message=message, hint=hint),)
    return plan.model_copy(update=costs)


def search_plans(request: SearchRequest, question: Question, lay_out: Callable[[str], Plan]) -> Plans:
    """Returns the best meshes for a model, each with its device order, and why other families are not among them. Of
    a search with MaxText's export those that MaxText can run, where there are any.

    Args:
        lay_out: makes the plan of one mesh on the request's devices.

    Raises:
        PlanInfeasibleError: no mesh cuts model, batch and devices into equal parts.
    """
    bounds = read_bounds(request)
    space = question.list_space(bounds)
    if not space.size:
        raise _refuse(question, bounds, space)
    if "maxtext" in request.exports and np.any(runs := find_runnable(question.model, space.layout)):
        space = replace(space, layout=space.layout.take(runs))
    priced = question.price(space.layout)
    leaders = list_leaders(priced)
    ordered = _order_best(question, priced, leaders[priced.fits[leaders]], request.top, lay_out)
    best = dict(list(ordered.items())[: request.top])
    plans = list(best.values())
    rejected = list_rejected(priced, leaders, list(best), {place: _read_total(made) for place, made in ordered.items()})
    own = _read_best(priced, int(leaders[0]))  # by sizes alone, as others that it is compared with
    better = (*_list_fewer(request, question, bounds, own), *_list_batch_notices(question, bounds, own.seconds))
    if plans:
        untested = _describe_untested(priced, _read_total(plans[0]))
        told = [Notice(code="faster_untested", message=untested, hint="measure both first")] if untested else []
        warnings = (*_list_basis_notices(question), *told, *better)
    else:
        warnings = (build_nothing_fits(question, bounds), *better)
    left = sorted(space.left, key=lambda each: (each.size, AXES.index(each.axis)))[:LEFT_MOST]  # the smallest first
    never = (Rejected(mesh_shape={each.axis: each.size}, reason="divisibility", message=each.rule) for each in left)
    return Plans(plans=tuple(plans), rejected=(*rejected, *never), warnings=warnings)


def _order_best(
    question: Question, priced: Priced, leaders: NDArray[np.int64], top: int, lay_out: Callable[[str], Plan]
) -> dict[int, Plan]:
    """Returns the best meshes and some more in the order of their steps' times, as the order of their devices has them.

    Prices by sizes alone are too low where axes do not fill hosts or slices, and never much too high. So further meshes
    are ordered while, by their sizes, they could be among the best, up to a limit. Equal ones keep the order of
    `leaders`.
    """
    made: dict[int, Plan] = {}
    spare = SPARE if question.hardware.devices <= SPARE_DEVICES_MOST else 0
    for place in map(int, leaders[: top + spare]):
        if len(made) >= top and priced.total_s[place] >= max(map(_read_total, made.values())):
            break
        made[place] = _lay_out(question, priced.layout, place, lay_out)
    handicaps = weigh(priced) / priced.total_s
    seconds = {place: _read_total(plan) * float(handicaps[place]) for place, plan in made.items()}
    fastest = min(seconds.values(), default=0.0)
    return dict(sorted(made.items(), key=lambda each: max(0.0, seconds[each[0]] - (1 + EQUAL_WITHIN) * fastest)))


def _lay_out(question: Question, layout: Layout, place: int, lay_out: Callable[[str], Plan]) -> Plan:
    """Returns the plan of a candidate's mesh with its cost on the order of its devices, by its best schedule there."""
    shape = layout.take(place).mesh_shape
    made = lay_out(",".join(f"{axis}:{size}" for axis, size in (shape or {"dp": 1}).items()))
    same = np.all([getattr(layout, axis) == shape.get(axis, 1) for axis in AXES], axis=0)
    ordered = question.price(layout.take(same), read_order(made, question.hardware))
    chosen = choose_schedule(ordered)
    costs = build_costs(question, ordered, chosen, made.mesh_shape)
    kept = (each for each in made.warnings if each.code != "axis_crosses")  # other orders and sizes were priced too
    costs["warnings"] = (*kept, *_list_notices(question, costs["memory"]))
    return made.model_copy(update=costs)


def read_bounds(request: SearchRequest) -> Bounds:
    """Returns the choices of a search: given training fields are fixed, and missing ones are free.

    Raises:
        InvalidRequestError: moments of another optimizer than AdamW, or remat is given twice.
    """
    training, refuse = request.training, InvalidRequestError.of
    moments = {"moment_dtypes": request.moment_dtypes, "training.first_moment_dtype": training.first_moment_dtype}
    moments["training.second_moment_dtype"] = training.second_moment_dtype
    given = [name for name, value in moments.items() if value]
    if given and training.optimizer != "adamw":
        message = f"{given[0]} is of AdamW's moments, and the optimizer is {training.optimizer}"
        raise refuse(given[0], message, f'leave out {given[0]}, or use "optimizer": "adamw"')
    if request.remat and "remat" in training.model_fields_set:
        raise refuse("remat", "remat, a choice, stands beside training.remat", "leave out one of them")
    free = bound_schedule(request.training)
    remats = tuple(dict.fromkeys(request.remat)) or free.remats
    states = tuple(2 * DTYPE_BYTES[dtype] for dtype in dict.fromkeys(request.moment_dtypes))
    axes, at_most = ({str(axis): size for axis, size in sizes.items()} for sizes in (request.axes, request.at_most))
    return Bounds(axes, at_most, remats, free.gradient_accumulation_steps, states)


def bound_schedule(training: TrainingSpec) -> Bounds:
    """Returns any mesh, with the remat and the passes that training gives."""
    given = training.model_fields_set
    passes = training.gradient_accumulation_steps if "gradient_accumulation_steps" in given else None
    return Bounds(remats=(training.remat,) if "remat" in given else (), gradient_accumulation_steps=passes)


def read_order(plan: Plan, hardware: Hardware) -> Spans | None:
    """Returns the links of a plan's axes in its own order; None where some hosts have fewer of the devices than others,
    so that groups of an axis differ."""
    is_even = math.prod(axis.dcn_size for axis in plan.axes) * hardware.domain >= hardware.devices
    return hardware.read(plan) if is_even else None


def _read_total(plan: Plan) -> float:
    return plan.step_time.total_s if plan.step_time else math.inf


def _list_basis_notices(question: Question) -> Iterator[Notice]:
    """Yields the warnings that prices do not cover the request, or cover only a part of it, or are of a guess."""
    hardware, chip = question.hardware, question.hardware.chip
    if hardware.is_network_assumed and not hardware.network and hardware.devices > hardware.domain:
        message = f"{chip.name} may have any network between hosts or slices: one of 100 Gbit/s each is assumed, "
        message += f"{(chip.scaleout_bytes_per_s or 0) / chip.jax_devices_per_chip / 1e9:.3g} GB/s a device"
        yield Notice(code="network_assumed", message=message, hint="measure it: meshwright preflight")
    dtype, lacks = question.training.compute_dtype, []
    if chip.dtype != "bfloat16":
        lacks = ["matrix units for bfloat16"] * (dtype == "bfloat16")
        lacks += ["flash attention in cuDNN"] * (question.training.attention == "flash")
    if lacks:
        message = f"{chip.name} has no {' and no '.join(lacks)}: the step is priced in {chip.dtype}, with attention xla"
        yield Notice(code="no_bfloat16", message=message, hint="measure your own step")
    if dtype == "float32" or (dtype == "float16" and chip.platform == "tpu"):
        message = f"compute_dtype is {dtype}; matmuls are priced in {'TF32' if chip.platform == 'gpu' else 'bfloat16'}"
        yield Notice(code="priced_in_16_bits", message=message, hint="compute in bfloat16, or verify by a run")


def list_smooth(devices: int, domain: int) -> list[int]:
    """Returns lower numbers of devices, of whole hosts, that have no factor above 5: many sizes divide them."""
    host = math.gcd(domain, 8)
    return [count for count in range(devices // host * host - host, 0, -host) if 30**17 % count == 0]


def _list_fewer(request: SearchRequest, question: Question, bounds: Bounds, own: Best) -> tuple[Notice, ...]:
    """Returns the warning that fewer GPUs, a number with small factors, take less time: more sizes divide."""
    hardware = question.hardware
    count, power = hardware.devices, 1 << (hardware.devices.bit_length() - 1)
    if hardware.chip.platform != "gpu" or power == count:
        return ()
    tries = (replace(hardware, devices=each) for each in {power, *list_smooth(count, hardware.domain)[:2]})
    found = ((each.devices, price_best(replace(question, hardware=each), bounds)) for each in tries)
    better = ((best, fewer) for fewer, best in found if best and best.weighed_s < own.weighed_s)
    faster = [(best.seconds, fewer, best.mesh_shape) for best, fewer in better if best.seconds < own.seconds]
    if not faster:
        return ()
    least, fewer, shape = min(faster)
    on, hint = "", f'search on {fewer} of them, devices {{"count": {fewer}}}'
    for target in request.targets:
        spec = read_target(target)
        whole, rest = divmod(fewer, math.prod(spec.shape))
        on, hint = f" of {target}", hint if rest else f"search on {replace(spec, granules=whole)} in its place"
    message = f"{fewer} of the {count} devices{on} take about {least:.3g} s a step, on {write_mesh(shape)}"
    return (Notice(code="fewer_is_faster", message=message, hint=hint),)


def _list_batch_notices(question: Question, bounds: Bounds, seconds: float) -> tuple[Notice, ...]:
    """Returns the warning that a batch near the requested one, a multiple of the devices or of a part of them, is
    faster."""
    devices, batch = question.hardware.devices, question.training.global_batch_size
    parts = [devices // part for part in (1, 2, 4, 8) if devices % part == 0 and batch % (devices // part)]
    rounded = [max(round(batch / part), 1) * part for part in parts]
    near = next((size for size in rounded if size <= 1.5 * batch), rounded[0] if rounded else batch)
    is_near = batch != near and (near <= 1.5 * batch or seconds == math.inf)
    best = price_best(question.with_batch(near), bounds) if is_near else None
    if best is None or not near / batch * seconds > (1 + EQUAL_WITHIN) * best.seconds < math.inf:
        return ()
    gain = "fits" if seconds == math.inf else f"has {near / batch * seconds / best.seconds:.2f} times the tokens/s"
    message = f"a global_batch_size of {batch} does not divide well over {devices} devices; "
    message += f"{near} {gain}, on {write_mesh(best.mesh_shape)}"
    return (Notice(code="better_batch", message=message, hint=f"use a global_batch_size of {near}"),)


def _list_notices(question: Question, memory: PlanMemory) -> tuple[Notice, ...]:
    """Returns the warnings of measured figures that are impossible for such a chip, and of a step that almost fills a
    device, or does not fit in the part of a GPU's memory that JAX takes by default."""
    hardware = question.hardware
    told = tuple(factor.refuse() for factor in hardware.factors if not factor.is_taken)
    share = memory.per_device_bytes / (memory.capacity_bytes or math.inf)
    if memory.fits and share > 1 - ROOM:
        message = f"the step takes {share:.1%} of a device's memory by an estimate whose error is larger than the rest"
        hint = "compile it, or use a smaller micro-batch or another remat"
        told += (Notice(code="memory_is_tight", message=message, hint=hint),)
    default = find_capacity(hardware.chip, hardware.memory_bytes, GPU_FRACTION)
    if hardware.chip.platform != "gpu" or not memory.fits or memory.per_device_bytes <= default:
        return told
    message = f"the step needs {memory.per_device_bytes / 2**30:.1f} GiB of a device; JAX's default, {GPU_FRACTION} of "
    message += f"its memory, is {default / 2**30:.1f} GiB"
    hint = f"start the job alone on its GPUs, with the plan's environment, which gives it {question.memory_fraction:g}"
    return (*told, Notice(code="above_default_memory", message=message, hint=hint))


def build_nothing_fits(question: Question, bounds: Bounds | None = None) -> Notice:
    """Returns the warning that no mesh of the devices fits, with the least that one needs, and changes that fit."""
    bounds, hardware, training = bounds or Bounds(), question.hardware, question.training
    count, space = hardware.devices, question.list_space(bounds)
    free = replace(Bounds(), optimizer_bytes=bounds.optimizer_bytes)
    given = [name for name, value in vars(free).items() if getattr(bounds, name) != value]
    freed = [name for name in given if _is_feasible(question, replace(bounds, **{name: getattr(free, name)}))]
    helps = " or ".join(freed) or (" and ".join(given) if given and _is_feasible(question, free) else "")
    chosen = " that may be chosen" * bool(helps)
    message = f"no mesh of {count} device{'s' * (count > 1)}{chosen} holds this training step"
    if space.size:
        priced = question.price(space.layout)
        place = int(priced.memory_bytes.argmin())
        state = sum(priced.memory[part][place] for part in ("parameters", "gradients", "optimizer"))
        message += f": at least {priced.memory_bytes[place] / 2**30:.1f} GiB of a device's "
        message += f"{priced.capacity_bytes / 2**30:.1f}; weights, gradients and moments are {state / 2**30:.1f}"
    if helps:
        return Notice(code="nothing_fits", message=message, hint=f"leave {helps} free".replace("remats", "remat"))
    batches = [{"global_batch_size": size} for size in (2 * count, count) if size < training.global_batch_size]
    moments = dict.fromkeys(("first_moment_dtype", "second_moment_dtype"), "bfloat16")
    lengths = [{"seq_len": training.seq_len >> halvings} for halvings in range(1, 8) if training.seq_len >> halvings]
    changes: tuple[list[dict[str, Any]], ...] = (batches, [moments])
    changes += ([{"weight_dtype": "bfloat16"}], [{"optimizer": "sgd"}], lengths)

    def try_change(change: Mapping[str, Any]) -> bool:
        changed = replace(question, training=training.model_copy(update=change))
        return _is_feasible(changed, replace(bounds, optimizer_bytes=()))

    many = (count << doublings for doublings in range(1, 7) if count << doublings <= DEVICES_MOST)
    enough = (
        each for each in many if _is_feasible(replace(question, hardware=replace(hardware, devices=each)), bounds)
    )
    works = [f"{each} such devices" for each in itertools.islice(enough, 1)]
    for change in filter(None, (next(filter(try_change, tries), None) for tries in changes)):
        works.append(" and ".join(f"{name} {value}" for name, value in change.items()))
    hint = f"it fits with {', or with '.join(works)}" if works else "use more devices, or a smaller model"
    return Notice(code="nothing_fits", message=message, hint=hint)


DEVICES_MOST: Final = 16_384
"""The maximum number of devices that is tried where a step fits nowhere."""


def _refuse(question: Question, bounds: Bounds, space: Space) -> PlanInfeasibleError:
    devices, batch = question.hardware.devices, question.training.global_batch_size
    if wrong := _find_wrong_axes(devices, bounds, space):
        detail = f"no mesh of {devices} devices has the axes that are given: {wrong}"
        return PlanInfeasibleError.of("axes", detail, _find_axis(question, bounds), wrong)
    if over := [axis for axis, size in bounds.axes.items() if size > bounds.at_most.get(axis, size)]:
        detail = f"{over[0]}:{bounds.axes[over[0]]} is given, and at_most {over[0]}:{bounds.at_most[over[0]]}"
        return PlanInfeasibleError.of("at_most", detail, f"leave {over[0]} out of axes or of at_most")
    steps = bounds.gradient_accumulation_steps or 1
    first = f"of {devices} devices at most {math.gcd(devices, batch // steps)} can divide it"
    first = f"gradient_accumulation_steps {steps} does not divide it" if batch % steps else first
    rules = "; ".join(dict.fromkeys((first, *(left.rule for left in space.left[:LEFT_MOST]))))
    detail = f"no mesh of {devices} devices that may be chosen cuts this model and a global_batch_size of {batch}"
    detail += f" ({rules})"
    parts = [steps * size for size in list_divisors(devices)]
    least = {-(-batch // each) * each for each in parts}  # that accumulation and data-parallel parts divide
    legal = [size for size in sorted(least) if question.with_batch(size).list_space(bounds).size]
    near = dict.fromkeys((*legal[-1:], *choose_near(legal, batch)))  # first a multiple of all devices
    batches = [size for size in near if _is_feasible(question.with_batch(size), bounds)][:3]
    fewer = 1 << max((devices - 1).bit_length() - 1, 0)
    hint = "leave more axes free" if bounds.axes or bounds.at_most else "search on more devices, or with more memory"
    if bounds.gradient_accumulation_steps:
        hint = "leave gradient_accumulation_steps out"
    hints = [f"use a global_batch_size of {write_values(batches)}"] if batches else []
    if not hints or batch % fewer == 0:
        is_less = _is_feasible(replace(question, hardware=replace(question.hardware, devices=fewer)), bounds)
        hints += [f'search on {fewer} of them, devices {{"count": {fewer}}}'] if is_less else []
    hint = "; or ".join(hints) or hint
    field = "at_most" if bounds.at_most and not batches else "training.global_batch_size"
    return PlanInfeasibleError.of(field, detail, hint)


def _find_axis(question: Question, bounds: Bounds) -> str:
    """Returns sizes that one of the given axes may have beside the others, else those to leave free."""
    for axis, size in bounds.axes.items():
        divisors = list_divisors(question.hardware.devices)
        tries = {each: replace(bounds, axes={**bounds.axes, axis: each}) for each in divisors}
        if sizes := [each for each, tried in tries.items() if question.list_space(tried).size]:
            return f"{axis} may be {write_values(choose_near(sizes, size))}; or leave it free"
    return f"leave {' or '.join(bounds.axes)} free"


def _find_wrong_axes(devices: int, bounds: Bounds, space: Space) -> str:
    """Returns why no mesh has the axes that are given; empty: they could be on some mesh."""
    rules = (left.rule for left in space.left if bounds.axes.get(left.axis) == left.size)
    if rule := next(rules, ""):
        return rule
    product = math.prod(bounds.axes.values())
    said = " × ".join(f"{axis}:{bounds.axes[axis]}" for axis in AXES if axis in bounds.axes)
    if devices % product:
        return f"{said} does not divide {devices} devices"
    is_whole = len(bounds.axes) == len(AXES) and product != devices
    return f"{said} are {product} devices of {devices}, and no axis is free" if is_whole else ""


def audit_plan(plan: Plan, question: Question) -> AuditAlternative | None:
    """Returns the fastest fitting mesh of a plan's devices, or the plan's own where no mesh is faster beyond the error.

    Args:
        plan: for a given mesh, with its cost.
        question: the question that it was priced for.
    """
    assert plan.step_time is not None
    assert plan.memory is not None
    assert plan.schedule is not None
    own, space = question.price(read_layout(plan.mesh_shape, question.training)), question.list_space(Bounds())
    priced = question.price(space.layout) if space.size else own
    weighed_s = plan.step_time.total_s * float(weigh(own)[0] / own.total_s[0])
    leaders = list_leaders(priced)[:1] if space.size else ()
    best = next((int(place) for place in leaders if priced.fits[place]), None)
    shape, schedule, own_s = plan.mesh_shape, plan.schedule, plan.step_time.total_s
    fits, total_s = plan.memory.fits is not False, own_s
    message = f"this is the best: no other mesh that fits saves {EQUAL_WITHIN:.0%} of the step"
    if untested := _describe_untested(priced, own_s):
        message = f"this is the best without untested axes; {untested}: measure it"
    if best is None and not fits:
        return None
    if best is not None and not (fits and weigh(priced)[best] > weighed_s * (1 - EQUAL_WITHIN)):
        total_s, layout = float(priced.total_s[best]), priced.layout.take(best)
        shape, schedule, ratio = _name_axes(layout, plan), build_schedule(question, layout), total_s / own_s
        than = f"{abs(ratio - 1):.0%} {'less' if ratio < 1 else 'more'}" if round(ratio, 2) != 1 else "the same"
        count = schedule.gradient_accumulation_steps
        batch = f"{count} micro-batch{'es' * (count > 1)} of {schedule.micro_batch_size}"
        more = "" if fits else "; the mesh that was given does not fit"
        message = f"{write_mesh(shape)}, {batch}, remat {schedule.remat}: {total_s:.3g} s a step, {than}{more}"
    return AuditAlternative(mesh_shape=shape, schedule=schedule, step_s=total_s, message=message)


def _describe_untested(priced: Priced, own_s: float) -> str:
    """Returns the fastest fitting mesh in words, if it is clearly faster than a step and has an untested axis."""
    seconds = np.where(priced.fits, priced.total_s, math.inf)
    place, saved = int(seconds.argmin()), 1 - float(seconds.min()) / own_s
    axis = next((words for words, share in find_handicaps(priced).items() if share[place]), "")
    mesh = write_mesh(priced.layout.take(place).mesh_shape)
    return f"{mesh} may save {saved:.0%}, by {axis}, which no run tests" if axis and saved > EQUAL_WITHIN else ""


def _name_axes(layout: Layout, plan: Plan) -> dict[str, int]:
    """Returns the shape of a candidate, the outermost axis first, by the plan's own names where it has them."""
    names = find_names(name for name, size in plan.mesh_shape.items() if size > 1)
    return {names.get(axis, axis): size for axis, size in (layout.mesh_shape or {"dp": 1}).items()}
