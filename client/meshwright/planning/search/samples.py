"""Models that are given by what a sample costs: their candidates, and what each costs.

Rule: what is known of such a model is its weights, FLOPs and activations, so that a mesh has copies of it (dp) and
parts of its weights (fsdp), and nothing else. Constants are those that transformers are priced with; what no shape says
is taken at its best, and `basis` says so.

- Compute is the roofline of one sample: its FLOPs at the rate that large matmuls reach within a step, or its kept
  activations, which are written once and read once at least, at that of elementwise work; whichever takes longer.
- fsdp gathers weights in the compute dtype before both directions of each pass and scatters gradients after it, a layer
  at a time where its size is known; dp sums gradients once a step. Gradients have the weights' dtype, as `jax.grad`
  gives them.
- Of memory everything is there but what a layer holds while it runs, which nobody knows.

Sources: Williams, Waterman, Patterson, "Roofline" (CACM 2009); jax-ml/scaling-book, "Training" (what dp and fsdp send);
Rajbhandari et al., arXiv:1910.02054 (what sharded data parallelism holds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from meshwright.planning.cost.capacity import find_usable_bytes
from meshwright.planning.cost.kept import Keeping, read_keepings
from meshwright.planning.cost.layer_time import expose, time_collective
from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.practice import DEFAULT, Practice, find_practice
from meshwright.planning.cost.spans import Spans
from meshwright.planning.cost.state import Moments, State, build_state
from meshwright.planning.cost.step_time import Machine, price_waiting
from meshwright.planning.divisors import list_divisors
from meshwright.planning.search.hardware import Hardware
from meshwright.planning.search.pricing import DTYPE_BYTES, DTYPES, PARTS, Floats, Priced
from meshwright.planning.search.space import AXES, Bounds, Space, build_layout
from meshwright.wire.model import SampleModel, TrainingSpec

ASSUMED: Final = "large matmuls assumed"
"""What the basis of such a price says: no shape is known."""

_PASSES_OVER_ACTIVATIONS: Final = 2
"""Kept for the backward pass: written once, read once."""

_OPEN: Final = ("dp", "fsdp")


@dataclass(frozen=True)
class SampleQuestion:
    """What is priced of a model that is given by what a sample costs.

    Attributes:
        model, training: the step; nothing is computed again.
        hardware: what it runs on.
        memory_fraction: part of a GPU's memory that the job may take.
        price_per_device_hour: None: not given.
        moments: states of the optimizer to choose from; empty: that of `training`.
    """

    model: SampleModel
    training: TrainingSpec
    hardware: Hardware
    memory_fraction: float
    price_per_device_hour: float | None = None
    moments: tuple[Moments, ...] = ()

    def price(self, layout: Layout, spans: Spans | None = None) -> Priced:
        """Returns what candidates cost; `spans` are what axes run over, where an order of devices says it."""
        return _price(self, layout, self.hardware.lay(layout) if spans is None else spans)

    def list_space(self, bounds: Bounds) -> Space:
        """Returns all candidates within bounds, of each mesh those with the fewest passes first."""
        batch, devices = self.training.global_batch, self.hardware.devices
        sizes = {axis: list_divisors(devices) if axis in _OPEN else [1] for axis in AXES}
        choices = {axis: [size for size in sizes[axis] if bounds.allows(axis, size)] for axis in AXES}
        kept = replace(bounds, remats=("none",))
        return Space(build_layout(devices, choices, batch, kept, list_divisors(batch)[::-1]), ())

    def with_batch(self, global_batch: int) -> SampleQuestion:
        """Returns the question for another batch."""
        return replace(self, training=self.training.model_copy(update={"global_batch": global_batch}))


def _price(question: SampleQuestion, layout: Layout, spans: Spans) -> Priced:
    model, training, hardware = question.model, question.training, question.hardware
    dtype = DTYPES[training.compute_dtype]
    machine = hardware.build_machine(dtype)
    found = find_practice(DEFAULT, hardware.platform, hardware.chip.family)
    state = build_state(training, question.moments, layout.moments)
    gathered_bytes = DTYPE_BYTES[training.compute_dtype]
    seconds = _StepTime(model, layout, machine, spans, found.practice, state, gathered_bytes).price()
    memory = _price_memory(model, layout, state, read_keepings()[DEFAULT, hardware.platform], gathered_bytes)
    return Priced(
        layout=layout,
        parts=_spread({**dict.fromkeys(PARTS, 0.0), **seconds}, layout),
        memory=_spread(memory, layout),
        capacity_bytes=find_usable_bytes(hardware.chip, question.memory_fraction),
        spans=spans,
        hardware=hardware,
        flops_per_sample=float(model.flops_per_sample),
        flops_per_s=machine.flops_per_s,
        basis=hardware.replaced.tell_basis(f"{found.basis}; {ASSUMED}", dtype),
        is_of_tokens=False,
    )


def _spread(parts: Mapping[str, Any], layout: Layout) -> dict[str, Floats]:
    """Returns parts as one figure a candidate each."""
    shape = np.shape(layout.dp)
    return {name: np.broadcast_to(np.asarray(part, dtype=np.float64), shape) for name, part in parts.items()}


@dataclass(frozen=True)
class _StepTime:
    """Seconds of a step, by what they go into.

    Attributes:
        gathered_bytes: of one weight that fsdp gathers.
    """

    model: SampleModel
    layout: Layout
    machine: Machine
    spans: Spans
    practice: Practice
    state: State
    gathered_bytes: float

    def price(self) -> dict[str, Any]:
        """Returns the parts that are not 0 whatever the candidate."""
        passes: Any = self.layout.passes
        busy = self.layout.micro_batch * self._sample_s
        fsdp = passes * self._price_weights(busy)
        return {
            "compute": passes * busy,
            "fsdp": fsdp,
            "dp": expose(busy * (2 / 3), self._gradients_s, self.practice),
            "optimizer": self._held * self.practice.optimizer_bytes / self._memory_bytes_per_s,
            "other": self.practice.step_s + price_waiting(self.spans, passes * busy + fsdp, self.practice),
        }

    @property
    def _memory_bytes_per_s(self) -> float:
        return self.machine.memory_bytes_per_s * self.practice.memory

    @property
    def _sample_s(self) -> float:
        """Of one sample, both directions."""
        compute_s = self.model.flops_per_sample / (self.machine.curve.flops_per_s * self.practice.matmul)
        moved = _PASSES_OVER_ACTIVATIONS * self.model.activation_bytes_per_sample
        return max(compute_s, moved / self._memory_bytes_per_s)

    @property
    def _held(self) -> Any:
        """Parameters of one device."""
        return self.model.parameters / self.layout.fsdp

    @property
    def _gradients_s(self) -> Any:
        return time_collective(self.spans["dp"], "all_reduce", self._held * self.state.gradient_bytes, self.practice)

    def _price_weights(self, busy: Any) -> Any:
        """Returns what a pass waits for weights and for scattering their gradients: forward a third of it is busy."""
        gather = self._time_layers("all_gather", self.gathered_bytes)
        scatter = self._time_layers("reduce_scatter", self.state.gradient_bytes)
        return expose(busy / 3, gather, self.practice) + expose(busy * (2 / 3), gather + scatter, self.practice)

    def _time_layers(self, operation: Any, each_bytes: Any) -> Any:
        """Returns the seconds of a collective on all parameters, a layer at a time."""
        parameters = self.model.parameters
        layers = math.ceil(parameters / (self.model.largest_layer_parameters or parameters))
        moved = parameters / layers * each_bytes
        return layers * time_collective(self.spans["fsdp"], operation, moved, self.practice)


def _price_memory(
    model: SampleModel, layout: Layout, state: State, keeping: Keeping, gathered_bytes: float
) -> dict[str, Any]:
    """Returns the bytes of a device, by what they are for."""
    held: Any = model.parameters / np.asarray(layout.fsdp)
    again = np.where(np.asarray(layout.passes) > 1, keeping.accumulated, 0.0)
    whole = min(keeping.gathered * (model.largest_layer_parameters or model.parameters), model.parameters)
    return {
        "parameters": held * state.weight_bytes,
        "gradients": held * state.gradient_bytes * (1 + again),
        "optimizer": held * state.optimizer_bytes,
        "activations": layout.micro_batch * model.activation_bytes_per_sample * keeping.activation,
        "gathered": np.where(np.asarray(layout.fsdp) > 1, whole * gathered_bytes, 0.0),
        "reserve": keeping.reserve_bytes,
    }
