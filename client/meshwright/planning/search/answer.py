"""A priced candidate as a plan tells it: memory, step time, schedule, MFU, tokens/s, largest batch.

Rule: whatever is told of a plan is told here, for meshes that a search chose and for meshes that a user gave, so that
both read alike. Knows no order of devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from meshwright.planning.cost.layout import REMATS, Layout
from meshwright.planning.cost.memory import Moments, read_moments
from meshwright.planning.cost.spans import Spans
from meshwright.planning.parallelism import MeshAxes, name_axis
from meshwright.planning.search.candidates import AXES, DTYPES, Bounds, Hardware, Priced, Space, list_space, price
from meshwright.wire.cost import PlanMemory, PlanSchedule, PlanStepTime
from meshwright.wire.model import ModelSpec, TrainingSpec

LARGEST_LOG2: Final = 20
"""A micro-batch of 2^20 sequences is the largest that is looked at."""


@dataclass(frozen=True)
class Question:
    """What is priced.

    Attributes:
        model, training: the step.
        hardware: what it runs on.
        memory_fraction: part of a GPU's memory that the job may take.
        price_per_device_hour: None: not given.
        moments: states of the optimizer to choose from; empty: that of `training`.
    """

    model: ModelSpec
    training: TrainingSpec
    hardware: Hardware
    memory_fraction: float
    price_per_device_hour: float | None = None
    moments: tuple[Moments, ...] = ()

    def price(self, layout: Layout, spans: Spans | None = None) -> Priced:
        """Returns what candidates cost; `spans` are what axes run over, where an order of devices says it."""
        return price(
            layout,
            self.model,
            self.training,
            self.hardware,
            self.memory_fraction,
            moments=self.moments,
            spans=spans,
        )

    def list_space(self, bounds: Bounds) -> Space:
        """Returns all candidates within bounds."""
        return list_space(self.hardware.devices, self.model, self.training, bounds)

    def with_batch(self, global_batch: int) -> Question:
        """Returns the question for another batch."""
        return replace(self, training=self.training.model_copy(update={"global_batch": global_batch}))


def read_layout(mesh_shape: Mapping[str, int], training: TrainingSpec) -> Layout:
    """Returns a mesh and its training as a layout of one candidate; names that say nothing count as data."""
    sizes = dict.fromkeys(AXES, 1)
    for name, size in mesh_shape.items():
        sizes[name_axis(name)] *= size
    passes = training.gradient_accumulation
    parts = sizes["dp"] * sizes["fsdp"] * sizes["ep"]
    values = {**sizes, "micro_batch": training.global_batch // parts // passes, "passes": passes}
    arrays = {name: np.asarray([value], dtype=np.int64) for name, value in values.items()}
    return Layout(**arrays, remat=np.asarray([REMATS.index(training.remat)], dtype=np.int64))


def tell(question: Question, priced: Priced, place: int, mesh_shape: Mapping[str, int]) -> dict[str, Any]:
    """Returns the fields of a plan that say what a candidate costs; `mesh_shape` has the names of its axes."""
    layout = priced.layout.take(place)
    total_s = float(priced.total_s[place])
    sequences = question.training.global_batch
    tokens = sequences * question.training.sequence_length
    told: dict[str, Any] = {
        "memory": _tell_memory(priced, place),
        "step_time": _tell_step_time(priced, place, mesh_shape),
        "schedule": tell_schedule(question, layout),
        "tokens_per_s": tokens / total_s,
        "mfu_ratio": priced.flops_per_sequence * sequences / total_s / question.hardware.devices / priced.flops_per_s,
        "largest_batch": find_largest_batch(question, layout),
        "measured": question.hardware.replaced.list_figures(DTYPES[question.training.compute_dtype]),
    }
    if question.price_per_device_hour is not None:
        price = question.price_per_device_hour * question.hardware.devices / 3600 * total_s
        told["price_per_million_tokens"] = price / tokens * 1e6
    return told


def _tell_memory(priced: Priced, place: int) -> PlanMemory:
    parts = {name: round(float(sizes[place])) for name, sizes in priced.memory.items()}
    return PlanMemory(
        per_device_bytes=sum(parts.values()),
        capacity_bytes=int(priced.capacity_bytes),
        fits=bool(priced.fits[place]),
        parts={name: size for name, size in parts.items() if size},
    )


def _tell_step_time(priced: Priced, place: int, mesh_shape: Mapping[str, int]) -> PlanStepTime:
    parts = {name: float(seconds[place]) for name, seconds in priced.parts.items()}
    total_s = sum(parts.values())
    low, high = priced.interval(total_s)
    return PlanStepTime(
        total_s=total_s,
        low_s=low,
        high_s=high,
        compute_s=parts["compute"],
        remat_s=parts["remat"],
        communication_s=_name_parts(parts, mesh_shape),
        bubble_s=parts["bubble"],
        optimizer_s=parts["optimizer"],
        other_s=parts["other"],
        basis=priced.basis,
    )


def _name_parts(parts: Mapping[str, float], mesh_shape: Mapping[str, int]) -> dict[str, float]:
    """Returns seconds of communication by the axes of a mesh.

    Where a mesh has two axes of one role the outer one stands for both. Where it has no data axis, gradients that are
    summed over expert or context axes count there.
    """
    names: dict[str, str] = {}
    for name in MeshAxes.of(mesh_shape).sizes:
        names.setdefault(name_axis(name), name)
    found: dict[str, float] = {}
    for axis in AXES:
        name = next((names[each] for each in (axis, *_SUMMED_OVER) if each in names), axis)
        if parts[axis] > 0:
            found[name] = found.get(name, 0.0) + parts[axis]
    return found


_SUMMED_OVER: Final = ("ep", "cp", "fsdp")


def tell_schedule(question: Question, layout: Layout) -> PlanSchedule:
    """Returns how the batch goes through a candidate."""
    training = question.training
    moments = question.moments[int(layout.moments)] if question.moments else read_moments(training)
    first, second = (*moments, None, None)[:2]
    return PlanSchedule(
        micro_batch=int(layout.micro_batch),
        passes=int(layout.passes),
        remat=REMATS[int(layout.remat)],
        global_batch=training.global_batch,
        sequence_length=training.sequence_length,
        first_moment_dtype=first,
        second_moment_dtype=second,
    )


def find_largest_batch(question: Question, layout: Layout, passes: int = 1) -> int | None:
    """Returns the most sequences of a step that fit on a candidate's mesh in so many passes; None: not one a part."""
    low, width = 0, 2**LARGEST_LOG2
    while width > 1:
        width //= _TRIED_AT_ONCE
        tried = low + width * np.arange(1, _TRIED_AT_ONCE + 1, dtype=np.int64)
        fitting = tried[_fits(question, layout, tried, passes)]
        low = int(fitting.max()) if len(fitting) else low
    return low * int(layout.data_parts) * passes or None


_TRIED_AT_ONCE: Final = 16
"""Micro-batches: 2^20 is narrowed down to 1 in five rounds."""

_HELD: Final = (*AXES, "interleave", "remat", "moments")
"""Fields of a candidate that its largest batch keeps."""


def _fits(question: Question, layout: Layout, micro: Any, passes: int) -> Any:
    fields = {name: np.full(len(micro), int(getattr(layout, name))) for name in _HELD}
    return question.price(Layout(**fields, micro_batch=micro, passes=np.full(len(micro), passes))).fits
