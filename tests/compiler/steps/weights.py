"""The weights of a decoder-only transformer: their shapes, and what splits each dimension.

Rule: heads, intermediate sizes and the vocabulary belong to the tensor axis, experts to the expert axis; the model's
width is stored in parts over fsdp. Layers are stacked in front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.wire.model import ModelSpec
from tests.compiler.steps.axes import Splits


@dataclass(frozen=True)
class Weight:
    """One array of the model."""

    shape: tuple[int, ...]
    splits: Splits

    def stack(self, count: int) -> Weight:
        """Returns this weight of so many layers."""
        return Weight((count, *self.shape), (None, *self.splits))


def list_weights(model: ModelSpec) -> dict[str, Weight]:
    """Returns the weights outside the layers.

    Raises:
        ValueError: the model has something that this step has not.
    """
    _refuse_odd(model)
    width, vocabulary = model.hidden_size, model.vocab_size
    found = {"embedding": Weight((vocabulary, width), ("tensor", "fsdp")), **_list_norm(model, "last", width)}
    if not model.tie_word_embeddings:
        found["head"] = Weight((width, vocabulary), ("fsdp", "tensor"))
    if model.positions == "learned":
        found["positions"] = Weight((model.max_position_embeddings or 0, width), (None, "fsdp"))
    return found


def list_layer_weights(model: ModelSpec) -> dict[str, Weight]:
    """Returns the weights of one layer."""
    width, head = model.hidden_size, model.head_size
    across: Splits = ("fsdp", "tensor", None)
    back: Splits = ("tensor", None, "fsdp")
    norms = {**_list_norm(model, "before_attention", width), **_list_norm(model, "before_mlp", width)}
    if model.qk_norm:
        norms |= {**_list_norm(model, "of_query", head), **_list_norm(model, "of_key", head)}
    return norms | {
        "query": Weight((width, model.num_attention_heads, head), across),
        "key": Weight((width, model.kv_heads, head), across),
        "value": Weight((width, model.kv_heads, head), across),
        "out": Weight((model.num_attention_heads, head, width), back),
        **(_list_experts(model) if model.num_experts else _list_mlp(model, "", model.intermediate_size)),
    }


def _list_experts(model: ModelSpec) -> dict[str, Weight]:
    experts, width, size = model.num_experts or 0, model.hidden_size, model.expert_size
    found = {
        "router": Weight((width, experts), ("fsdp", None)),
        "experts_up": Weight((experts, width, size), ("expert", "fsdp", "tensor")),
        "experts_down": Weight((experts, size, width), ("expert", "tensor", "fsdp")),
    }
    if model.gated:
        found["experts_gate"] = found["experts_up"]
    if model.num_shared_experts:
        found |= _list_mlp(model, "shared_", model.num_shared_experts * size)
    return found


def _list_mlp(model: ModelSpec, prefix: str, size: int) -> dict[str, Weight]:
    up = Weight((model.hidden_size, size), ("fsdp", "tensor"))
    down = Weight((size, model.hidden_size), ("tensor", "fsdp"))
    return {f"{prefix}up": up, f"{prefix}down": down} | ({f"{prefix}gate": up} if model.gated else {})


def _list_norm(model: ModelSpec, name: str, size: int) -> dict[str, Weight]:
    one = Weight((size,), (None,))
    return {f"{name}_scale": one} | ({f"{name}_shift": one} if model.norm == "layernorm" else {})


def _refuse_odd(model: ModelSpec) -> None:
    odd = [name for name in ("attention_bias", "attention_output_bias", "mlp_bias") if getattr(model, name)]
    if odd:
        raise ValueError(f"{', '.join(odd)}: this step has no biases of matrices; compare a model without")


def count_weights(model: ModelSpec) -> int:
    """Returns the parameters of the whole model."""
    layers = {name: each.stack(model.num_hidden_layers) for name, each in list_layer_weights(model).items()}
    return _count(list_weights(model)) + _count(layers)


def _count(weights: Mapping[str, Weight]) -> int:
    return sum(math.prod(each.shape) for each in weights.values())
