"""The memory of a training step on the fullest device, part by part.

State (weights, gradients, optimizer) is exact: parameters × bytes, over the axes that cut them. Saved activations are
layers × tokens × elements, times the micro-batches of a pipeline; the tensors that the backward pass needs are counted
(`kept.csv`: elements a token, by remat). The working memory of one layer's backward pass, logits, and gathered weights
are added. Each counts once, since layers run one after the other.

The remaining parts depend on a few constants (`memory.csv`), fitted or from a source, by platform, never by model or
run. Figures, or arrays over candidates that broadcast with the layout's.

Sources: Rajbhandari et al., arXiv:1910.02054 (ZeRO's stages); Korthikanti et al., arXiv:2205.05198 (activations of a
layer); meshwright's own step as jax traces it (`kept.csv`).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np

from meshwright.planning.cost.collectives import Numbers
from meshwright.planning.cost.spans import REMATS, Layout
from meshwright.planning.cost.step_time import Execution
from meshwright.planning.cost.work import Block, Work
from meshwright.planning.parallelism import list_divisors
from meshwright.topology.chips import Chip, read_cells
from meshwright.wire.model import ModelSpec, TrainingSpec, WeightDtype

PartBytes = dict[str, Any]
"""Bytes of a device by purpose; each a figure, or one a candidate. They add up to all of its memory.

- parameters, gradients, optimizer: the state.
- activations: saved from the forward to the backward pass, of all layers and micro-batches in flight.
- layer: further memory of the layer whose backward pass runs, recomputed or about to be sent.
- attention: scores that are held as a whole.
- dispatch: tokens at their places in experts, of the layer whose backward pass runs.
- logits: of the batch or of the piece of it whose loss is computed.
- gathered: weights that are whole for their use, and gradients that are not yet scattered.
"""

StagePosition = Literal["first", "inner", "last"]
"""Of a pipeline's stages: their layers differ where dense ones come before mixtures of experts."""


@dataclass(frozen=True)
class StepMemory:
    """The bytes of a step, part by part.

    Attributes:
        work: the model at its sequence length.
        layout: axes, micro-batches, remat.
        capacity_factor: places in an expert ÷ tokens that it gets on average.
        whole_parameters: of the embedding, those that no axis cuts.
        is_in_order: blocks follow each other, as dense layers before mixtures of experts; False: they alternate.
    """

    work: Work
    layout: Layout
    constants: MemoryConstants
    execution: Execution = field(default_factory=Execution)
    capacity_factor: float = 1.25
    whole_parameters: Numbers = 0
    is_in_order: bool = True

    @classmethod
    def of(cls, work: Work, layout: Layout, model: ModelSpec, training: TrainingSpec, chip: Chip) -> StepMemory:
        """Returns that of our own step, in which each device has learned positions as a whole."""
        learned = (model.max_position_embeddings or 0) * model.hidden_size if model.positions == "learned" else 0
        # a few dense layers come before the mixtures (DeepSeek-V3); as many or more alternate with them (Llama 4)
        is_in_order = not (model.has_two_head_sizes or 0 < model.expert_layer_count <= model.dense_layer_count)
        constants, execution = read_memory_constants()[chip.platform], build_execution(model, training, chip)
        return cls(work, layout, constants, execution, training.capacity_factor, learned, is_in_order)

    def price(self) -> PartBytes:
        """Returns the bytes of the fullest device."""
        stages = tuple(map(self.price_stage, get_args(StagePosition)))
        totals = np.stack(np.broadcast_arrays(*(np.asarray(sum(stage.values()), float) for stage in stages)))
        fullest = totals.argmax(axis=0)
        return {name: np.choose(fullest, [stage[name] for stage in stages]) for name in stages[0]}

    @property
    def _tokens(self) -> Any:
        return self.layout.micro_batch_size * (self.work.seq_len / self.layout.cp)

    def price_stage(self, position: StagePosition) -> PartBytes:
        """Returns the parts of one kind of stage."""
        layers = self._count_layers(position)
        work, held = self.work, list(zip(self.work.blocks, layers, strict=True))
        dense = sum(count * block.dense_parameters for block, count in held)
        experts = sum(count * block.expert_parameters for block, count in held)
        # embedding and head are outside a pipeline's loop: all stages have them
        ends = work.embedding_parameters + (0 if work.is_tied else work.head.parameters)
        parameters = self._count_held(dense + ends, experts)
        # of several passes, or runs of a pipeline's loop, gradients are accumulated
        passes = np.where(
            np.asarray(self.layout.pp) > 1, self.layout.pipeline_runs, self.layout.gradient_accumulation_steps
        )
        again = np.where(passes > 1, self.constants.accumulated, 0.0)
        kept = sum(count * elements for count, elements in zip(layers, self._kept, strict=True))
        # A stage saves those of all micro-batches of a run, since JAX differentiates a pipeline's loop as a whole.
        # Source: MaxText, docs, guide on sharding (GPipe and circular pipelines; no 1F1B).
        in_flight = self.layout.micro_batches_at_once
        return {
            "parameters": parameters * self.execution.weight_bytes,
            "gradients": parameters * self.execution.weight_bytes * (1 + again),
            "optimizer": parameters * self.layout.optimizer_bytes,
            "activations": self.execution.value_bytes * self._tokens * kept * in_flight,
            **self._layer,
            "attention": self._attention,
            "logits": self._logits,
            "gathered": self._count_gathered(dense, experts),
        }

    # ---- stages ----------------------------------------------------------------------------------------

    def _count_layers(self, position: StagePosition) -> list[Any]:
        """Returns the number of layers of each block on one of the fullest stages."""
        whole, stages = self.work.layers, np.asarray(self.layout.pp)
        held = np.ceil(whole / stages)
        counts = [block.count for block in self.work.blocks]
        if not self.is_in_order:
            return [held / whole * count for count in counts]
        begin = {"first": 0.0 * held, "inner": np.where(stages > 2, held, 0.0), "last": whole - held}[position]
        before = np.cumsum([0, *counts[:-1]])
        ends = zip(before, counts, strict=True)
        return [np.clip(np.minimum(begin + held, at + n) - np.maximum(begin, at), 0, n) for at, n in ends]

    # ---- state -----------------------------------------------------------------------------------------

    def _count_held(self, dense: Any, experts: Any) -> Any:
        """Returns the parameters that a device has between their uses."""
        dense_parts, expert_parts = self.layout.cut_weights(self.work.hidden)
        whole = np.minimum(self.whole_parameters, dense)
        held = (dense - whole) / dense_parts + experts / expert_parts / self.layout.ep
        return held / self.layout.tp + whole

    def _count_gathered(self, dense: Any, experts: Any) -> Any:
        """Returns the bytes of weights that are whole at a time: gathered once, a stage's, with their gradients."""
        size, ep = self.execution.value_bytes, self.layout.ep
        stage = 2 * size * (dense + experts / ep) / self.layout.tp
        layers = [block.dense_parameters + block.expert_parameters / ep for block in self.work.blocks]
        running = self.constants.gathered * size * _find_largest([each / self.layout.tp for each in layers])
        is_cut = self.layout.cut_weights(self.work.hidden)[0] > 1
        return is_cut * np.where(self.layout.gathers_once, stage, running)

    # ---- activations -----------------------------------------------------------------------------------

    @functools.cached_property
    def _kept(self) -> list[Any]:
        """Elements a token that a layer of each block keeps, by remat."""
        remat = np.asarray(self.layout.remat)
        by_remat = [(code, self._count(name)) for code, name in enumerate(REMATS) if np.any(remat == code)]
        blocks = range(len(self.work.blocks))
        return [sum(np.where(remat == code, counts[at], 0.0) for code, counts in by_remat) for at in blocks]

    @functools.cached_property
    def _counts(self) -> list[dict[str, Any]]:
        work, layout, places = self.work, self.layout, self.capacity_factor
        return [list_counts(block, work, layout, self.execution, places) for block in work.blocks]

    def _count(self, remat: str, leave_out: Collection[str] = ()) -> list[Any]:
        """Returns the elements a token that a layer of each block holds, but for some counts."""
        chosen = {n: f for n, f in self.constants.kept.get(remat, {}).items() if n not in leave_out}
        return [sum((factor * each[name] for name, factor in chosen.items()), 0.0) for each in self._counts]

    # ---- memory while one layer runs -----------------------------------------------------------------

    @functools.cached_property
    def _layer(self) -> PartBytes:
        """The running layer, and its tokens at their places in experts."""
        size = self.execution.value_bytes * self._tokens * self.constants.layer  # of one element a token
        left_out = {"layer": EXPERT_COUNTS, "dispatch": set(self._counts[0]) - set(EXPERT_COUNTS)}
        return {name: size * _find_largest(self._count("layer", leave_out=each)) for name, each in left_out.items()}

    @functools.cached_property
    def _attention(self) -> Any:
        if self.execution.fused_attention:
            return 0.0
        length, layout = self.work.seq_len, self.layout
        heads = max(block.attention.heads for block in self.work.blocks)
        return layout.micro_batch_size * heads / layout.tp * (length / layout.cp) * length * self.constants.score_bytes

    @functools.cached_property
    def _logits(self) -> Any:
        """Of a piece of each sequence; behind a pipeline of the whole batch, laid over its stages."""
        tokens, stages = self._tokens, np.asarray(self.layout.pp)
        batch = tokens * self.layout.micro_batches_at_once / stages
        if self.constants.piece_tokens:
            tokens = tokens / count_pieces(self.work.seq_len / self.layout.cp, self.constants.piece_tokens)
        tokens = np.where(stages > 1, batch, tokens)
        return self.constants.logits_bytes * tokens * self.work.vocabulary / self.layout.tp


def _find_largest(counts: list[Any]) -> Any:
    return functools.reduce(np.maximum, counts)


def count_pieces(length: Any, most: float) -> Any:
    """Returns the least number of equal pieces of a sequence with at most `most` tokens each; at worst one per
    token."""
    whole, back = np.unique(np.asarray(np.maximum(np.floor(length), 1), dtype=np.int64), return_inverse=True)
    found = [next(count for count in list_divisors(size) if count * most >= size) for size in whole.tolist()]
    return np.asarray(found)[back].reshape(np.shape(length))


# ---- state ----------------------------------------------------------------------------------------------------------


DTYPE_BYTES: Final[Mapping[WeightDtype, int]] = {"float32": 4, "bfloat16": 2}


def count_optimizer_bytes(training: TrainingSpec) -> int:
    """Returns the bytes of the optimizer's state of one parameter."""
    return sum(map(DTYPE_BYTES.__getitem__, read_moments(training)))


def read_moments(training: TrainingSpec) -> tuple[WeightDtype, ...]:
    """Returns the dtypes of the optimizer's moments: two for AdamW, otherwise empty."""
    if training.optimizer != "adamw":
        return ()
    asked = (training.first_moment_dtype, training.second_moment_dtype)
    return tuple(dtype or training.weight_dtype for dtype in asked)


def build_execution(model: ModelSpec, training: TrainingSpec, chip: Chip) -> Execution:
    """Returns how our own step goes: weights and gradients are sent in the compute dtype. cuDNN has flash attention
    since Ampere, the first with bfloat16."""
    return Execution(
        fused_attention=training.attention == "flash" and chip.dtype == "bfloat16",
        value_bytes=4.0 if training.compute_dtype == "float32" else 2.0,
        weight_bytes=DTYPE_BYTES[training.weight_dtype],
        capacity_factor=read_capacity_factor(model, training),
    )


def read_capacity_factor(model: ModelSpec, training: TrainingSpec) -> float | None:
    """Returns the capacity factor of experts; None: no token is dropped.

    Experts of Llama 4, whose attention has chunks, and beside attention sinks (gpt-oss) have no capacity in MaxText.
    """
    is_dropless = model.attention_sinks or model.attention_chunk_size is not None
    return None if is_dropless else training.capacity_factor


# ---- saved activations of a layer -----------------------------------------------------------------------------------


EXPERT_COUNTS: Final = ("place", "place_inner", "place_outputs", "returned")
"""Counts that a mixture of experts has: tokens at their places in experts, and on their way back."""


@dataclass(frozen=True)
class MemoryConstants:
    """The memory of our own step besides its state. Constants of `memory.csv`, counts of `kept.csv`.

    Attributes:
        layer: memory of the layer whose backward pass runs, in multiples of its activations.
        gathered: layers whose weights are whole at a time, where fsdp cuts them.
        logits_bytes: held for one logit, until its gradient is computed.
        piece_tokens: positions of a sequence whose logits exist at a time; 0: all.
        score_bytes: held for one score of the layer whose backward pass runs, where attention is not fused.
        accumulated: gradients that are held a second time with gradient accumulation.
        kept: remat → count → elements per token, see `list_counts`; "layer": of the layer whose backward pass runs.
    """

    layer: float = 1.0
    gathered: float = 2.0
    logits_bytes: float = 4.0
    piece_tokens: float = 0.0
    score_bytes: float = 0.0
    accumulated: float = 0.0
    kept: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@functools.cache
def read_memory_constants() -> Mapping[str, MemoryConstants]:
    """Returns the memory constants of our own step, by platform."""
    kept: dict[str, dict[str, float]] = {}
    for row in read_cells("meshwright.planning.cost", "kept.csv"):
        kept.setdefault(row["remat"], {})[row["count"]] = float(row["elements"])
    values: dict[str, dict[str, Any]] = {}
    for row in read_cells("meshwright.planning.cost", "memory.csv"):
        values.setdefault(row["platform"], {"kept": kept})[row["name"]] = float(row["value"])
    return {platform: MemoryConstants(**found) for platform, found in values.items()}


def list_counts(
    block: Block, work: Work, layout: Layout, execution: Execution, capacity_factor: float
) -> dict[str, Any]:
    """Returns the elements a token, on one device, of each kind of tensor of a layer.

    Source: Korthikanti et al., arXiv:2205.05198, section 4 (the parts that the tensor axis divides, and the sequence
    with it).
    """
    tp, attention = layout.tp, block.attention
    kv = attention.kv_elements / np.minimum(tp, attention.kv_heads)
    return {
        "residual": work.hidden / tp,
        "gathered": work.hidden,
        "query": attention.heads * attention.query_size / tp,
        "context": attention.heads * attention.value_size / tp,
        "fused_context": attention.heads * attention.value_size / tp if execution.fused_attention else 0.0,
        "kv": kv,
        "all_kv": kv * layout.cp,
        "sums": attention.heads / tp,
        "scores": 0.0 if execution.fused_attention else attention.heads * work.seq_len / tp,
        "narrow": sum(matmul.outputs for matmul in block.matmuls if matmul.cut == "tokens"),
        "outputs": sum(matmul.outputs for matmul in block.matmuls if matmul.cut == "outputs") / tp,
        "inputs": sum(matmul.inputs for matmul in block.matmuls if matmul.cut == "inputs") / tp,
        "inner": (block.inner - _count_expert_inner(block)) / tp,
        **_list_expert_counts(block, work, layout, capacity_factor),
    }


def _list_expert_counts(block: Block, work: Work, layout: Layout, capacity_factor: float) -> dict[str, Any]:
    if block.experts is None:
        return dict.fromkeys(EXPERT_COUNTS, 0.0)
    capacity_factor = block.experts.limit(capacity_factor)
    places = block.experts.chosen * capacity_factor
    return {
        "place": places * work.hidden,
        "place_inner": capacity_factor * _count_expert_inner(block) / layout.tp,
        "place_outputs": places * block.experts.matmuls[0].outputs / layout.tp,
        "returned": block.experts.chosen * work.hidden,
    }


def _count_expert_inner(block: Block) -> int:
    """Returns the elements that a token has inside its routed experts."""
    return block.experts.chosen * block.experts.matmuls[-1].inputs if block.experts else 0
