"""The time of a step: a law with two constants, for XLA as JAX runs it.

    T = slowdown · (M + 2·A) / peak · (1/efficiency + peak/memory/intensity)
        + exposed · (FSDP + TP + DP + CP) + EP + PP + (scores + update) / memory

M: matmul FLOPs that are executed, with those that remat repeats; A: attention's, which runs at half of the matmuls'
efficiency, backward 2.5 × forward; on TPUs what their kernel runs (`Attention.kernel_flops_per_token`). The efficiency
of matmuls falls where a chip has more FLOP/s for each byte/s of its memory; a new chip needs its peak and its
bandwidth, and nothing else. A third of the collectives' time is exposed, and all of the gradients' time across the
network. The optimizer's update reads and writes the state once.

The fsdp, context and expert axes cut weights, and one collective gathers them over all of these axes (`spans.GROUPS`).

The bubble of a pipeline is (pp − 1) ÷ repeats of a micro-batch's time on a stage (MaxText's circular pipelines). Its
weights are gathered for each micro-batch, or once a step, and then all of that is exposed (`pipeline_fsdp_ag_once`).
Embedding and head are outside its loop, and the batch is laid over the stages there.

The two constants are fitted to 32 published runs of dense models on TPUs over dp, fsdp and tp, one of them over cp,
`slowdown` to 20 on GPUs, `experts` to seven of mixtures (docs/explanation/accuracy.md: folds leave out chips and
models). No run tests pp and ep, and on GPUs tp and cp: their formulas have a source.

Source of the form: 70 published runs of MaxText, with the versions that ran; attention: Dao, arXiv:2307.08691.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from meshwright.planning.cost.spans import REMAT_FULL, REMAT_NONE, REMAT_OFFLOAD, Layout, Spans
from meshwright.planning.cost.work import Block, Work, find_repeated
from meshwright.topology.chips import Chip


@dataclass(frozen=True)
class Law:
    """The constants.

    Attributes:
        efficiency: of matmuls on a chip that never waits for its memory.
        intensity: FLOP a byte at which a chip's memory costs as much as its matrix units.
        slowdown: by platform, of all compute.
        experts: of the matmuls of routed experts that drop no tokens, beside other matmuls.
        exposed: part of the collectives' time that is exposed.
        score_bytes: memory traffic of one element of a matrix of scores, where attention is not fused.
    """

    efficiency: float = 0.835
    intensity: float = 1430.0
    slowdown: Mapping[str, float] = field(default_factory=lambda: {"tpu": 1.0, "gpu": 1.25})
    experts: float = 2.5
    exposed: float = 1 / 3
    score_bytes: float = 30.0


LAW: Final = Law()


@dataclass(frozen=True)
class DeviceRates:
    """One device: its peak in 16 bits, its memory's bandwidth, and that to its host, one way; as published, or as
    measured beside that."""

    platform: str
    flops_per_s: float
    memory_bytes_per_s: float
    host_bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Execution:
    """What a step does.

    Attributes:
        fused_attention: scores never lie in memory, and half of a causal matrix is skipped.
        value_bytes: of one gathered weight, summed gradient, and activation.
        weight_bytes: of one stored weight, and of its gradient.
        capacity_factor: places in an expert ÷ tokens that it gets on average; None: no token is dropped.
    """

    fused_attention: bool = True
    value_bytes: float = 2.0
    weight_bytes: float = 4.0
    capacity_factor: float | None = None


def find_expert_factor(block: Block, work: Work, capacity_factor: float | None, law: Law = LAW) -> float:
    """Returns the time of routed experts' matmuls, in that of a dense matmul of their weights a token.

    Tokens go to their places, and back, by matmuls with masks of a sequence's tokens × places. Where that takes longer
    than experts without dropped tokens, those are used.

    Source: MaxText's MoeBlock (dense_matmul with a capacity factor); runs: docs/explanation/accuracy.md.
    """
    if block.experts is None or capacity_factor is None:
        return law.experts
    capacity_factor = block.experts.limit(capacity_factor)
    places = capacity_factor * block.experts.chosen * work.seq_len
    return min(law.experts, capacity_factor + 2 * places * work.hidden / block.expert_parameters_per_token)


def count_offloaded(work: Work, layout: Layout, value_bytes: float) -> Any:
    """Returns the bytes of a device that lie in its host's memory: with remat offload the inputs of its layers."""
    layers = np.ceil(work.layers / np.asarray(layout.pp)) * layout.micro_batches_at_once
    tokens = layout.micro_batch_size * (work.seq_len / layout.cp)
    held = value_bytes * tokens * work.hidden / layout.tp * layers
    return np.where(np.asarray(layout.remat) == REMAT_OFFLOAD, held, 0.0)


PartSeconds = dict[str, Any]
"""Seconds of one step by part; each a figure, or one a candidate. They add up to all of it.

- compute: matmuls and attention, without the part that remat repeats; and the optimizer's update.
- remat: computed again in the backward pass.
- dp, fsdp, tp, …: of each axis the exposed time of its communication.
- bubble: devices wait for the pipeline to fill and to empty.
"""


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step, part by part.

    Attributes:
        work: the model at its sequence length, with the part that its backward pass never repeats.
        layout: axes, micro-batches and remat.
        execution: how attention is computed, and the type of values.
    """

    work: Work
    layout: Layout
    machine: DeviceRates
    spans: Spans
    execution: Execution
    law: Law = LAW

    def price(self) -> PartSeconds:
        """Returns the time of a step on each candidate."""
        layout, passes = self.layout, self.layout.gradient_accumulation_steps
        blocks = [(block, self._stage_layers * block.count / self.work.layers) for block in self.work.blocks]
        weights = [block.parameters_per_token + self._add_experts(block) for block, _ in blocks]
        matmuls = sum(layers * self._time_matmuls(each) for each, (_, layers) in zip(weights, blocks, strict=True))
        attention = sum(layers * self._time_attention(block) for block, layers in blocks)
        scores = sum(layers * self._time_scores(block) for block, layers in blocks)
        compute = 3 * matmuls + 3.5 * attention + scores
        again = self._repeats * matmuls + self._repeats_attention * attention
        once, weights_s = layout.gathers_once, self._time_weights(blocks)
        stages = np.asarray(layout.pp)
        ends = self.work.embedding_parameters + self.work.head.parameters
        ends_s = np.where(stages > 1, layout.pipeline_runs, passes) * self._time_gathers(ends, "dense_weights")
        sent = {
            "tp": self._stage_layers * self._time_tensor(),
            "cp": sum(layers * self._time_context(block) for block, layers in blocks),
            "fsdp": np.where(once, 0.0, weights_s),
        }
        waits = {axis: self._wait("dense_weights" if axis == "fsdp" else axis) for axis in sent}
        inside = {axis: waits[axis] * seconds for axis, seconds in sent.items()} | {
            "ep": sum(layers * self._time_experts(block) for block, layers in blocks),
            "pp": 2 * self._rounds * self.spans["pp"].send(self._activation_bytes / layout.tp),  # both ways, exposed
        }
        stage: Any = compute + again + sum(inside.values())
        fsdp_s = np.where(once, layout.pipeline_runs * weights_s, passes * inside["fsdp"])
        # an axis's collectives hide behind no more than this
        worked = passes * (compute + again + 3 * self._time_matmuls(self.work.head.parameters) / stages)
        return {
            "compute": worked - passes * again + self._time_update(),
            "remat": passes * again + np.maximum(self._time_offload() - worked, 0.0),
            **{axis: np.maximum(passes * each, passes * sent.get(axis, 0.0) - worked) for axis, each in inside.items()},
            "fsdp": np.maximum(fsdp_s + waits["fsdp"] * ends_s, passes * sent["fsdp"] + ends_s - worked),
            "dp": self._time_gradients(),
            "bubble": layout.pipeline_runs * (stages - 1) * stage / self._rounds,
        }

    # ---- compute -----------------------------------------------------------------------------------------

    @property
    def _tokens(self) -> Any:
        """Of one micro-batch in one data-parallel part."""
        return self.layout.micro_batch_size * (self.work.seq_len / self.layout.cp)

    @property
    def _stage_layers(self) -> Any:
        """Layers of the fullest stage."""
        return np.ceil(self.work.layers / np.asarray(self.layout.pp))

    @property
    def _rounds(self) -> Any:
        """How often a micro-batch comes to a stage."""
        return self.layout.count_repeats(self.work.layers)

    @property
    def _flop_s(self) -> float:
        """Seconds of a FLOP of a matmul: of float32 by JAX's default precision, TF32 on GPUs."""
        law, peak = self.law, self.machine.flops_per_s
        lost = 1 / law.efficiency + peak / self.machine.memory_bytes_per_s / law.intensity
        is_tf32 = self.execution.value_bytes > 2 and self.machine.platform == "gpu"
        return law.slowdown[self.machine.platform] * lost / peak * (2 if is_tf32 else 1)

    def _time_matmuls(self, parameters: float) -> Any:
        """Returns the forward seconds of these weights, which each token uses."""
        return 2 * parameters * self._tokens / self.layout.tp * self._flop_s

    def _add_experts(self, block: Block) -> float:
        """Returns the weights a token, as in dense matmuls, that routed experts cost beside their own."""
        factor = find_expert_factor(block, self.work, self.execution.capacity_factor, self.law)
        return (factor - 1) * block.expert_parameters_per_token

    def _time_attention(self, block: Block) -> Any:
        """Returns the forward seconds of one layer's attention: unfused, of the whole matrix of scores."""
        attention, tokens = block.attention, self._tokens / self.layout.tp
        flops = attention.kernel_flops_per_token if self.machine.platform == "tpu" else attention.flops_per_token
        if not self.execution.fused_attention:
            flops = 2 * attention.heads * (attention.query_size + attention.value_size) * attention.length
        return 2 * flops * tokens * self._flop_s

    def _time_scores(self, block: Block) -> Any:
        """Returns the seconds of one layer's scores in memory, for both directions."""
        if self.execution.fused_attention:
            return 0.0
        count = block.attention.heads * block.attention.length * self._tokens / self.layout.tp
        return count * self.law.score_bytes / self.machine.memory_bytes_per_s

    @property
    def _repeats(self) -> Any:
        """Which part of the matmuls the backward pass computes again."""
        return np.where(np.asarray(self.layout.remat) >= REMAT_FULL, find_repeated(self.work), 0.0)

    @property
    def _repeats_attention(self) -> Any:
        """Which part of attention is computed again: of minimal remat all, since no matmul makes its result."""
        remat = np.asarray(self.layout.remat)
        full = 0.0 if "context" in self.work.unrepeated else 1.0
        return np.where(remat >= REMAT_FULL, full, np.where(remat == REMAT_NONE, 0.0, 1.0))

    def _time_offload(self) -> Any:
        """Returns the time to send what lies in the host's memory there and back; it hides behind the compute."""
        runs = self.layout.gradient_accumulation_steps / self.layout.micro_batches_at_once
        sent = count_offloaded(self.work, self.layout, self.execution.value_bytes) * runs
        return 2 * sent / self.machine.host_bytes_per_s

    def _time_update(self) -> Any:
        """Returns the time of the optimizer, and of the sums of gradients over passes. Memory bounds both: a device
        updates the state that it holds.

        An update reads weight, gradient and moments, and writes all but the gradient; a sum reads two, and writes one.
        """
        passes = np.asarray(self.layout.gradient_accumulation_steps)
        weights = 3 * self.execution.weight_bytes * (1 + np.where(passes > 1, passes, 0))
        moved = weights + 2 * np.asarray(self.layout.optimizer_bytes)
        return self._count_held() * moved / self.machine.memory_bytes_per_s

    def _count_held(self) -> Any:
        """Returns the parameters that a device updates. All stages have embedding and head."""
        layout, work = self.layout, self.work
        share = self._stage_layers / work.layers
        layers = sum(block.count * block.dense_parameters for block in work.blocks)
        experts = sum(block.count * block.expert_parameters for block in work.blocks)
        dense = work.parameters - experts - (1 - share) * layers
        dense_parts, expert_parts = layout.cut_weights(work.hidden)
        return (dense / dense_parts + share * experts / expert_parts / layout.ep) / layout.tp

    # ---- collectives -------------------------------------------------------------------------------------

    @property
    def _directions(self) -> Any:
        """Forward, backward, and forward again where matmuls are repeated."""
        return 2 + (self._repeats > 0)

    @property
    def _activation_bytes(self) -> Any:
        """Of the hidden states of a micro-batch, before the tensor axis cuts them."""
        return self.execution.value_bytes * self._tokens * self.work.hidden

    def _time_tensor(self) -> Any:
        """Returns a layer's gathers and scatters of activations: of both blocks, or of one where they are parallel."""
        count = (1 if self.work.is_parallel else 2) * (self._directions + 1)
        return count * self.spans["tp"].time("all_reduce", self._activation_bytes)

    def _time_experts(self, block: Block) -> Any:
        """Returns the time to send tokens to experts and back: two all-to-alls in each direction, all exposed.

        Source: jax-ml/scaling-book, gpus.md, expert parallelism.
        """
        if block.experts is None:
            return 0.0
        moved = self._activation_bytes * block.experts.chosen / self.layout.tp * self.layout.ep
        return 2 * self._directions * self.spans["ep"].time("all_to_all", moved)

    def _time_context(self, block: Block) -> Any:
        """Returns the time to gather keys and values. The backward pass gathers them again and sums their gradients."""
        kv = block.attention.kv_elements / np.minimum(self.layout.tp, block.attention.kv_heads)
        sent = self.execution.value_bytes * self._tokens * kv * self.layout.cp
        return (self._directions + 1) * self.spans["cp"].time("all_gather", sent)

    def _time_weights(self, blocks: list[tuple[Block, Any]]) -> Any:
        """Returns the time to gather layers' weights and scatter their gradients: in each accumulation step, which
        gathers twice, or once around a pipeline's loop.

        Source: jax-ml/scaling-book, training.md, FSDP.
        """
        dense = sum(layers * self._time_gathers(block.dense_parameters, "dense_weights") for block, layers in blocks)
        experts = [(layers, b.expert_parameters / self.layout.ep) for b, layers in blocks if b.experts]
        return dense + sum(layers * self._time_gathers(each, "expert_weights") for layers, each in experts)

    def _time_gathers(self, parameters: Any, group: str) -> Any:
        byte_count = parameters / self.layout.tp * self.execution.value_bytes
        gather, scatter = (self.spans[group].time(name, byte_count) for name in ("all_gather", "reduce_scatter"))
        return np.where(self.layout.gathers_once, 1, 2) * gather + scatter

    def _time_gradients(self) -> Any:
        """Returns the time to sum gradients over copies of their weights."""
        size = self.execution.value_bytes * self._count_held()
        return self._wait("dp", is_gradient=True) * self.spans["dp"].time("all_reduce", size)

    def _wait(self, axis: str, *, is_gradient: bool = False) -> Any:
        """Returns the exposed part of an axis's collectives.

        Across the network all of it: of gradients, which come last; and on TPUs, where slices are not gathered ahead.
        """
        is_waited = (np.asarray(self.spans[axis].outer.size) > 1) & (is_gradient or self.machine.platform == "tpu")
        return np.where(is_waited, 1.0, self.law.exposed)


# ---- how much is known ----------------------------------------------------------------------------------------------


KNOWN: Final = ("tpu_v5e", "tpu_v5p", "tpu_v6e", "tpu_7x", "h100", "h200")
"""Families with runs to which the constants are fitted; of GPUs with NVLink."""

FEW_TOKENS: Final = 1024
"""A device, in one pass."""
NARROW: Final = 2048
"""Elements of a hidden state."""


def find_spread(chip: Chip, work: Work, layout: Layout) -> tuple[float, str]:
    """Returns the factor f such that four of five measured steps lie within 1/f and f, and what makes it wide.

    Args:
        work, layout: of one candidate.

    Source: docs/explanation/accuracy.md, folds; where no run tests the model, a conservative assumption.
    """
    return max(_list_spreads(chip, work, layout), key=lambda each: each[0])


def _list_spreads(chip: Chip, work: Work, layout: Layout) -> Iterator[tuple[float, str]]:
    tokens = int(layout.micro_batch_size) * work.seq_len / int(layout.cp) / int(layout.tp)
    if tokens < FEW_TOKENS or work.hidden < NARROW:
        yield 1.3, f"no run has {'so few tokens a device' if tokens < FEW_TOKENS else 'so narrow a model'}"
    axes = ("pp", "ep", "cp", "tp") if chip.platform == "gpu" else ("pp", "ep", "cp")
    unseen = [axis for axis in axes if int(getattr(layout, axis)) > 1]
    if unseen:
        yield 1.35, f"at most one run tests {', '.join(unseen)}"
    if work.has_experts:
        yield 1.5, "of mixtures of experts there are eleven runs, of seven models"
    if chip.family not in KNOWN or (chip.platform == "gpu" and not chip.scaleup_bytes_per_s):
        yield 1.5 if chip.platform == "gpu" else 1.14, "no run on this chip"
    elif chip.platform == "gpu":
        yield 1.3, "on GPUs there are 20 runs of six models, and their software differs"
    else:
        yield 1.09, "32 published runs, each predicted from other chips and models"
