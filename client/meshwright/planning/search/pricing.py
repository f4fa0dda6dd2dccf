"""Candidates priced: seconds by part, bytes, and whether they fit. One call for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.cost.capacity import find_capacity
from meshwright.planning.cost.gemm import Dtype
from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.memory import (
    Circumstances,
    MemoryParts,
    Moments,
    build_state,
    price_memory,
    read_keepings,
)
from meshwright.planning.cost.spans import Spans
from meshwright.planning.cost.step_time import DEFAULT, Execution, find_practice, interval, price_step
from meshwright.planning.cost.work import Work, build_work, find_repeated
from meshwright.planning.search.hardware import Hardware
from meshwright.wire.model import ComputeDtype, ModelSpec, TrainingSpec

PARTS: Final = ("compute", "remat", "tp", "cp", "ep", "fsdp", "dp", "pp", "bubble", "optimizer", "other")
"""Of a step's time; they add up to all of it."""

DTYPES: Final[Mapping[ComputeDtype, Dtype]] = {"float32": "bfloat16", "bfloat16": "bfloat16", "float16": "float16"}
"""How the curves call a compute dtype. XLA's matmuls of float32 are done in bfloat16 passes on TPUs, in TF32 on GPUs:
they are priced as 16 bits, which is too fast; plans warn of it."""

DTYPE_BYTES: Final[Mapping[ComputeDtype, float]] = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""Of one element of a compute dtype."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Priced:
    """Candidates with what they cost: arrays of one length.

    Attributes:
        parts: seconds of a step by part: each of `PARTS`.
        memory: bytes of the fullest device by part.
        capacity_bytes: that a job may use of a device.
        spans: what the axes run over.
        hardware: what it was priced on.
        flops_per_sequence: of the model, forward and backward.
        flops_per_s: peak of one device.
        basis: whose constants were taken.
    """

    layout: Layout
    parts: Mapping[str, Floats]
    memory: Mapping[str, Floats]
    capacity_bytes: int
    spans: Spans
    hardware: Hardware
    flops_per_sequence: float
    flops_per_s: float
    basis: str

    @cached_property
    def total_s(self) -> Floats:
        """Of a step."""
        return np.asarray(np.sum([self.parts[part] for part in PARTS], axis=0), dtype=np.float64)

    @cached_property
    def memory_bytes(self) -> Floats:
        """Of the fullest device."""
        return np.asarray(np.sum(list(self.memory.values()), axis=0), dtype=np.float64)

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        """Whether it is no more than there is."""
        return self.memory_bytes <= self.capacity_bytes

    def interval(self, total_s: float) -> tuple[float | None, float | None]:
        """Returns bounds between which four of five steps lie that are predicted to take so long; None: no run says."""
        return interval(total_s, DEFAULT, self.hardware.platform, self.hardware.chip.family)

    def name_wire(self, part: str, place: int) -> str:
        """Returns what an axis of a candidate talks over: "dcn", or what joins devices inside: "ici", "nvlink"."""
        span = self.spans.get(part)
        if span is None:
            return part
        outer = np.broadcast_to(np.asarray(span.outer.size), self.total_s.shape)[place]
        return "dcn" if outer > 1 else {"tpu": "ici", "gpu": "nvlink"}[self.hardware.platform]


def price(
    layout: Layout,
    model: ModelSpec,
    training: TrainingSpec,
    hardware: Hardware,
    memory_fraction: float,
    *,
    moments: Sequence[Moments] = (),
    spans: Spans | None = None,
) -> Priced:
    """Returns what candidates cost.

    Args:
        layout: the candidates: arrays of one length.
        model, training: the step.
        hardware: what it runs on.
        memory_fraction: part of a GPU's memory that the job may take.
        moments: states of the optimizer that candidates choose from; empty: that of `training`.
        spans: what the axes run over, where an order of devices says it; None: as sizes alone have it.
    """
    work = build_work(model, training.sequence_length)
    machine = hardware.build_machine(DTYPES[training.compute_dtype])
    spans = hardware.lay(layout) if spans is None else spans
    found = find_practice(DEFAULT, hardware.platform, hardware.chip.family)
    execution = build_execution(work, training)
    seconds = price_step(work, layout, machine, spans, found.practice, execution)
    shape = np.shape(layout.dp)
    parts = {
        "compute": seconds.compute_s,
        "remat": seconds.remat_s,
        **seconds.communication_s,
        "bubble": seconds.bubble_s,
        "optimizer": seconds.optimizer_s,
        "other": seconds.other_s,
    }
    keeping = read_keepings()[DEFAULT, hardware.platform]
    state = build_state(training, moments, layout.moments)
    memory = price_memory(work, layout, state, keeping, execution, read_circumstances(model, training))
    sizes = {part.name: getattr(memory, part.name) for part in fields(MemoryParts)}
    return Priced(
        layout=layout,
        parts={name: np.broadcast_to(np.asarray(parts[name], dtype=np.float64), shape) for name in PARTS},
        memory={name: np.broadcast_to(np.asarray(size, dtype=np.float64), shape) for name, size in sizes.items()},
        capacity_bytes=find_capacity(hardware.chip, hardware.memory_bytes, memory_fraction),
        spans=spans,
        hardware=hardware,
        flops_per_sequence=work.flops_per_token * training.sequence_length,
        flops_per_s=machine.flops_per_s,
        basis=hardware.replaced.tell_basis(found.basis, DTYPES[training.compute_dtype]),
    )


def read_circumstances(model: ModelSpec, training: TrainingSpec) -> Circumstances:
    """Returns what else our own step's memory depends on: learned positions are whole on each device."""
    learned = (model.max_position_embeddings or 0) * model.hidden_size if model.positions == "learned" else 0
    return Circumstances(
        capacity_factor=training.capacity_factor,
        whole_parameters=learned,
        is_in_order=model.decoder_sparse_step == 1,
    )


def build_execution(work: Work, training: TrainingSpec) -> Execution:
    """Returns how our own step goes: sequence parallelism, weights and gradients sent in the compute dtype, and of a
    layer that is computed again no more than its backward pass needs."""
    repeated = find_repeated(work)
    return Execution(
        sequence_parallel=True,
        fused_attention=training.attention == "flash",
        gradient_bytes=DTYPE_BYTES[training.compute_dtype],
        weight_bytes=DTYPE_BYTES[training.compute_dtype],
        repeated_matmuls=repeated.matmuls,
        repeated_attention=repeated.attention,
    )
