"""How many parameters a model has, against its tensors written out one by one."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given

from meshwright.planning.parameters import count_parameters
from meshwright.wire.model import ModelSpec
from tests.unit.planning.models import PLAIN, models

GPT_NEOX_20B = ModelSpec(
    vocab_size=50432,
    hidden_size=6144,
    intermediate_size=24576,
    num_hidden_layers=44,
    num_attention_heads=64,
    activation="gelu",
    gated=False,
    norm="layernorm",
    attention_bias=True,
    attention_output_bias=True,
    mlp_bias=True,
)


def list_tensors(model: ModelSpec) -> list[tuple[str, tuple[int, ...]]]:
    """Every tensor of the model, each layer on its own, as a checkpoint has them."""
    width = model.hidden_size
    tensors = [("embedding", (model.vocab_size, width)), *list_norm(model)]
    if model.positions == "learned":
        tensors.append(("embedding", (model.max_position_embeddings or 0, width)))
    if not model.tie_word_embeddings:
        tensors.append(("head", (width, model.vocab_size)))
    for _ in range(model.num_hidden_layers):
        tensors += [*list_attention(model), *list_norm(model), *list_norm(model)]
        tensors += list_experts(model) if model.num_experts else list_mlp(model, model.intermediate_size, biased=True)
    return tensors


def list_norm(model: ModelSpec) -> list[tuple[str, tuple[int, ...]]]:
    return [("norms", (model.hidden_size,))] * {"rmsnorm": 1, "layernorm": 2}[model.norm]


def list_attention(model: ModelSpec) -> list[tuple[str, tuple[int, ...]]]:
    width = model.hidden_size
    heads = [model.num_attention_heads, model.kv_heads, model.kv_heads]
    tensors: list[tuple[str, tuple[int, ...]]] = []
    for count in heads:
        tensors.append(("attention", (width, count, model.head_size)))
        if model.attention_bias:
            tensors.append(("attention", (count, model.head_size)))
    tensors.append(("attention", (model.num_attention_heads, model.head_size, width)))
    if model.attention_output_bias:
        tensors.append(("attention", (width,)))
    if model.qk_norm:
        tensors += [("norms", (model.head_size,)), ("norms", (model.head_size,))]
    return tensors


def list_mlp(model: ModelSpec, inner: int, *, biased: bool) -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[int, ...]] = [(model.hidden_size, inner), (inner, model.hidden_size)]
    shapes += [(model.hidden_size, inner)] if model.gated else []
    if biased and model.mlp_bias:
        shapes += [(inner,), (model.hidden_size,)] + ([(inner,)] if model.gated else [])
    return [("mlp", shape) for shape in shapes]


def list_experts(model: ModelSpec) -> list[tuple[str, tuple[int, ...]]]:
    experts = model.num_experts or 0
    inner = model.moe_intermediate_size or model.intermediate_size
    each = list_mlp(model, inner, biased=False)
    return [("router", (model.hidden_size, experts)), *each * (experts + model.num_shared_experts)]


@given(models())
def test_the_count_is_that_of_the_tensors_one_by_one(model: ModelSpec) -> None:
    sizes: Counter[str] = Counter()
    for kind, shape in list_tensors(model):
        sizes[kind] += math.prod(shape)
    count = count_parameters(model)
    assert {kind: getattr(count, kind) for kind in sizes} == dict(sizes)
    assert count.total == sizes.total()


@given(models())
def test_a_token_goes_through_the_experts_that_it_chose_and_all_that_are_no_experts(model: ModelSpec) -> None:
    count = count_parameters(model)
    if model.num_experts is None:
        assert count.active == count.total
        return
    only = model.model_copy(update={"num_experts": model.num_experts_per_tok})
    assert count.active - count.router == count_parameters(only).total - count_parameters(only).router


def test_tied_embeddings_are_counted_once() -> None:
    untied, tied = ModelSpec(**PLAIN), ModelSpec(**PLAIN, tie_word_embeddings=True)
    assert count_parameters(untied).total - count_parameters(tied).total == 256 * 64
    assert count_parameters(tied).head == 0


def test_gpt_neox_20b_has_its_published_count() -> None:
    assert count_parameters(GPT_NEOX_20B).total == 20_554_567_680  # huggingface.co/EleutherAI/gpt-neox-20b


@pytest.mark.parametrize("kind", ["embedding", "attention", "mlp", "norms", "head"])
def test_a_plain_model_has_each_part(kind: str) -> None:
    assert getattr(count_parameters(ModelSpec(**PLAIN)), kind) > 0
