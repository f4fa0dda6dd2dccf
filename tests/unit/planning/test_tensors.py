"""How many parameters a model has, against its tensors written out one by one."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given

from meshwright.planning.models import read_model
from meshwright.planning.tensors import count_parameters, list_tensors
from meshwright.wire.model import ModelSpec
from tests.unit.planning.models import PLAIN, described_models, models

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


Tensors = list[tuple[str, tuple[int, ...]]]


def list_all(model: ModelSpec) -> Tensors:
    """Every tensor of the model, each layer on its own, as a checkpoint has them."""
    width = model.hidden_size
    tensors = [("embedding", (model.vocab_size, width)), *list_norm(model)]
    if model.positions == "learned":
        tensors.append(("embedding", (model.max_position_embeddings or 0, width)))
    if not model.tie_word_embeddings:
        tensors.append(("head", (width, model.vocab_size)))
    for number in range(1, model.num_hidden_layers + 1):
        tensors += [*list_attention(model), *list_layer_norms(model)]
        tensors += list_experts(model) if has_experts(model, number) else list_mlp(model, model.intermediate_size)
    return tensors


def has_experts(model: ModelSpec, number: int) -> bool:
    return bool(model.num_experts) and number > model.first_k_dense_replace and number % model.decoder_sparse_step == 0


def list_norm(model: ModelSpec) -> Tensors:
    return [("norms", (model.hidden_size,))] * {"rmsnorm": 1, "layernorm": 2}[model.norm]


def list_layer_norms(model: ModelSpec) -> Tensors:
    there = [model.pre_norms, model.pre_norms, model.post_attention_norm, model.post_feedforward_norm]
    return [each for is_there in there if is_there for each in list_norm(model)]


def list_attention(model: ModelSpec) -> Tensors:
    own = list_latent(model) if model.kv_lora_rank else list_heads(model)
    return own + ([("attention", (model.num_attention_heads,))] if model.attention_sinks else [])


def list_heads(model: ModelSpec) -> Tensors:
    width, size = model.hidden_size, model.head_dim or model.hidden_size // model.num_attention_heads
    heads, pairs = model.num_attention_heads, model.num_key_value_heads or model.num_attention_heads
    tensors: Tensors = []
    for count in (heads, pairs, pairs):
        tensors.append(("attention", (width, count, size)))
        if model.attention_bias:
            tensors.append(("attention", (count, size)))
    tensors.append(("attention", (heads, size, width)))
    if model.attention_output_bias:
        tensors.append(("attention", (width,)))
    scales: dict[str, Tensors] = {
        "head": [("norms", (size,)), ("norms", (size,))],
        "all_heads": [("norms", (heads, size)), ("norms", (pairs, size))],
        "none": [],
    }
    return tensors + (scales[model.qk_norm_scale] if model.qk_norm else [])


def list_latent(model: ModelSpec) -> Tensors:
    """As DeepSeek-V2 (arXiv:2405.04434) and DeepSeek-V3.2 have it."""
    width, heads = model.hidden_size, model.num_attention_heads
    rank, plain, turned, value = (
        getattr(model, name) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    tensors: Tensors = [
        ("attention", (width, rank)),
        ("attention", (width, turned)),
        ("norms", (rank,)),
        ("attention", (rank, heads, plain)),
        ("attention", (rank, heads, value)),
        ("attention", (heads, value, width)),
    ]
    narrow = model.q_lora_rank
    if narrow is None:
        return [*tensors, ("attention", (width, heads, plain + turned))]
    tensors += [("attention", (width, narrow)), ("norms", (narrow,)), ("attention", (narrow, heads, plain + turned))]
    if model.index_head_dim and model.index_n_heads:
        own, size = model.index_n_heads, model.index_head_dim
        tensors += [("attention", (narrow, own, size)), ("attention", (width, size)), ("attention", (width, own))]
        tensors += [("norms", (size,)), ("norms", (size,))]
    return tensors


def list_mlp(model: ModelSpec, inner: int) -> Tensors:
    return list_matrices(model, inner) + (list_biases(model, inner) if model.mlp_bias else [])


def list_biases(model: ModelSpec, inner: int) -> Tensors:
    gate: Tensors = [("mlp", (inner,))] if model.gated else []
    return [("mlp", (inner,)), ("mlp", (model.hidden_size,)), *gate]


def list_matrices(model: ModelSpec, inner: int) -> Tensors:
    shapes = [(model.hidden_size, inner), (inner, model.hidden_size)] + [(model.hidden_size, inner)] * model.gated
    return [("mlp", shape) for shape in shapes]


def list_experts(model: ModelSpec) -> Tensors:
    experts, width = model.num_experts or 0, model.hidden_size
    inner = model.moe_intermediate_size or model.intermediate_size
    each = list_matrices(model, inner) + (list_biases(model, inner) if model.expert_bias else [])
    shared = list_matrices(model, model.shared_expert_intermediate_size or inner)
    router: Tensors = [("router", (width, experts))]
    router += [("router", (experts,))] * model.router_bias + [("router", (width, 1))] * model.shared_expert_gate
    return [*router, *each * experts, *shared * model.num_shared_experts]


@given(models() | described_models())
def test_the_count_is_that_of_the_tensors_one_by_one(model: ModelSpec) -> None:
    sizes: Counter[str] = Counter()
    for kind, shape in list_all(model):
        sizes[kind] += math.prod(shape)
    count = count_parameters(model)
    assert {kind: getattr(count, kind) for kind in sizes} == dict(sizes)
    assert count.total == sizes.total()


@given(models() | described_models())
def test_a_token_goes_through_the_experts_that_it_chose_and_all_that_are_no_experts(model: ModelSpec) -> None:
    count = count_parameters(model)
    if model.num_experts is None:
        assert count.active == count.total
        return
    only = model.model_copy(update={"num_experts": model.num_experts_per_tok})
    assert count.active - count.router == count_parameters(only).total - count_parameters(only).router


@given(described_models())
def test_a_layer_of_each_kind_is_listed_once_with_its_count(model: ModelSpec) -> None:
    layers = list_tensors(model).layers
    numbers = range(1, model.num_hidden_layers + 1)
    with_experts = sum(has_experts(model, number) for number in numbers)
    counts = {True: with_experts, False: model.num_hidden_layers - with_experts}
    assert [(layer.has_experts, layer.count) for layer in layers] == [
        (k, counts[k]) for k in (False, True) if counts[k]
    ]
    more = list_tensors(model.model_copy(update={"num_hidden_layers": 2 * model.num_hidden_layers}))
    assert all(layer.tensors in [other.tensors for other in more.layers] for layer in layers)


@given(models() | described_models())
def test_tensors_have_names_of_their_own_and_a_role_for_each_dimension(model: ModelSpec) -> None:
    tensors = list_tensors(model)
    for each in (tensors.outer, *(layer.tensors for layer in tensors.layers)):
        assert len({tensor.name for tensor in each}) == len(each)
        assert all(len(tensor.roles) == len(tensor.shape) for tensor in each)


@given(described_models())
def test_layers_with_windows_are_counted_as_one_by_one(model: ModelSpec) -> None:
    first, every = model.max_window_layers, model.sliding_window_pattern
    numbers = range(first + 1, model.num_hidden_layers + 1)
    in_windows = [number for number in numbers if every is None or number % every]
    assert model.window_layer_count == (len(in_windows) if model.window else 0)


def test_layers_are_never_walked_through() -> None:
    windows = {"sliding_window": 8, "sliding_window_pattern": 3}
    huge = ModelSpec.model_validate({**PLAIN, **windows, "num_hidden_layers": 2**40})
    assert (huge.window_layer_count, huge.dense_layer_count) == (2**40 - 2**40 // 3, 2**40)
    assert count_parameters(huge).total > 2**40


def test_tied_embeddings_are_counted_once() -> None:
    untied, tied = ModelSpec(**PLAIN), ModelSpec(**PLAIN, tie_word_embeddings=True)
    assert count_parameters(untied).total - count_parameters(tied).total == 256 * 64
    assert count_parameters(tied).head == 0


def test_gpt_neox_20b_has_its_published_count() -> None:
    assert count_parameters(GPT_NEOX_20B).total == 20_554_567_680  # huggingface.co/EleutherAI/gpt-neox-20b


def test_what_deepseek_v3s_checkpoint_has_beside_what_is_trained_is_its_correction_of_scores() -> None:
    model = read_model("deepseek3-671b")
    corrections = model.expert_layer_count * (model.num_experts or 0)
    # huggingface.co/deepseek-ai/DeepSeek-V3, without the module that predicts a second token
    assert count_parameters(model).total + corrections == 671_026_419_200


@pytest.mark.parametrize("kind", ["embedding", "attention", "mlp", "norms", "head"])
def test_a_plain_model_has_each_part(kind: str) -> None:
    assert getattr(count_parameters(ModelSpec(**PLAIN)), kind) > 0
