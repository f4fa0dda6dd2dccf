"""The computation of one training step of a transformer: its matmuls, its attention and its parameters, layer by layer.

Counts, of the whole model and of one sequence; no device, no time. Layers of the same kind are one block, so that a
model has one or two of them. `find_repeated` returns the share that a backward pass computes again; names of outputs
are MaxText's, with its `mlpwi` and `mlpwo` in words.

JAX drops operations that no gradient needs, so the last matmul of a layer that adds its result to the stream is never
repeated, and saving it gains nothing: of a step of 64B on 256 v5e with full remat, XLA's TPU compiler counts 2.005e15
FLOP a device, which is 6·parameters·tokens, the forward pass again without that matmul, and attention in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from meshwright.planning.tensors import LayerTensors, Part, Tensor, list_tensors
from meshwright.wire.model import ModelSpec

BLOCK: Final = 512
"""Queries, and keys, of a block of MaxText's attention on TPUs: sa_block_q and sa_block_kv in its base.yml."""

LANES: Final = 128
"""Elements that a TPU works on side by side: a smaller head takes as long (NUM_LANES in jax's splash_attention)."""

Output = Literal["qkv", "context", "attention_out", "mlp_in", "mlp_out"]
"""Queries, keys and values; attention's result; its projection; the feed-forward's first matmuls, and its last."""

Cut = Literal["outputs", "inputs", "tokens"]
"""What a tensor axis cuts of a matmul; tokens: not the weight, which each of its devices has."""


@dataclass(frozen=True)
class MatmulShape:
    """Tokens [M, inputs] × weight [inputs, outputs]."""

    inputs: int
    outputs: int
    cut: Cut

    @property
    def parameters(self) -> int:
        """Elements of the weight."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Experts:
    """A layer's mixture: `count` experts of the same matmuls, of which a token goes through `chosen`.

    Attributes:
        parameters: of all of them, with biases.
    """

    count: int
    chosen: int
    matmuls: tuple[MatmulShape, ...]
    parameters: int

    def limit(self, capacity_factor: float) -> float:
        """Returns a capacity factor with which an expert has no more places than there are tokens."""
        return min(capacity_factor, self.count / self.chosen)


@dataclass(frozen=True)
class Attention:
    """Scores and their sums: `heads` of `query_size` and `value_size` elements.

    Attributes:
        kv_elements: of keys and values that a token has, of all heads that have their own.
        kv_heads: how many those are; more parts of a tensor axis repeat them.
        context: keys that a query sees on average, of a causal sequence with the layers' windows.
        length: keys that a matrix of scores has for a query.
        blocks: keys that a query is multiplied with on average, where a kernel takes whole blocks of a window.
        index_flops: forward, of a token: the selection of the keys that are seen (DeepSeek-V3.2's indexer).
    """

    heads: int
    query_size: int
    value_size: int
    kv_elements: int
    kv_heads: int
    context: float
    length: float
    blocks: float
    index_flops: float = 0.0

    @property
    def flops_per_token(self) -> float:
        """Forward: scores and sums, each 2 FLOP a multiply-add."""
        return 2 * self.heads * (self.query_size + self.value_size) * self.context + self.index_flops

    @property
    def kernel_flops_per_token(self) -> float:
        """The same as a TPU's kernel runs it: with heads of `LANES` elements or more, and whole blocks of windows."""
        sizes = max(self.query_size, LANES) + max(self.value_size, LANES)
        return 2 * self.heads * sizes * self.blocks + self.index_flops


@dataclass(frozen=True)
class Block:
    """`count` layers of one kind.

    Attributes:
        other_parameters: of one layer: biases, norms, router.
        inner: elements that a token has between the matmuls of the feed-forward, for memory traffic.
    """

    count: int
    matmuls: tuple[MatmulShape, ...]
    attention: Attention
    experts: Experts | None
    other_parameters: int
    inner: int

    @property
    def dense_parameters(self) -> int:
        """Of one layer, without its experts."""
        return sum(matmul.parameters for matmul in self.matmuls) + self.other_parameters

    @property
    def expert_parameters(self) -> int:
        """Of one layer's experts."""
        return self.experts.parameters if self.experts else 0

    @property
    def expert_parameters_per_token(self) -> int:
        """Weights of routed experts' matmuls that a token goes through."""
        return self.experts.chosen * sum(matmul.parameters for matmul in self.experts.matmuls) if self.experts else 0

    @property
    def parameters_per_token(self) -> int:
        """Weights of matmuls that a token goes through."""
        return sum(matmul.parameters for matmul in self.matmuls) + self.expert_parameters_per_token

    @property
    def flops_per_token(self) -> float:
        """Forward: 2 FLOP a weight that a token goes through, and attention."""
        return 2 * self.parameters_per_token + self.attention.flops_per_token


@dataclass(frozen=True)
class Work:
    """A model at one sequence length.

    Attributes:
        is_parallel: attention and feed-forward block side by side.
        unrepeated: outputs whose matmuls the backward pass of full remat does not compute again: those that are added
            to the stream at a layer's end, unless they are normalized first, since no gradient needs them.
    """

    hidden: int
    vocabulary: int
    seq_len: int
    blocks: tuple[Block, ...]
    head: MatmulShape
    embedding_parameters: int
    is_tied: bool
    is_parallel: bool = False
    unrepeated: frozenset[Output] = frozenset({"mlp_out"})

    @property
    def has_experts(self) -> bool:
        """Whether a layer is a mixture of experts."""
        return any(block.experts for block in self.blocks)

    @property
    def layers(self) -> int:
        """All of them."""
        return sum(block.count for block in self.blocks)

    @property
    def parameters(self) -> int:
        """All that is trained, but for the norm behind all layers."""
        layers = sum(block.count * (block.dense_parameters + block.expert_parameters) for block in self.blocks)
        return layers + self.embedding_parameters + (0 if self.is_tied else self.head.parameters)

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs of forward and backward: 3 × forward, with causal attention and without recomputation."""
        return 3 * (sum(block.count * block.flops_per_token for block in self.blocks) + 2 * self.head.parameters)


def build_work(model: ModelSpec, seq_len: int) -> Work:
    """Returns the computation of a model on sequences of this number of tokens."""
    tensors = list_tensors(model)
    last: tuple[Output, ...] = ("mlp_out", "attention_out")
    return Work(
        hidden=model.hidden_size,
        vocabulary=model.vocab_size,
        seq_len=seq_len,
        blocks=tuple(_build_block(layer, seq_len) for layer in tensors.layers),
        head=MatmulShape(model.hidden_size, model.vocab_size, "outputs"),
        embedding_parameters=tensors.measure("embedding"),
        is_tied=model.tie_word_embeddings,
        is_parallel=model.use_parallel_residual,
        unrepeated=frozenset(last[: 0 if model.post_feedforward_norm else 1 + model.use_parallel_residual]),
    )


def _build_block(layer: LayerTensors, seq_len: int) -> Block:
    model, attention = layer.model, _build_attention(layer.model, seq_len)
    matmuls = tuple(_list_matmuls(layer, "attention", "mlp"))
    others = layer.measure("attention", "mlp", "norms", "router") - sum(matmul.parameters for matmul in matmuls)
    if not layer.has_experts:
        return Block(layer.count, matmuls, attention, None, others, model.intermediate_size)
    chosen = model.num_experts_per_tok or 0
    feed = tuple(_list_matmuls(layer, "experts"))
    experts = Experts(model.num_experts or 0, chosen, feed, layer.measure("experts"))
    return Block(layer.count, matmuls, attention, experts, others, chosen * model.expert_size + model.shared_size)


def _list_matmuls(layer: LayerTensors, *parts: Part) -> Iterator[MatmulShape]:
    """Yields the matmuls of a layer; matrices that follow each other and have the same input are multiplied at once."""
    rank = 3 if "experts" in parts else 2
    matrices = (tensor for tensor in layer.tensors if tensor.part in parts and len(tensor.shape) == rank)
    for (inputs, cut), joined in groupby(matrices, lambda tensor: (tensor.shape[-2], _find_cut(tensor))):
        yield MatmulShape(inputs, sum(tensor.shape[-1] for tensor in joined), cut)


def _find_cut(tensor: Tensor) -> Cut:
    rows, columns = tensor.roles[-2:]
    return "inputs" if "tensor" in rows else "outputs" if "tensor" in columns else "tokens"


def _build_attention(model: ModelSpec, length: int) -> Attention:
    """Returns the attention of a layer; contexts are the mean of all, as its FLOPs are linear in them."""
    whole = _count_keys(length, length)
    context, whole_blocks, index_flops = whole, 0.0, 0.0
    if model.index_topk and model.index_n_heads and model.index_head_dim:
        context = _count_keys(length, model.index_topk)
        index_flops = 2 * model.index_n_heads * model.index_head_dim * whole
    elif model.window is not None:
        share = model.window_layer_count / model.num_hidden_layers
        context = (1 - share) * whole + share * _count_window_keys(model, length)
        window = BLOCK * (1 + math.ceil((model.sliding_window or 0) / BLOCK))  # a block's own, and those before it
        whole_blocks = (1 - share) * whole + share * min(whole, window)
    size = model.value_size
    heads, own = (model.num_attention_heads, model.head_size) if model.is_latent else (model.kv_heads, size)
    pairs = heads * (own + size)
    blocks = max(context, whole_blocks)
    return Attention(
        model.num_attention_heads, model.head_size, size, pairs, heads, context, length, blocks, index_flops
    )


def _count_window_keys(model: ModelSpec, length: int) -> float:
    if model.sliding_window is not None:
        return _count_keys(length, model.sliding_window)
    chunk = min(model.attention_chunk_size or length, length)
    return _count_keys(chunk, chunk)


def _count_keys(length: int, most: int) -> float:
    """Returns the average number of keys that a token sees: all before it and itself, but no more than `most`."""
    ramp = min(most, length)
    return ramp - ramp * (ramp - 1) / (2 * length)


# ---- recomputation of the backward pass --------------------------------------------------------------------------


def find_repeated(work: Work) -> float:
    """Returns the share of a model's matmuls that the backward pass of full remat computes again: 0 to 1."""
    whole = sum(block.count * sum(_weigh(block).values()) for block in work.blocks)
    layers = ((block.count, _weigh(block).items()) for block in work.blocks)
    return sum(n * weight for n, held in layers for name, weight in held if name not in work.unrepeated) / whole


def _weigh(block: Block) -> dict[Output, int]:
    """Returns the parameters that a token goes through, by the output that they make."""
    ends = next(place for place, matmul in enumerate(block.matmuls) if matmul.cut == "inputs")
    feed = [(matmul, 1) for matmul in block.matmuls[ends + 1 :]]
    feed += [(matmul, block.experts.chosen) for matmul in block.experts.matmuls] if block.experts else []
    return {
        "qkv": sum(matmul.parameters for matmul in block.matmuls[:ends]),
        "attention_out": block.matmuls[ends].parameters,
        "mlp_in": sum(times * matmul.parameters for matmul, times in feed if matmul.cut == "outputs"),
        "mlp_out": sum(times * matmul.parameters for matmul, times in feed if matmul.cut == "inputs"),
    }
