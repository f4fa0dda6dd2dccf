"""The batch of a step on a mesh: the least whose throughput is near the best that fits.

Batches of unit × 1, 2, 4, … are priced; unit: data-parallel parts × accumulation steps; and × stages, whose circular
pipeline needs multiples of them. Where training does not give accumulation and remat, the best that fit each batch are
used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from meshwright.planning.cost.spans import REMATS, Layout, Spans
from meshwright.planning.mesh_plan import leave_out_devices
from meshwright.planning.parallelism import write_mesh
from meshwright.planning.search.candidates import Question
from meshwright.planning.search.search import (
    bound_schedule,
    build_costs,
    choose_schedule,
    find_largest_batch,
    list_schedules,
    price_best,
    read_layout,
    read_order,
)
from meshwright.wire.batch_size import EstimatedBatch, PricedBatch
from meshwright.wire.mesh import Plan, PlanMemory, PlanStepTime

NEAR_BEST: Final = 0.95
"""Part of the best tokens a second that the recommended batch reaches."""

DOUBLINGS: Final = 7
"""Batches that are priced where nothing else bounds them: a unit × 1 to 64."""

TOKENS_LEAST: Final = 2**20
"""Tokens of a step of pretraining. Source: GPT-3, arXiv:2005.14165, table 2.1: 0.5 to 3.2 million; Llama 3 4 to 16."""


def estimate_batch(question: Question, plan: Plan) -> EstimatedBatch:
    """Returns the recommended batch of a step on a plan's mesh, with the cost of other batches.

    Args:
        question: its training has as `global_batch_size` the greatest to recommend: a multiple of data-parallel parts ×
            passes.
        plan: of unknown names of axes each counts as data.
    """
    mesh_shape, spans = plan.mesh_shape, read_order(plan, question.hardware)
    layout = read_layout(mesh_shape, question.training)
    parts, passes = int(layout.data_parts), int(layout.gradient_accumulation_steps)
    largest, unit = _find_largest(question, layout), parts * passes
    is_free = largest > 0 and "gradient_accumulation_steps" not in question.training.model_fields_set
    most = unit << (DOUBLINGS - 1) if is_free else largest
    most, units = min(most, question.training.global_batch_size), (unit, unit * int(layout.pp))
    batches = tuple(sorted({batch for each in units for batch in _list_batches(each, most)}))
    costs = {batch: _price(question, batch, mesh_shape, spans) for batch in batches or (unit,)}
    batches = tuple(batch for batch in batches if costs[batch]["memory"].fits)  # a pipeline keeps all its micro-batches
    chosen = choose_near_best({batch: costs[batch]["tokens_per_s"] for batch in batches})
    told = costs[chosen or unit]
    if chosen and is_free and int(layout.pp) > 1:  # whose micro-batches are all in its loop
        largest = max(told["largest_batch"] or 0, *batches)
    step: PlanStepTime = told["step_time"]
    limit, share = find_largest_part(step)
    shape = write_mesh(mesh_shape)
    memory: PlanMemory = told["memory"]
    message = f"nothing fits: one sequence for each of {parts} data-parallel part{'s' * (parts > 1)} needs about "
    message += f"{memory.per_device_bytes / 2**30:.1f} GiB of a device's {(memory.capacity_bytes or 0) / 2**30:.1f}"
    if chosen:
        message = f"{chosen} sequences a step on {shape}, {chosen // parts} for each of {parts} data-parallel part"
        message += f"{'s' * (parts > 1)}: the least with {NEAR_BEST:.0%} of the most tokens/s; {limit} takes "
        where = f"in {passes} passes" if passes > 1 else "in one pass"
        fits = f"at least {largest} fit" if is_free and int(layout.pp) > 1 else f"at most {largest} fit {where}"
        message += f"{share:.0%} of the step; {fits}"
    fields = dict.fromkeys(told) | (told if chosen else {"memory": memory, "measured": told["measured"]})
    fields["largest_batch"] = largest or None
    return EstimatedBatch(
        plan=leave_out_devices(plan).model_copy(update=fields),
        recommended=chosen,
        batches=tuple(_build_row(costs[batch]) for batch in batches),
        message=message,
    )


def find_first_batch(question: Question, devices: int) -> int:
    """Returns the batch to search a mesh for, where the request has none: the least near the best, of the devices × 1,
    2, 4, …, and ÷ 2, 4, 8 where a step still has `TOKENS_LEAST`."""
    found, least = {}, min(devices, -(-TOKENS_LEAST // question.training.seq_len))
    for batch in (size for doubling in range(-3, DOUBLINGS) if (size := int(devices * 2.0**doubling)) >= least):
        best = price_best(question.with_batch(batch), bound_schedule(question.training))
        if best is not None:
            found[batch] = batch / best.seconds
    return choose_near_best(found) or devices


def choose_near_best(rates: Mapping[int, float]) -> int | None:
    """Returns the least batch with a rate near the best; None: there is none."""
    return next((batch for batch in sorted(rates) if rates[batch] >= NEAR_BEST * max(rates.values())), None)


def find_largest_part(step: PlanStepTime) -> tuple[str, float]:
    """Returns the largest part of a step, "compute", "remat", "bubble" or an axis, and its share."""
    parts = {"compute": step.compute_s, "remat": step.remat_s, "bubble": step.bubble_s, **step.communication_s}
    largest = max(parts, key=lambda name: parts[name])
    return largest, parts[largest] / step.total_s


def _find_largest(question: Question, layout: Layout) -> int:
    """Returns the largest number of sequences of a step that fits, with any allowed remat; 0: none fits."""
    remats = bound_schedule(question.training).remats or question.remats
    layouts = (replace(layout, remat=REMATS.index(remat)) for remat in remats)
    return max(find_largest_batch(question, each, int(layout.gradient_accumulation_steps)) or 0 for each in layouts)


def _list_batches(unit: int, most: int) -> Iterator[int]:
    """Yields unit × 1, 2, 4, … up to the most, and the most."""
    batch = unit
    while batch < most:
        yield batch
        batch *= 2
    if most >= unit:
        yield most // unit * unit


def _price(question: Question, batch: int, mesh_shape: Mapping[str, int], spans: Spans | None) -> dict[str, Any]:
    asked = question.with_batch(batch)
    priced = asked.price(list_schedules(mesh_shape, asked), spans)
    return build_costs(asked, priced, choose_schedule(priced), mesh_shape)


def _build_row(told: Mapping[str, Any]) -> PricedBatch:
    return PricedBatch(
        schedule=told["schedule"],
        tokens_per_s=told["tokens_per_s"],
        step_s=told["step_time"].total_s,
        memory_bytes=told["memory"].per_device_bytes,
        limit=find_largest_part(told["step_time"])[0],
    )
