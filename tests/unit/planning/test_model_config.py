"""Configs of Hugging Face: as published, with what is missing, and with what the step has not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError
from meshwright.planning.model_config import FAMILIES, UNSUPPORTED, is_config
from meshwright.planning.models import UnsupportedModelError, read_model
from meshwright.planning.parameters import count_parameters
from meshwright.wire.model import ModelSpec

LLAMA3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEFAULTS = {
    # The parameters of each family's configuration class without arguments: of models that are published so.
    "llama": 6_738_415_616,  # Llama-2-7B
    "mixtral": 46_702_792_704,  # Mixtral-8x7B
    "gemma": 8_537_680_896,  # Gemma-7B
    "gpt2": 124_439_808,  # GPT-2
}


def same_shape(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether two specs are of one model: a head size or KV heads that are written out mean the same as those not."""
    ignored = {"name", "head_dim", "num_key_value_heads"}
    same = one.model_dump(exclude=ignored) == other.model_dump(exclude=ignored)
    return same and (one.head_size, one.kv_heads) == (other.head_size, other.kv_heads)


def test_llama_3s_config_is_the_preset() -> None:
    assert same_shape(read_model(LLAMA3_8B), read_model("llama3-8b"))


def test_qwen3s_config_of_experts_is_the_preset_but_for_a_dense_size_that_no_layer_has() -> None:
    read, preset = read_model(QWEN3_30B), read_model("qwen3-30b-a3b")
    assert same_shape(read.model_copy(update={"intermediate_size": preset.intermediate_size}), preset)
    assert count_parameters(read) == count_parameters(preset)


@pytest.mark.parametrize(("family", "published"), DEFAULTS.items())
def test_what_is_missing_has_the_default_of_the_familys_class(family: str, published: int) -> None:
    assert count_parameters(read_model({"model_type": family})).total == published


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_is_known_by_its_architecture_too(family: str) -> None:
    changed = {"sliding_window": None, "use_parallel_residual": False}
    by_type = read_model({"model_type": family, **changed})
    assert read_model({"architectures": [FAMILIES[family].architecture], **changed}) == by_type


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"model_type": "llama", "attention_bias": True}, {"attention_bias": True, "attention_output_bias": True}),
        ({"model_type": "llama", "mlp_bias": True}, {"mlp_bias": True}),
        ({"model_type": "qwen2"}, {"attention_bias": True, "attention_output_bias": False, "qk_norm": False}),
        ({"model_type": "qwen2", "attention_bias": False}, {"attention_bias": True}),
        ({"model_type": "qwen3"}, {"qk_norm": True, "head_dim": 128, "attention_bias": False}),
        ({"model_type": "mistral", "sliding_window": None}, {"num_key_value_heads": 8, "intermediate_size": 14336}),
        ({"model_type": "mistral", "sliding_window": None, "num_key_value_heads": None}, {"num_key_value_heads": None}),
        ({"model_type": "mixtral", "num_local_experts": 4}, {"num_experts": 4, "num_experts_per_tok": 2}),
        ({"model_type": "qwen3_moe", "num_local_experts": 16}, {"num_experts": 16}),
        ({"model_type": "gemma", "hidden_activation": None, "hidden_act": "gelu"}, {"activation": "gelu"}),
        ({"model_type": "gemma", "hidden_activation": None}, {"activation": "gelu", "tie_word_embeddings": True}),
        ({"model_type": "gpt2", "n_embd": 1600, "n_head": 25}, {"hidden_size": 1600, "intermediate_size": 6400}),
        ({"model_type": "gpt2", "n_inner": 1000}, {"intermediate_size": 1000, "gated": False, "norm": "layernorm"}),
        ({"model_type": "gpt_neox", "use_parallel_residual": False}, {"mlp_bias": True, "positions": "rope"}),
        ({"model_type": "llama", "_name_or_path": "me/mine"}, {"name": "me/mine"}),
    ],
)
def test_each_key_means_what_the_familys_code_makes_of_it(config: dict[str, Any], fields: dict[str, Any]) -> None:
    model = read_model(config)
    assert {name: getattr(model, name) for name in fields} == fields


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 4096},
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
        {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 28},
        {"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["full_attention"] * 32},
    ],
)
def test_a_window_that_is_not_used_is_no_window(config: dict[str, Any]) -> None:
    assert read_model(config)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mistral"}, "sliding window of 4096"),
        ({"model_type": "mixtral", "sliding_window": 1024}, "sliding window of 1024"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "sliding window"),
        ({"model_type": "qwen3_moe", "use_sliding_window": True}, "sliding window"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "dense layers"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "dense layers"),
        ({"model_type": "llama", "hidden_act": "relu"}, "relu"),
        ({"model_type": "gemma", "use_bidirectional_attention": True}, "both directions"),
        ({"model_type": "gpt_neox"}, "use_parallel_residual"),
    ],
)
def test_what_changes_the_step_and_cannot_be_said_is_unsupported(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        read_model(config)


@pytest.mark.parametrize(("family", "reason"), UNSUPPORTED.items())
def test_a_known_family_of_another_kind_is_unsupported(family: str, reason: str) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        read_model({"model_type": family, "hidden_size": 8})
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("config", "field", "hint"),
    [
        ({"model_type": "bert"}, "model.model_type", "plain dimensions"),
        ({"architectures": ["T5Model"]}, "model.architectures", "plain dimensions"),
        ({"architectures": []}, "model.architectures", "plain dimensions"),
        ({"model_type": "qwen3_vl", "text_config": {}}, "model.model_type", "text_config alone"),
        ({"model_type": "gpt2", "n_head": "x"}, "model.n_head", ""),
        ({"model_type": "gpt2", "n_embd": 0}, "model.n_embd", "set model.n_embd to 1 or more"),
        ({"model_type": "gpt2", "n_head": 7}, "model.head_dim", "head_dim"),
        ({"model_type": "mixtral", "num_local_experts": 1}, "model.num_experts_per_tok", "use 1 or less"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "model.num_key_value_heads", "use 2, 4 or 8"),
    ],
)
def test_a_wrong_config_is_refused_by_its_own_keys(config: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_model(config)
    assert field in {error["field"] for error in refused.value.errors}
    assert hint in refused.value.hint


def test_dimensions_without_a_family_are_no_config() -> None:
    assert not is_config({"hidden_size": 8})
    assert is_config({"architectures": None})


KEYS = sorted({key for family in FAMILIES.values() for key in family.defaults} | {"layer_types", "_name_or_path"})
VALUES = st.none() | st.booleans() | st.integers(-4, 4096) | st.text(max_size=4) | st.lists(st.integers(), max_size=2)


@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_whatever_a_config_holds_it_is_read_or_refused_in_words(family: str, keys: dict[str, Any]) -> None:
    try:
        model = read_model({"model_type": family, **keys})
    except (InvalidRequestError, UnsupportedModelError):
        return
    assert read_model(model.model_dump()) == model
