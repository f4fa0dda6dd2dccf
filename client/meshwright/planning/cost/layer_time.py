"""How long one layer takes for one micro-batch on one device: both directions, and what is computed again.

Rule: formulas only; every constant comes with the chip, its wires or the framework. Shapes: figures, or arrays over
candidates that broadcast with the layout's.

A pass is its matmuls on the curve, its attention and its elementwise traffic; the host that starts kernels may be
slower than all of these. Communication on the critical path of each matmul (tensor, expert) is added; that which can
run ahead (sharded weights, keys and values) hides behind compute as far as the framework lets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from meshwright.planning.cost.collectives import Operation
from meshwright.planning.cost.gemm import GemmCurve, matmul_seconds
from meshwright.planning.cost.layout import REMAT_FULL, REMAT_MINIMAL, Layout, Numbers
from meshwright.planning.cost.practice import Practice
from meshwright.planning.cost.spans import Span, Spans
from meshwright.planning.cost.work import Attention, Block, Matmul, Work

ELEMENT_BYTES: Final = 2
"""Of an activation or a gathered weight: bfloat16 or float16."""

LAUNCH_POWER: Final = 4.0
"""How sharply a layer goes from bound by kernel launches to bound by the chip: fitted on 1,440 runs of small models."""


@dataclass(frozen=True)
class Machine:
    """One device, as figures: peaks, and the curve that matmuls reach.

    Attributes:
        flops_per_s: peak dense FLOP/s in the compute dtype.
        memory_bytes_per_s: peak memory bandwidth.
        curve: of matmuls in the compute dtype.
        wide_flops_per_s, wide_curve: the same in 16 bits, for what stays there when layers compute in 8 or 4: attention
            and the head. None: the compute dtype has 16 bits.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    curve: GemmCurve
    wide_flops_per_s: float | None = None
    wide_curve: GemmCurve | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether layers' matmuls are in 8 or 4 bits."""
        return self.wide_curve is not None


@dataclass(frozen=True)
class Execution:
    """What a framework does, where they differ.

    Attributes:
        sequence_parallel: elementwise work between the tensor axis' matmuls is cut along the sequence.
        fused_attention: scores never lie in memory, and half of a causal matrix is skipped.
        repeats_attention: the backward pass computes unfused scores again where layers are not (selective).
        optimizer_sharded: optimizer state is cut over the data axis too (ZeRO-1).
        gradient_bytes: of one gradient, as data parallelism sums it.
        weight_bytes: of one weight, as sharded data parallelism gathers it.
        weights_kept: sharded weights are gathered once a step, not for each pass and each direction (ZeRO-2).
        launched: part of the kernels that the host starts one by one: 1; 0: one program or a CUDA graph of all.
        dispatch_waits: 1: the host waits for how many tokens each expert gets; 0: sizes stay on the device.
        expert_overlap: 1: tokens go to their experts while those of another micro-batch are computed.
        dispatch_once: 1: a token goes once to each node that has some of its experts, and is copied there.
        tensor_overlap: 1: collectives of the tensor axis run beside its matmuls, a part of them at a time.
        send_overlap: 1: stages send while they compute the next micro-batch.
        repeated_matmuls, repeated_attention: parts of a layer's that REMAT_FULL computes again (`remat.find_repeated`).
    """

    sequence_parallel: bool = True
    fused_attention: bool = True
    repeats_attention: bool = False
    optimizer_sharded: bool = False
    gradient_bytes: float = 4.0
    weight_bytes: float = 2.0
    weights_kept: bool = False
    launched: Numbers = 1.0
    dispatch_waits: Numbers = 0.0
    expert_overlap: Numbers = 0.0
    dispatch_once: Numbers = 0.0
    tensor_overlap: Numbers = 0.0
    send_overlap: Numbers = 0.0
    repeated_matmuls: float = 1.0
    repeated_attention: float = 1.0


def time_collective(span: Span, operation: Operation, byte_count: Any, practice: Practice) -> Any:
    """Returns the seconds of a collective in practice; 0 over a group of one device.

    Args:
        span: what the group talks over.
        operation: which one.
        byte_count: of the whole array; see `collectives`.
        practice: whose rates and latencies count.

    Source: that groups with a part of each node's GPUs get less of its NICs than whole nodes or single GPUs do:
    109 runs over several nodes of github.com/VIA-Research/vTrain.
    """
    inner, outer = np.asarray(span.inner.size), np.asarray(span.outer.size)
    if np.all(inner * outer == 1):
        return 0.0
    is_across = outer > 1
    rate = np.where(is_across, practice.network * np.where(span.is_partial, practice.partial, 1.0), practice.tensor)
    start = np.where(is_across, practice.network_latency_s, practice.tensor_latency_s)
    return np.where(inner * outer > 1, span.time(operation, byte_count) / rate + start, 0.0)


def expose(compute: Any, communication: Any, practice: Practice) -> Any:
    """Returns what communication that can run beside compute adds to it.

    (c^p + x^p)^(1/p) − c of the part that the framework hides as far as there is compute; all of the other part.
    """
    power, exposed = practice.hidden, practice.exposed
    largest = np.maximum(np.maximum(compute, communication), 1e-30)
    together = largest * ((compute / largest) ** power + (communication / largest) ** power) ** (1 / power)
    return (1 - exposed) * (together - compute) + exposed * communication


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer for one micro-batch: both directions.

    Attributes:
        compute: without what remat repeats.
        remat: computed again.
        tp, ep, cp, fsdp: communication by axis, what nothing hides.
    """

    compute: Any
    remat: Any
    tp: Any
    ep: Any
    cp: Any
    fsdp: Any


@dataclass(frozen=True)
class LayerPricing:
    """Prices layers of one model, layout and machine."""

    work: Work
    layout: Layout
    machine: Machine
    spans: Spans
    practice: Practice
    execution: Execution

    @property
    def tokens(self) -> Any:
        """Of one micro-batch on one device."""
        return self.layout.micro_batch * (self.work.sequence_length / self.layout.cp)

    @property
    def activation_bytes(self) -> Any:
        """Of the hidden states of a micro-batch, before the tensor axis cuts them."""
        return ELEMENT_BYTES * self.tokens * self.work.hidden

    @property
    def sequence_cut(self) -> Any:
        """In how many parts the tensor axis cuts what lies between matmuls."""
        return self.layout.tp if self.execution.sequence_parallel else 1

    @property
    def memory_bytes_per_s(self) -> Any:
        """That elementwise work reaches."""
        return self.machine.memory_bytes_per_s * self.practice.memory

    @property
    def directions(self) -> Any:
        """Forward, backward, and forward again where layers are computed again."""
        return 2 + (self.layout.remat == REMAT_FULL)

    def price(self, block: Block) -> LayerTime:
        """Returns the seconds of one layer of a block."""
        matmuls = sum(self.time_matmul(matmul, self.tokens) for matmul in block.matmuls) + self._time_experts(block)
        attention, elementwise = self._time_attention(block.attention), self._time_elementwise(block)
        forward = matmuls + attention + elementwise
        repeated = attention if self.execution.repeats_attention else 0.0
        remat = self.layout.remat
        minimal = np.where(remat == REMAT_MINIMAL, elementwise + attention, repeated)
        parts = self.execution.repeated_matmuls * matmuls + self.execution.repeated_attention * attention
        again = np.where(remat == REMAT_FULL, parts + elementwise, minimal)
        slow = self._find_slowdown(block, 3 * forward + again)
        compute, again = 3 * forward * slow, again * slow
        return LayerTime(
            compute=compute,
            remat=again,
            tp=self._price_tensor(compute + again),
            ep=self._price_experts(block, compute),
            cp=self._price_context(block.attention, attention),
            fsdp=self._price_weights(block, compute / 3, compute * 2 / 3 + again),
        )

    def time_matmul(self, matmul: Matmul, tokens: Any, groups: Any = 1, *, is_wide: bool = False) -> Any:
        """Returns the forward seconds of a layer's matmul, or of the same one for each of several groups of tokens.

        Args:
            matmul: of the whole model.
            tokens: of one group.
            groups: how many.
            is_wide: in 16 bits, whatever layers compute in.
        """
        inputs: Any = matmul.inputs
        outputs: Any = matmul.outputs
        if matmul.cut == "inputs":
            inputs = inputs / self.layout.tp
        elif matmul.cut == "outputs":
            outputs = outputs / self.layout.tp
        else:
            tokens = tokens / self.sequence_cut
        wide = self.machine.wide_curve if is_wide else None
        curve = wide or self.machine.curve
        seconds = groups * matmul_seconds(tokens, inputs, outputs, curve) / self.practice.matmul
        if self.machine.is_narrow and not is_wide:
            casts = groups * tokens * (inputs + outputs) * self.practice.cast_bytes / self.memory_bytes_per_s
            seconds = seconds / self.practice.narrow + casts
        return seconds * (1 + self.practice.misaligned * (_count_halvings(inputs) + _count_halvings(outputs)))

    def _time(self, axis: str, operation: Operation, byte_count: Any) -> Any:
        return time_collective(self.spans[axis], operation, byte_count, self.practice)

    def _find_slowdown(self, block: Block, busy: Any) -> Any:
        """Returns how much longer a layer takes because its host starts kernels one by one; 1: none."""
        practice = self.practice
        launch: Any = practice.launch_s
        if block.experts is not None:
            held = block.experts.count / self.layout.ep
            launch = launch + practice.launch_expert_s * held + practice.dispatch_s * self.execution.dispatch_waits
        launched = (self.directions - 1 + practice.launch_backward) * launch * self.execution.launched
        return ((busy**LAUNCH_POWER + launched**LAUNCH_POWER) ** (1 / LAUNCH_POWER)) / busy

    def _time_experts(self, block: Block) -> Any:
        """Returns the forward seconds of the experts that a device holds, each with its share of the tokens."""
        experts = block.experts
        if experts is None:
            return 0.0
        held = experts.count / self.layout.ep
        tokens = self.tokens * experts.chosen / held
        return sum(self.time_matmul(matmul, tokens, held) for matmul in experts.matmuls)

    def _time_attention(self, attention: Attention) -> Any:
        """Returns forward seconds; unfused, all of the matrix and its traffic.

        Source: Dao, arXiv:2307.08691 (causal attention in blocks costs half of the matrix); Korthikanti et al.,
        arXiv:2205.05198 (what lies in memory of scores).
        """
        rate = (self.machine.wide_flops_per_s or self.machine.flops_per_s) * self.practice.attention
        if self.execution.fused_attention:
            return attention.flops_per_token * self.tokens / self.layout.tp / rate
        scores = attention.heads * attention.length * self.tokens / self.layout.tp
        flops = 2 * scores * (attention.query_size + attention.value_size)
        traffic = scores * self.practice.score_bytes / self.memory_bytes_per_s
        return flops / rate * (1 + self.practice.misaligned * _count_halvings(attention.query_size)) + traffic

    def _time_elementwise(self, block: Block) -> Any:
        hidden: Any = self.work.hidden
        copies = block.experts.chosen * self.practice.routed if block.experts else 0.0
        whole = (self.practice.traffic + copies) / self.sequence_cut * hidden
        cut = self.practice.traffic_cut / self.layout.tp * (block.inner / 4)
        return ELEMENT_BYTES * self.tokens * (whole + cut) / self.memory_bytes_per_s

    def _price_tensor(self, compute: Any) -> Any:
        """Returns what the tensor axis' two sums of activations in each direction take."""
        seconds = 2 * self.directions * self._time("tp", "all_reduce", self.activation_bytes)
        return self.overlap(compute, seconds, self.execution.tensor_overlap)

    def overlap(self, compute: Any, communication: Any, is_beside: Numbers) -> Any:
        """Returns what communication adds to compute: all of it, or where it runs beside, what is not hidden."""
        return np.where(np.asarray(is_beside) > 0, expose(compute, communication, self.practice), communication)

    def _price_experts(self, block: Block, compute: Any) -> Any:
        """Returns what bringing tokens to experts and back takes: two all-to-alls in each direction."""
        experts = block.experts
        if experts is None:
            return 0.0
        copies = experts.chosen * self._find_crossing(experts.chosen)
        moved = self.activation_bytes * copies / self.sequence_cut * self.layout.ep
        seconds = 2 * self.directions * self._time("ep", "all_to_all", moved)
        return self.overlap(compute, seconds, self.execution.expert_overlap)

    def _find_crossing(self, chosen: Any) -> Any:
        """Returns which part of a token's copies crosses between nodes: all, or one for each node that it goes to.

        Of N nodes, c choices reach N·(1 − (1 − 1/N)^c) on average.

        Source: deepseek-ai/DeepEP, README (tokens go over the network once and over NVLink from there).
        """
        nodes = np.asarray(self.spans["ep"].outer.size, dtype=np.float64)
        once = nodes * (1 - (1 - 1 / nodes) ** chosen) / chosen
        return np.where((np.asarray(self.execution.dispatch_once) > 0) & (nodes > 1), once, 1.0)

    def _price_context(self, attention: Attention, seconds: Any) -> Any:
        """Returns what gathering keys and values takes; backward they are gathered again and their gradients summed."""
        pairs = ELEMENT_BYTES * self.tokens * attention.pair_elements * self.layout.cp / self.layout.tp
        moved = (self.directions + 1) * self._time("cp", "all_gather", pairs)
        return expose(3 * seconds, moved, self.practice)

    def _price_weights(self, block: Block, forward: Any, backward: Any) -> Any:
        """Returns what gathering sharded weights and scattering their gradients takes.

        Source: jax-ml/scaling-book, training.md, FSDP; Zhao et al., arXiv:2304.11277.
        """
        held = (block.dense_parameters + block.expert_parameters / self.layout.ep) / self.layout.tp
        gather = self._time("fsdp", "all_gather", held * self.execution.weight_bytes)
        scatter = self._time("fsdp", "reduce_scatter", held * self.execution.gradient_bytes)
        again = 0.0 if self.execution.weights_kept else gather
        return expose(forward, gather, self.practice) + expose(backward, again + scatter, self.practice)


def _count_halvings(size: Any) -> Any:
    """Returns how often 64 must be halved to divide a size: 0 for multiples of 64, 3 for 1,800, 6 for odd ones."""
    return 6 - np.log2(np.gcd(np.asarray(size, dtype=np.int64), 64))
