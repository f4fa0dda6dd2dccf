"""How long a step takes, and on what: a sum over layers, micro-batches and stages, part by part.

Rule: formulas only; every constant comes with the chip (`Machine`), its wires or the framework (`Practice`). Times are
of the slowest device. Shapes: figures, or arrays over candidates that broadcast with the layout's. What a layer takes
is in `layer_time`.

Sources: jax-ml/scaling-book, "Training" (bytes of each parallelism a layer); Narayanan et al., arXiv:2104.04473 (the
pipeline's bubble, (p-1)/(v·m), and that stages send a part of an activation from each device of a tensor axis);
Korthikanti et al., arXiv:2205.05198 (what is computed again, sequence parallelism); Rajbhandari et al.,
arXiv:1910.02054 (what sharded optimizers send).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.planning.cost.layer_time import Execution, LayerPricing, Machine, expose, time_collective
from meshwright.planning.cost.layout import Layout, Numbers
from meshwright.planning.cost.practice import Practice
from meshwright.planning.cost.spans import Spans
from meshwright.planning.cost.work import Work

__all__ = ["Execution", "Machine", "StepTime", "price_step"]


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, by what they go into; parts add up to `total_s`.

    Attributes:
        compute_s: matmuls, attention, elementwise work, loss; without what remat repeats.
        remat_s: computed again in the backward pass.
        communication_s: by axis, what nothing hides.
        bubble_s: devices wait for the pipeline to fill and to empty.
        optimizer_s: the update of the weights.
        other_s: what a step takes beside all of this; what slower slices let the others wait.
    """

    compute_s: Numbers
    remat_s: Numbers
    communication_s: dict[str, Numbers] = field(default_factory=dict)
    bubble_s: Numbers = 0.0
    optimizer_s: Numbers = 0.0
    other_s: Numbers = 0.0

    @property
    def total_s(self) -> Any:
        """All of it."""
        parts = self.compute_s + self.remat_s + self.bubble_s + self.optimizer_s + self.other_s
        return parts + sum(self.communication_s.values())


def price_step(
    work: Work, layout: Layout, machine: Machine, spans: Spans, practice: Practice, execution: Execution
) -> StepTime:
    """Returns what a step takes on each candidate.

    Args:
        work: the model at its sequence length.
        layout: axes, micro-batches and remat.
        machine: one device.
        spans: what each axis runs over.
        practice: constants of the framework on the chip.
        execution: what the framework does.
    """
    return _StepPricing(LayerPricing(work, layout, machine, spans, practice, execution)).price()


def _price_waiting(spans: Spans, busy: Numbers, practice: Practice) -> Any:
    """Returns the seconds that the slower ones of several nodes or slices let the others wait, where gradients meet.

    Args:
        spans: what the axes run over.
        busy: seconds of a step in which devices are busy.
        practice: whose devices differ so much.
    """
    if not practice.straggle:
        return 0.0
    granules = math.prod(np.asarray(span.outer.size) for span in spans.values())
    return practice.straggle * np.log2(granules) * busy


_PARTS = ("compute", "remat", "tp", "ep", "cp", "fsdp")
"""Of a stage's pass: the fields of `LayerTime`."""


@dataclass(frozen=True)
class _StepPricing:
    layer: LayerPricing

    @property
    def layout(self) -> Layout:
        return self.layer.layout

    @property
    def practice(self) -> Practice:
        return self.layer.practice

    def price(self) -> StepTime:
        layout, execution = self.layout, self.layer.execution
        passes = layout.passes
        layers = self._count_stage_layers()
        parts = self._price_stage(layers)
        send = self._price_send(parts["compute"] + parts["remat"])
        stage: Any = sum(parts.values()) + send
        head = self._price_head()
        extra = self._price_extra(head, stage / layers, layers)
        last_pass = parts["compute"] + head / layout.pp
        return StepTime(
            compute_s=passes * (parts["compute"] + extra),
            remat_s=passes * parts["remat"],
            communication_s={
                "tp": passes * parts["tp"],
                "ep": passes * parts["ep"],
                "cp": passes * parts["cp"],
                "fsdp": (1 if execution.weights_kept else passes) * parts["fsdp"],
                "pp": passes * send,
                "dp": expose(last_pass * (2 / 3), self._price_gradients(), self.practice),
            },
            bubble_s=(layout.pp - 1) / layout.interleave * stage,
            optimizer_s=self._price_optimizer(),
            other_s=self.practice.step_s + _price_waiting(self.layer.spans, passes * (stage + extra), self.practice),
        )

    def _count_stage_layers(self) -> Any:
        """Returns the layers of the fullest stage: whole ones, in each of the parts that it has of the model."""
        return np.ceil(self.layer.work.layers / (self.layout.pp * self.layout.interleave)) * self.layout.interleave

    def _price_stage(self, layers: Any) -> dict[str, Any]:
        """Returns the parts of a pass through a stage; its layers are of each kind as the model's are."""
        work = self.layer.work
        priced = [(block.count / work.layers, self.layer.price(block)) for block in work.blocks]
        return {part: layers * sum(share * getattr(time, part) for share, time in priced) for part in _PARTS}

    def _price_send(self, compute: Any) -> Any:
        """Returns what a pass takes to hand activations on and gradients back.

        Each device of a tensor axis sends its part; where the next stage needs the whole, it gathers.
        """
        layer, layout, practice = self.layer, self.layout, self.practice
        if np.all(np.equal(layout.pp, 1)):
            return 0.0
        span, moved = layer.spans["pp"], layer.activation_bytes
        is_across = np.asarray(span.outer.size) > 1
        rate = np.where(is_across, practice.network, practice.tensor)
        start = np.where(is_across, practice.network_latency_s, practice.tensor_latency_s)
        sent = span.send(moved / layout.tp) / rate + start
        if not layer.execution.sequence_parallel:
            sent = sent + time_collective(layer.spans["tp"], "all_gather", moved, practice)
        waited = layer.overlap(compute, 2 * sent * layout.interleave, layer.execution.send_overlap)
        return np.where(layout.pp > 1, waited + practice.pass_s * layout.interleave, 0.0)

    def _price_head(self) -> Any:
        """Returns both directions of the head and the loss, of one micro-batch."""
        layer = self.layer
        logits = layer.tokens * layer.work.vocabulary / layer.layout.tp
        traffic = logits * self.practice.logits_bytes / layer.memory_bytes_per_s
        return 3 * layer.time_matmul(layer.work.head, layer.tokens, is_wide=True) + traffic

    def _price_extra(self, head: Any, one_layer: Any, layers: Any) -> Any:
        """Returns what the last stage takes longer: the head, but for a layer less where layers do not fill stages."""
        spare = np.minimum(layers * self.layout.pp - self.layer.work.layers, 1)
        waited = np.maximum(head * self.practice.skew - spare * one_layer, 0.0)
        return np.where(self.layout.pp > 1, waited, head)

    def _count_held_parameters(self) -> tuple[Any, Any]:
        """Returns what one device has of parameters, of all but experts and of experts."""
        work, layout = self.layer.work, self.layout
        dense = sum(block.count * block.dense_parameters for block in work.blocks) / layout.pp
        experts = sum(block.count * block.expert_parameters for block in work.blocks) / layout.pp / layout.ep
        cut = layout.tp * layout.fsdp
        return (dense + work.embedding_parameters) / cut, experts / cut

    def _price_gradients(self) -> Any:
        """Returns what summing gradients takes, and bringing back the weights that a sharded optimizer updates.

        A reduce-scatter of gradients and an all-gather of weights are half of an all-reduce each. Experts' gradients
        are summed over copies of the experts, all others over the expert axis too.
        """
        execution = self.layer.execution
        each = execution.gradient_bytes
        if execution.optimizer_sharded:
            each = (execution.gradient_bytes + execution.weight_bytes) / 2
        dense, experts = self._count_held_parameters()
        copies = time_collective(self.layer.spans["dp"], "all_reduce", (dense + experts) * each, self.practice)
        return copies + time_collective(self.layer.spans["ep"], "all_reduce", dense * each, self.practice)

    def _price_optimizer(self) -> Any:
        dense, experts = self._count_held_parameters()
        if self.layer.execution.optimizer_sharded:
            dense, experts = dense / (self.layout.dp * self.layout.ep), experts / self.layout.dp
        return (dense + experts) * self.practice.optimizer_bytes / self.layer.memory_bytes_per_s
