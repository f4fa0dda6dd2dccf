"""What a step takes: the constants of XLA as JAX runs it, the time of each kind of layer, and their sum over the step.

Rule: times are in seconds of the slowest device. A constant that no datasheet has is fitted to measured runs, by
platform and family of chips, never by model or run: `constants.csv` beside this file has a row each, `intervals.csv`
how far runs that were left out were from what these say.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from meshwright.planning.cost.collectives import Operation
from meshwright.planning.cost.gemm import GemmCurve, matmul_seconds
from meshwright.planning.cost.layout import REMAT_FULL, REMAT_MINIMAL, Layout, Numbers
from meshwright.planning.cost.spans import Span, Spans
from meshwright.planning.cost.work import Attention, Block, Matmul, Work
from meshwright.topology.chips import read_table

DEFAULT: Final = "xla"
ANY: Final = ""
"""In the tables: every family of the platform, or every practice."""


@dataclass(frozen=True)
class Practice:
    """Constants of one framework on one chip; in the table each has its unit and where it comes from.

    Attributes:
        matmul: part of the curve's speed that matmuls reach in a step; the curve is of a matmul alone.
        narrow: part of that which matmuls in 8 or 4 bits reach.
        cast_bytes: memory traffic of bringing one element that such a matmul reads or writes to its dtype.
        misaligned: what a matmul takes more for each halving of 64 that its sizes are no multiple of.
        attention: part of the 16-bit peak that attention reaches, forward and backward together.
        score_bytes: memory traffic of one element of a matrix of scores, forward; for attention that is not fused.
        memory: part of the memory's peak bandwidth that elementwise work reaches.
        traffic: times that a token's hidden state goes to or from memory in a layer's forward pass, in places that a
            tensor axis does not cut.
        traffic_cut: the same in places that it does cut, in units of a quarter of the feed-forward's inner size.
        routed: times that the copies of a token for its experts go to or from memory in the forward pass.
        logits_bytes: memory traffic of one logit, forward and backward.
        optimizer_bytes: memory traffic of the optimizer for one parameter.
        launch_s: what starting a layer's forward kernels takes on the host; 0: compiled into one program.
        launch_expert_s: the same for each expert that a device holds.
        launch_backward: starting the backward kernels, in units of the forward ones.
        dispatch_s: of a layer of experts, forward: the host waits for how many tokens each expert gets.
        pass_s: of a pass through a pipeline's stage: its host waits for the neighbours.
        step_s: what a step takes beside all of this.
        tensor: part of a wire's calibrated rate that collectives inside a node or slice reach; above 1: parts of them
            run beside matmuls.
        network: the same between nodes or slices.
        partial: part of that which groups reach that have several devices of a node, but not all of them.
        tensor_latency_s, network_latency_s: of one collective, inside and between.
        hidden: how well communication that can run ahead hides behind compute: exponent p of
            (compute^p + communication^p)^(1/p); 1: not at all; large: wholly.
        exposed: part of that communication which is waited for all the same, however much compute there is.
        straggle: what a step takes more for each doubling of the nodes or slices that wait for each other.
        skew: which part of the last stage's extra work (head, loss) the pipeline waits for.
    """

    matmul: float = 0.9
    narrow: float = 1.0
    cast_bytes: float = 0.0
    misaligned: float = 0.0
    attention: float = 0.5
    score_bytes: float = 0.0
    memory: float = 0.8
    traffic: float = 8.0
    traffic_cut: float = 8.0
    routed: float = 6.0
    logits_bytes: float = 16.0
    optimizer_bytes: float = 30.0
    launch_s: float = 0.0
    launch_expert_s: float = 0.0
    launch_backward: float = 2.0
    dispatch_s: float = 0.0
    pass_s: float = 0.0
    step_s: float = 0.0
    tensor: float = 0.8
    network: float = 0.8
    partial: float = 1.0
    tensor_latency_s: float = 1e-5
    network_latency_s: float = 3e-5
    hidden: float = 4.0
    exposed: float = 0.0
    straggle: float = 0.0
    skew: float = 1.0


@dataclass(frozen=True)
class Constant:
    """One row of `constants.csv`: with an empty family for all of a platform; with one it replaces that."""

    practice: str
    platform: str
    name: str
    value: float
    unit: str
    source: str
    family: str = ANY


@dataclass(frozen=True)
class FoundPractice:
    """Constants, and whose they are.

    Attributes:
        practice: what formulas take.
        basis: "practice/platform" and, where the family has rows of its own, "/family".
        is_own: whether the practice that was asked for has rows for the platform.
    """

    practice: Practice
    basis: str
    is_own: bool


@dataclass(frozen=True)
class Spread:
    """One row of `intervals.csv`: measured ÷ predicted of left-out runs, as natural logarithms.

    Attributes:
        low, high: quantiles of 10 % and 90 %.
        rows: how many runs they are of.
    """

    platform: str
    low: float
    high: float
    rows: int
    source: str
    practice: str = ANY
    family: str = ANY


def find_practice(practice: str, platform: str, family: str = ANY) -> FoundPractice:
    """Returns the constants of a framework on a chip; those of `xla` on the platform where it has none there.

    Args:
        practice: the framework: "xla", "maxtext", "megatron-core", ….
        platform: "gpu" or "tpu".
        family: of the chip, as the chip table has it.

    Raises:
        ValueError: the table has nothing for the platform.
    """
    table = read_constants()
    for name in dict.fromkeys((practice, DEFAULT)):
        if shared := table.get((name, platform, ANY)):
            own = table.get((name, platform, family), {}) if family else {}
            basis = "/".join((name, platform, family) if own else (name, platform))
            return FoundPractice(replace(Practice(), **{**shared, **own}), basis, name == practice)
    raise ValueError(f"constants.csv has no practice for platform {platform!r}; platforms are 'gpu' and 'tpu'")


def interval(total_s: float, practice: str, platform: str, family: str = ANY) -> tuple[float, float]:
    """Returns bounds between which four of five steps lie that are predicted to take so long.

    Of the nearest kind of which runs were left out: practice and family, practice, family, platform.

    Args:
        total_s: predicted seconds.
        practice, platform, family: as in `find_practice`.

    Raises:
        ValueError: the table has nothing for the platform.
    """
    spread = find_spread(practice, platform, family)
    return total_s * float(np.exp(spread.low)), total_s * float(np.exp(spread.high))


def find_spread(practice: str, platform: str, family: str = ANY) -> Spread:
    """Returns the row that `interval` takes.

    Raises:
        ValueError: the table has nothing for the platform.
    """
    table = read_spreads()
    for key in ((practice, family), (practice, ANY), (ANY, family), (ANY, ANY)):
        if found := table.get((key[0], platform, key[1])):
            return found
    raise ValueError(f"intervals.csv has no row for platform {platform!r}; platforms are 'gpu' and 'tpu'")


@functools.cache
def read_constants() -> Mapping[tuple[str, str, str], Mapping[str, float]]:
    """Returns the values by practice, platform and family."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in read_table("meshwright.planning.cost", "constants.csv", Constant):
        found.setdefault((row.practice, row.platform, row.family), {})[row.name] = row.value
    return found


@functools.cache
def read_spreads() -> Mapping[tuple[str, str, str], Spread]:
    """Returns the rows of `intervals.csv` by practice, platform and family."""
    rows = read_table("meshwright.planning.cost", "intervals.csv", Spread)
    return {(row.practice, row.platform, row.family): row for row in rows}


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
