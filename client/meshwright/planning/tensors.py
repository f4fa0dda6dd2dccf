"""A model as the tensors that it trains: their names, shapes, and the kind of axes that cuts each dimension.

Parameter counts, matmuls, exports and the compiled step all read this one list. It counts every bias and every norm,
and nothing twice: a tied head is the embedding. It is independent of presets and devices.

Left out: a correction of the router's scores that no gradient trains (DeepSeek-V3: [E] a layer), modules that predict
further tokens, and the norms that Gemma 4 has around its experts ([4·hidden] a layer).

Source: the counts published with the checkpoints in `models.csv`, which these tensors match exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.planning.parallelism import Axes, MeshAxes, Role
from meshwright.wire.model import ModelSpec

Part = Literal["embedding", "head", "attention", "norms", "mlp", "router", "experts"]
"""The purpose of a tensor; mlp: a block that every token uses, a dense block or the shared experts."""


@dataclass(frozen=True)
class Tensor:
    """One trained tensor.

    Attributes:
        shape: of the whole.
        roles: for each dimension the roles of the axes that cut it. fsdp: where FSDP shards weights, which are
            gathered for their use.
    """

    name: str
    part: Part
    shape: tuple[int, ...]
    roles: tuple[tuple[Role, ...], ...]

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def place(self, axes: MeshAxes) -> tuple[tuple[Axes, ...], tuple[Axes, ...]]:
        """Returns for each dimension the axes that it lies over: between its uses, and in a matmul."""
        used = tuple(
            axes.expert if "expert" in roles else axes.take_tensor(size) if "tensor" in roles else ()
            for size, roles in zip(self.shape, self.roles, strict=True)
        )
        place = next((at for at, roles in enumerate(self.roles) if "fsdp" in roles), None)
        if place is None:
            return used, used
        if self.part == "experts" and not axes.tensor and self.shape[1] % axes.measure(axes.find("fsdp")) == 0:
            place = 1
        others = tuple(name for dimension in used for name in dimension)
        sharded = axes.shard_weights(self.shape[place] // axes.measure(used[place]), without=others)
        stored = tuple((*names, *sharded) if at == place else names for at, names in enumerate(used))
        return stored, used


@dataclass(frozen=True)
class LayerTensors:
    """`count` layers that have the same tensors.

    Attributes:
        model: with these layers alone, if others have heads of another size.
        tensors: of one layer.
        has_experts: whether its feed-forward block is a mixture of experts.
    """

    model: ModelSpec
    count: int
    tensors: tuple[Tensor, ...]
    has_experts: bool

    def measure(self, *parts: Part) -> int:
        """Returns the elements of one layer, of these parts."""
        return sum(tensor.size for tensor in self.tensors if tensor.part in parts)


@dataclass(frozen=True)
class ModelTensors:
    """All tensors of a model.

    Attributes:
        outer: outside the layers.
        layers: dense ones, then those with experts; or those with a window, then the others; only kinds that the model
            has.
    """

    outer: tuple[Tensor, ...]
    layers: tuple[LayerTensors, ...]

    def measure(self, *parts: Part) -> int:
        """Returns the elements of these parts in the whole model."""
        outer = sum(tensor.size for tensor in self.outer if tensor.part in parts)
        return outer + sum(layer.count * layer.measure(*parts) for layer in self.layers)


def count_parameters(model: ModelSpec) -> int:
    """Returns how many parameters a model has."""
    return list_tensors(model).measure(*get_args(Part))


def list_tensors(model: ModelSpec) -> ModelTensors:
    """Returns the tensors of a model."""
    kinds = (kind for part in _split_layers(model) for kind in _list_kinds(part))
    return ModelTensors(tuple(_list_outer(model)), tuple(kind for kind in kinds if kind.count))


def _split_layers(model: ModelSpec) -> tuple[ModelSpec, ...]:
    """Returns the model; or one of its layers with a window and one of the others, whose heads have other sizes."""
    if not model.has_two_head_sizes:
        return (model,)
    count = model.window_layer_count
    one_size = {"global_head_dim": None, "num_window_layers": None}
    windows = {**one_size, "num_hidden_layers": count, "num_global_key_value_heads": None}
    others = {
        **one_size,
        "num_hidden_layers": model.num_hidden_layers - count,
        "sliding_window": None,
        "head_dim": model.global_head_dim or model.head_size,
        "num_key_value_heads": model.num_global_key_value_heads or model.kv_heads,
    }
    return model.model_copy(update=windows), model.model_copy(update=others)


def _list_kinds(model: ModelSpec) -> tuple[LayerTensors, LayerTensors]:
    shared = (*_list_layer_norms(model), *_list_attention(model))
    return (
        LayerTensors(model, model.dense_layer_count, (*shared, *_list_dense_block(model)), has_experts=False),
        LayerTensors(model, model.expert_layer_count, (*shared, *_list_expert_block(model)), has_experts=True),
    )


def _list_outer(model: ModelSpec) -> Iterator[Tensor]:
    hidden, vocabulary = model.hidden_size, model.vocab_size
    # Columns of the table are split: a look-up of rows on other devices would gather all of it.
    yield Tensor("embedding", "embedding", (vocabulary, hidden), ((), ("tensor", "fsdp")))
    if model.positions == "learned":
        yield _whole("positions", "embedding", model.max_position_embeddings or 0, hidden)
    if not model.tie_word_embeddings:
        yield _into("head", "head", hidden, vocabulary)
    yield from _list_norm(model, "final_norm")


def _list_layer_norms(model: ModelSpec) -> Iterator[Tensor]:
    names = {
        "attention_norm": model.pre_norms,
        "mlp_norm": model.pre_norms,
        "post_attention_norm": model.post_attention_norm,
        "post_feedforward_norm": model.post_feedforward_norm,
    }
    for name, is_there in names.items():
        if is_there:
            yield from _list_norm(model, name)


def _list_norm(model: ModelSpec, name: str) -> Iterator[Tensor]:
    yield _whole(name, "norms", model.hidden_size)
    if model.norm == "layernorm":
        yield _whole(f"{name}_bias", "norms", model.hidden_size)


# ---- attention ------------------------------------------------------------------------------------------------------


def _list_attention(model: ModelSpec) -> Iterator[Tensor]:
    hidden, heads = model.hidden_size, model.num_attention_heads
    yield from _list_latent(model) if model.is_latent else _list_heads(model)
    if model.qk_norm and model.qk_norm_scale != "none":
        queries, keys = (1, 1) if model.qk_norm_scale == "head" else (heads, model.kv_heads)
        yield _whole("query_norm", "norms", queries * model.head_size)
        yield _whole("key_norm", "norms", keys * model.head_size)
    yield _out_of("output", "attention", heads * model.value_size, hidden)
    if model.attention_output_bias and not model.is_latent:
        yield _whole("output_bias", "attention", hidden)
    if model.attention_sinks:
        yield Tensor("sinks", "attention", (heads,), (("tensor",),))


def _list_heads(model: ModelSpec) -> Iterator[Tensor]:
    heads = {"query": model.num_attention_heads, "key": model.kv_heads}
    if model.num_global_key_value_heads is None:
        heads["value"] = model.kv_heads
    for name, count in heads.items():
        yield _into(name, "attention", model.hidden_size, count * model.head_size)
        if model.attention_bias:
            yield Tensor(f"{name}_bias", "attention", (count * model.head_size,), (("tensor",),))


def _list_latent(model: ModelSpec) -> Iterator[Tensor]:
    """Yields narrow matrices of DeepSeek-V2 (arXiv:2405.04434), and the indexer of DeepSeek-V3.2."""
    hidden, heads, narrow = model.hidden_size, model.num_attention_heads, model.q_lora_rank
    rank, rotary = model.kv_lora_rank or 0, model.qk_rope_head_dim or 0
    queries = heads * model.head_size
    if narrow is None:
        yield _into("query", "attention", hidden, queries)
    else:
        yield _sharded("query_down", "attention", hidden, narrow)
        yield _whole("query_down_norm", "norms", narrow)
        yield Tensor("query_up", "attention", (narrow, queries), ((), ("tensor",)))
    yield _sharded("kv_down", "attention", hidden, rank + rotary)
    yield _whole("kv_down_norm", "norms", rank)
    pairs = heads * ((model.qk_nope_head_dim or 0) + model.value_size)
    yield Tensor("kv_up", "attention", (rank, pairs), ((), ("tensor",)))
    if model.index_n_heads and model.index_head_dim:
        size = model.index_head_dim
        yield _whole("index_query", "attention", narrow or 0, model.index_n_heads * size)
        yield _sharded("index_key", "attention", hidden, size)
        yield _sharded("index_weights", "attention", hidden, model.index_n_heads)
        yield _whole("index_norm", "norms", size)
        yield _whole("index_norm_bias", "norms", size)


# ---- feed-forward ---------------------------------------------------------------------------------------------------


def _list_dense_block(model: ModelSpec) -> Iterator[Tensor]:
    hidden, inner = model.hidden_size, model.intermediate_size
    yield from _list_matrices(model, "", inner)
    if model.mlp_bias:
        for name in _list_inputs(model):
            yield Tensor(f"{name}_bias", "mlp", (inner,), (("tensor",),))
        yield _whole("down_bias", "mlp", hidden)


def _list_expert_block(model: ModelSpec) -> Iterator[Tensor]:
    hidden, inner, experts = model.hidden_size, model.expert_size, model.num_experts or 1
    yield _sharded("router", "router", hidden, experts)
    if model.router_bias:
        yield _whole("router_bias", "router", experts)
    if model.shared_expert_gate:
        yield _whole("shared_expert_gate", "router", hidden)
    for name in _list_inputs(model):
        yield Tensor(name, "experts", (experts, hidden, inner), (("expert",), ("fsdp",), ("tensor",)))
    yield Tensor("down", "experts", (experts, inner, hidden), (("expert",), ("tensor",), ("fsdp",)))
    if model.expert_bias:
        for name in _list_inputs(model):
            yield Tensor(f"{name}_bias", "experts", (experts, inner), (("expert",), ("tensor",)))
        yield Tensor("down_bias", "experts", (experts, hidden), (("expert",), ()))
    if model.num_shared_experts:
        yield from _list_matrices(model, "shared_", model.shared_size)


def _list_matrices(model: ModelSpec, prefix: str, inner: int) -> Iterator[Tensor]:
    for name in _list_inputs(model):
        yield _into(f"{prefix}{name}", "mlp", model.hidden_size, inner)
    yield _out_of(f"{prefix}down", "mlp", inner, model.hidden_size)


def _list_inputs(model: ModelSpec) -> tuple[str, ...]:
    return ("gate", "up") if model.gated else ("up",)


# ---- kinds of tensors -----------------------------------------------------------------------------------------------


def _into(name: str, part: Part, hidden: int, columns: int) -> Tensor:
    """Returns a matrix whose columns are cut by tensor axes."""
    return Tensor(name, part, (hidden, columns), (("fsdp",), ("tensor",)))


def _out_of(name: str, part: Part, rows: int, hidden: int) -> Tensor:
    """Returns a matrix whose rows are cut by tensor axes."""
    return Tensor(name, part, (rows, hidden), (("tensor",), ("fsdp",)))


def _sharded(name: str, part: Part, hidden: int, columns: int) -> Tensor:
    """Returns a matrix that tensor axes leave whole."""
    return Tensor(name, part, (hidden, columns), (("fsdp",), ()))


def _whole(name: str, part: Part, *shape: int) -> Tensor:
    """Returns a tensor that every device has whole."""
    return Tensor(name, part, shape, tuple(() for _ in shape))
