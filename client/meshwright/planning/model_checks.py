"""Whether the dimensions of a model fit together.

Rule: each check yields the field that is wrong, the rule, and what works; all that is wrong is told at once. Knows no
config.json and no preset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from meshwright.planning.parallelism import choose_near, list_divisors, write_values
from meshwright.wire.model import ModelSpec

Contradiction = tuple[str, str, str]
"""A field, what is wrong with it, and a value that works."""


def find_contradictions(model: ModelSpec) -> Iterator[Contradiction]:
    """Yields what does not fit together in a model that is well formed."""
    yield from _check_latent(model) if model.is_latent else _check_heads(model)
    yield from _check_indexer(model)
    yield from _check_windows(model)
    yield from _check_experts(model, model.num_experts) if model.num_experts else _check_dense(model)
    if model.positions == "learned" and model.max_position_embeddings is None:
        message = "is missing; learned positions need a vector for each position of the longest sequence"
        yield "max_position_embeddings", message, "set it to the longest sequence, such as 2048"


def _list_given(model: ModelSpec, names: tuple[str, ...]) -> list[str]:
    """Returns those of these fields that are not as they are by default."""
    return [name for name in names if getattr(model, name) != ModelSpec.model_fields[name].default]


# ---- attention ------------------------------------------------------------------------------------------------------

_OF_LATENT: Final = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_NOT_OF_LATENT: Final = ("head_dim", "attention_bias", "attention_output_bias", "qk_norm")
_OF_INDEXER: Final = ("index_topk", "index_n_heads", "index_head_dim")


def _check_heads(model: ModelSpec) -> Iterator[Contradiction]:
    heads, pairs, hidden = model.num_attention_heads, model.kv_heads, model.hidden_size
    if heads % pairs:
        message = f"{pairs} does not divide num_attention_heads {heads}; as many query heads share each KV head"
        yield "num_key_value_heads", message, f"use {write_values(choose_near(list_divisors(heads), pairs))}"
    if model.head_dim is None and hidden % heads:
        message = f"is missing, and num_attention_heads {heads} does not divide hidden_size {hidden}"
        near = choose_near([divisor for divisor in list_divisors(hidden) if hidden // divisor % 2 == 0], heads)
        works = f"give head_dim, such as {max(hidden // heads // 2 * 2, 2)}"
        yield "head_dim", message, f"{works}, or num_attention_heads {write_values(near)}" if near else works
    elif model.positions == "rope" and model.head_size % 2:
        message = f"is {model.head_size}; rotary positions turn pairs of elements, so it is even"
        yield "head_dim", message, f"set it to {model.head_size + 1}"
    for name in _list_given(model, ("q_lora_rank", *_OF_LATENT)):
        message = f"is {getattr(model, name)}, but kv_lora_rank is missing; only latent attention has it"
        yield name, message, f"leave out {name}, or give kv_lora_rank, such as 512"


def _check_latent(model: ModelSpec) -> Iterator[Contradiction]:
    for name in _OF_LATENT:
        if getattr(model, name) is None:
            yield name, "is missing; latent attention (kv_lora_rank) has it", "set it to 64 or 128"
    if (model.qk_rope_head_dim or 0) % 2:
        message = f"is {model.qk_rope_head_dim}; rotary positions turn pairs of elements, so it is even"
        yield "qk_rope_head_dim", message, f"set it to {(model.qk_rope_head_dim or 0) + 1}"
    if model.kv_heads != model.num_attention_heads:
        message = f"is {model.kv_heads}, but in latent attention each of {model.num_attention_heads} heads has its own"
        yield "num_key_value_heads", message, "leave it out"
    for name in _list_given(model, _NOT_OF_LATENT):
        message = "is given, but latent attention (kv_lora_rank) has none in this model"
        yield name, message, f"leave out {name}"


def _check_indexer(model: ModelSpec) -> Iterator[Contradiction]:
    given = _list_given(model, _OF_INDEXER)
    if not given:
        return
    for name in _OF_INDEXER:
        if name not in given:
            yield name, f"is missing; an indexer ({given[0]}) has it", "set it to 64 or more"
    for name in ("q_lora_rank", "kv_lora_rank"):
        if getattr(model, name) is None:
            message = f"is missing; the indexer ({given[0]}) reads the narrow queries of latent attention"
            yield name, message, f"set it to 512, or leave out {', '.join(given)}"


def _check_windows(model: ModelSpec) -> Iterator[Contradiction]:
    if model.sliding_window is not None and model.attention_chunk_size is not None:
        message = f"is {model.attention_chunk_size}, and sliding_window is {model.sliding_window}; a layer has one"
        yield "attention_chunk_size", message, "leave out one of them"
    if model.window is None:
        for name in _list_given(model, ("sliding_window_pattern", "max_window_layers")):
            message = f"is {getattr(model, name)}, but sliding_window is missing; it says which layers have windows"
            yield name, message, f"leave out {name}, or give sliding_window, such as 4096"


# ---- experts --------------------------------------------------------------------------------------------------------

_OF_EXPERTS: Final = (
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_shared_experts",
    "shared_expert_intermediate_size",
    "shared_expert_gate",
    "expert_bias",
    "router_bias",
    "first_k_dense_replace",
    "decoder_sparse_step",
)
_OF_SHARED: Final = ("shared_expert_intermediate_size", "shared_expert_gate")


def _check_dense(model: ModelSpec) -> Iterator[Contradiction]:
    for name in _list_given(model, _OF_EXPERTS):
        said = str(getattr(model, name)).replace("True", "true")
        message = f"is {said}, but num_experts is missing; only a mixture of experts has it"
        yield name, message, f"leave out {name}, or give num_experts, such as 8"


def _check_experts(model: ModelSpec, experts: int) -> Iterator[Contradiction]:
    chosen = model.num_experts_per_tok
    if chosen is None:
        message = f"is missing; with num_experts {experts} it says how many of them a token goes through"
        yield "num_experts_per_tok", message, f"set it to {min(2, experts)}"
    elif chosen > experts:
        message = f"{chosen} is more than num_experts {experts}; a token goes to each expert at most once"
        yield "num_experts_per_tok", message, f"use {experts} or less"
    if model.mlp_bias:
        message = "is set, but in a mixture of experts dense layers have no biases here, and experts have expert_bias"
        yield "mlp_bias", message, "set it to false"
    for name in _list_given(model, _OF_SHARED) if not model.num_shared_experts else ():
        yield name, "is given, but num_shared_experts is 0; there is no shared expert", "set num_shared_experts to 1"
    if not model.expert_layer_count:
        yield from _refuse_no_expert_layer(model)


def _refuse_no_expert_layer(model: ModelSpec) -> Iterator[Contradiction]:
    layers, step, dense = model.num_hidden_layers, model.decoder_sparse_step, model.first_k_dense_replace
    if step > layers:
        message = f"{step} is more than num_hidden_layers {layers}, so that no layer has experts"
        yield "decoder_sparse_step", message, f"use {layers} or less, or leave out num_experts"
    else:
        message = f"{dense} leaves none of {layers} layers with experts"
        yield "first_k_dense_replace", message, f"use {layers // step * step - 1} or less, or leave out num_experts"
