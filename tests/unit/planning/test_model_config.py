"""Configs of Hugging Face: as published, with what is missing, and with what cannot be said or contradicts itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError
from meshwright.planning.hf_config import UnsupportedModelError, is_config, read_families
from meshwright.planning.models import read_model
from meshwright.planning.tensors import count_parameters
from meshwright.wire.model import ModelSpec
from tests.fakes.asking import ask_planner
from tests.unit.planning.models import GEMMA4, SIZES

CONFIGS = Path(__file__).parents[2] / "recorded" / "configs"
PUBLISHED: dict[str, dict[str, Any]] = {
    file.stem: json.loads(file.read_text()) for file in sorted(CONFIGS.glob("*.json"))
}
"""By preset: the model's own config.json."""

SMALL: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 128,
}  # fmt: skip
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT: dict[str, Any] = {
    **EXPERTS, "num_key_value_heads": 8, "n_routed_experts": 8, "kv_lora_rank": 20, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 12,
}  # fmt: skip
TOLD: list[tuple[dict[str, Any], int]] = [
    # Sizes that tell apart what could be mistaken; counted by transformers v5.23.0 on the meta device.
    (SMALL | {"model_type": "llama", "attention_bias": True, "mlp_bias": True}, 1_426_112),
    (SMALL | {"model_type": "mistral", "head_dim": 24}, 1_174_272),
    (SMALL | {"model_type": "phi3", "tie_word_embeddings": True}, 1_387_264),
    (SMALL | {"model_type": "qwen2"}, 1_422_592),
    (SMALL | {"model_type": "qwen3", "attention_bias": True}, 4_381_952),
    (SMALL | {"model_type": "gemma", "attention_bias": True}, 8_290_304),
    (SMALL | {"model_type": "gemma2"}, 8_271_104),
    (SMALL | {"model_type": "gemma3_text", "tie_word_embeddings": False}, 8_306_432),
    (SMALL | {"model_type": "olmo2"}, 1_421_952),
    ({**SMALL, "num_key_value_heads": None} | {"model_type": "gpt_neox", "attention_bias": False}, 1_629_408),
    (SMALL | {"model_type": "mixtral", "num_experts_per_tok": 2, "num_local_experts": 3}, 2_161_152),
    (SMALL | EXPERTS | {"model_type": "qwen2_moe", "num_experts": 6, "shared_expert_intermediate_size": 70}, 2_437_632),
    (SMALL | EXPERTS | {"model_type": "qwen2_moe", "num_experts": 6, "decoder_sparse_step": 2,
                        "mlp_only_layers": [0, 1]}, 5_897_216),
    (SMALL | EXPERTS | {"model_type": "qwen3_moe", "num_experts": 6, "decoder_sparse_step": 2}, 1_718_336),
    (SMALL | {"model_type": "gpt_oss", "num_experts_per_tok": 2, "num_local_experts": 6}, 4_273_862),
    (SMALL | {"model_type": "gpt_oss", "num_experts_per_tok": 2, "num_local_experts": 6, "attention_bias": False},
     4_267_462),
    (SMALL | LATENT | {"model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 2,
                       "first_k_dense_replace": 2}, 1_754_852),
    (SMALL | LATENT | {"model_type": "deepseek_v3", "q_lora_rank": 24, "n_shared_experts": 2}, 1_266_012),
    (SMALL | LATENT | {"model_type": "deepseek_v32", "q_lora_rank": 24, "index_n_heads": 3, "index_head_dim": 16},
     1_222_524),
    (SMALL | {"model_type": "llama4_text", "num_local_experts": 3, "intermediate_size_mlp": 77,
              "interleave_moe_layer_step": 2}, 4_769_280),
]  # fmt: skip


GLM: dict[str, Any] = {
    "model_type": "glm4_moe", "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151552, "num_experts_per_tok": 8, "n_shared_experts": 1, "attention_bias": True,
}  # fmt: skip
CARDS: dict[str, tuple[dict[str, Any], float]] = {
    # Billions of parameters on the models' cards, of GLM-4.5 without the layer that predicts the token after the next.
    "SmolLM3-3B": ({"model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
                    "num_attention_heads": 16, "vocab_size": 128256, "no_rope_layers": [1, 1, 1, 0] * 9}, 3.075),
    "granite-3.1-8b-base": ({"model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800,
                             "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
                             "vocab_size": 49155, "tie_word_embeddings": True, "logits_scaling": 16.0}, 8.171),
    "Seed-OSS-36B-Base": ({"model_type": "seed_oss", "hidden_size": 5120, "intermediate_size": 27648,
                           "num_hidden_layers": 64, "num_attention_heads": 80, "vocab_size": 155136}, 36.15),
    "starcoder2-7b": ({"model_type": "starcoder2", "hidden_size": 4608, "intermediate_size": 18432,
                       "num_hidden_layers": 32, "num_attention_heads": 36, "num_key_value_heads": 4,
                       "vocab_size": 49152}, 7.174),
    "GLM-4.5": (GLM | {"hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 92, "use_qk_norm": True,
                       "n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 3}, 352.8),
    "GLM-4.5-Air": (GLM | {"hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
                           "n_routed_experts": 128, "moe_intermediate_size": 1408}, 106.9),
}  # fmt: skip


def same_shape(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether two specs are of one model: what is written out means the same as what is so without it."""
    ignored = {
        "name", "max_position_embeddings", "head_dim", "num_key_value_heads", "moe_intermediate_size",
        "qk_norm_scale",
    }  # fmt: skip
    same = one.model_dump(exclude=ignored) == other.model_dump(exclude=ignored)
    return same and list_meant(one) == list_meant(other)


def list_meant(model: ModelSpec) -> tuple[object, ...]:
    return model.head_size, model.kv_heads, model.expert_size, model.qk_norm and model.qk_norm_scale


@pytest.mark.parametrize(("preset", "config"), PUBLISHED.items())
def test_a_published_config_is_the_preset(preset: str, config: dict[str, Any]) -> None:
    read, known = read_model(config), read_model(preset)
    assert count_parameters(read) == count_parameters(known)
    unused = {} if read.dense_layer_count else {"intermediate_size": known.intermediate_size}
    assert same_shape(read.model_copy(update={**unused, "max_position_embeddings": None}), known)


@pytest.mark.parametrize(("config", "told"), TOLD)
def test_a_config_has_as_many_parameters_as_its_familys_own_code_makes(config: dict[str, Any], told: int) -> None:
    assert count_parameters(read_model(config)) == told


@pytest.mark.parametrize("name", list(CARDS))
def test_a_config_has_as_many_parameters_as_the_models_card_says(name: str) -> None:
    config, billions = CARDS[name]
    assert count_parameters(read_model(config)) == pytest.approx(billions * 1e9, rel=5e-4)


@pytest.mark.parametrize(("config", "fields"), [
    ({"model_type": "llama", "attention_bias": True}, {"attention_bias": True, "attention_output_bias": True}),
    ({"model_type": "llama", "mlp_bias": True}, {"mlp_bias": True}),
    ({"model_type": "qwen2"}, {"attention_bias": True, "attention_output_bias": False, "qk_norm": False}),
    ({"model_type": "qwen2", "attention_bias": False}, {"attention_bias": True}),
    ({"model_type": "qwen3"}, {"qk_norm": True, "head_dim": 128, "attention_bias": False}),
    ({"model_type": "mistral", "sliding_window": None}, {"num_key_value_heads": 8}),
    ({"model_type": "mistral", "sliding_window": None, "num_key_value_heads": None}, {"num_key_value_heads": None}),
    ({"model_type": "mixtral", "num_local_experts": 4}, {"num_experts": 4, "num_experts_per_tok": 2}),
    ({"model_type": "qwen3_moe", "num_local_experts": 16}, {"num_experts": 16}),
    ({"model_type": "qwen3_moe", "shared_expert_intermediate_size": 0}, {"num_shared_experts": 0}),
    ({"model_type": "qwen3_vl_moe_text", "shared_expert_intermediate_size": 0}, {"num_shared_experts": 0}),
    ({"model_type": "gemma", "hidden_activation": None, "hidden_act": "gelu"}, {"activation": "gelu"}),
    ({"model_type": "gemma", "hidden_activation": None}, {"activation": "gelu", "tie_word_embeddings": True}),
    ({**GPT2, "n_embd": 1600, "n_head": 25}, {"hidden_size": 1600, "intermediate_size": 6400}),
    ({**GPT2, "n_inner": 1000}, {"intermediate_size": 1000, "gated": False, "norm": "layernorm"}),
    ({"model_type": "gpt_neox"}, {"mlp_bias": True, "positions": "rope", "use_parallel_residual": True}),
    ({"model_type": "gpt_neox", "use_parallel_residual": False}, {"use_parallel_residual": False}),
    ({"model_type": "mixtral", "num_experts": 4}, {"num_experts": 4}),
    ({"model_type": "qwen2_moe", "qkv_bias": False}, {"attention_bias": False, "attention_output_bias": False}),
    ({"model_type": "qwen2_moe"}, {"num_shared_experts": 1, "shared_size": 5632, "shared_expert_gate": True}),
    ({"model_type": "gpt_oss"}, {"router_bias": True, "expert_bias": True, "attention_sinks": True}),
    ({"model_type": "gpt_oss", "attention_bias": False}, {"attention_bias": False, "attention_output_bias": False}),
    ({"model_type": "deepseek_v3", "n_shared_experts": None}, {"num_shared_experts": 0}),
    ({"model_type": "deepseek_v3", "q_lora_rank": None}, {"q_lora_rank": None, "head_size": 192, "value_size": 128}),
    ({"model_type": "deepseek_v3", "head_dim": 64, "qk_head_dim": 192}, {"head_dim": None, "head_size": 192}),
    ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 4}, {"num_hidden_layers": 32}),
    ({"model_type": "deepseek_v32"}, {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}),
    ({"model_type": "llama4_text"}, {"qk_norm": True, "qk_norm_scale": "none", "expert_size": 11008}),
    ({"model_type": "gemma2", "attn_logit_softcapping": None}, {"attn_logit_softcapping": None}),
    ({"model_type": "olmo2"}, {"pre_norms": False, "post_attention_norm": True, "qk_norm_scale": "all_heads"}),
    (GEMMA4, {"global_head_dim": 512, "num_global_key_value_heads": None, "num_experts": None}),
    ({**GEMMA4, "num_global_key_value_heads": 4}, {"num_global_key_value_heads": None}),
    ({**GEMMA4, "num_global_key_value_heads": 4, "attention_k_eq_v": True}, {"num_global_key_value_heads": 4}),
    ({**GEMMA4, "num_experts": 8, "top_k_experts": 2}, {"num_experts": None, "num_shared_experts": 0}),
    ({**GEMMA4, "num_experts": 8, "top_k_experts": 2, "enable_moe_block": True, "moe_intermediate_size": 96},
     {"num_experts": 8, "num_experts_per_tok": 2, "expert_size": 96, "shared_size": 11008}),
    ({**GEMMA4, "use_bidirectional_attention": "vision"}, {"window_layer_count": 27}),
    ({"model_type": "llama", "_name_or_path": "me/mine"}, {"name": "me/mine"}),
])  # fmt: skip
def test_each_key_means_what_the_familys_code_makes_of_it(config: dict[str, Any], fields: dict[str, Any]) -> None:
    model = read_model(config if "n_embd" in config else SIZES | config)
    assert {name: getattr(model, name) for name in fields} == fields


UNSUPPORTED = {name: family.unsupported for name, family in read_families().items() if family.unsupported}


@pytest.mark.parametrize(("family", "reason"), UNSUPPORTED.items())
def test_a_known_family_of_another_kind_is_unsupported(family: str, reason: str) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        read_model({"model_type": family, "hidden_size": 8})
    assert reason in str(refused.value)


@pytest.mark.parametrize(("config", "field", "hint"), [
    ({"model_type": "phi"}, "model.model_type", "only its dimensions"),
    ({"model_type": "gemma3"}, "model.text_config", "gemma3_text"),
    ({"model_type": "x", "text_config": {"model_type": "y"}}, "model.text_config.model_type", "only its dimensions"),
    ({"model_type": "gemma3", "text_config": {"hidden_size": 0}}, "model.text_config.hidden_size", "1 or more"),
    ({"model_type": "llama4", "text_config": {"intermediate_size_mlp": "x"}}, "model.text_config.intermediate_size_mlp",
     ""),
    ({"model_type": "gpt2", "n_embd": 768}, "model.hidden_size", "leave hidden_size out"),
    ({"model_type": "llama", "hidden_size": None}, "model.hidden_size", ""),
    ({"model_type": "deepseek_v2"}, "model.num_experts_per_tok", "set it to 2"),
    ({"model_type": "deepseek_v3", "kv_lora_rank": None}, "model.q_lora_rank", "give kv_lora_rank"),
    ({"model_type": "deepseek_v3", "num_key_value_heads": 8}, "model.num_key_value_heads", "leave it out"),
    ({"model_type": "deepseek_v3", "attention_bias": True}, "model.attention_bias", "attention_bias: leave it out"),
    ({"model_type": "deepseek_v3", "n_routed_experts": 4}, "model.num_experts_per_tok", "use 4 or less"),
    ({"architectures": ["T5Model"]}, "model.architectures", "only its dimensions"),
    ({"architectures": []}, "model.architectures", "only its dimensions"),
    ({**GPT2, "n_head": "x"}, "model.n_head", ""),
    ({**GPT2, "n_embd": 0}, "model.n_embd", "set model.n_embd to 1 or more"),
    ({**GPT2, "n_head": 7}, "model.head_dim", "head_dim"),
    ({"model_type": "mixtral", "num_local_experts": 1}, "model.num_experts_per_tok", "use 1 or less"),
    ({"model_type": "llama", "num_key_value_heads": 5}, "model.num_key_value_heads", "use 2, 4 or 8"),
])  # fmt: skip
def test_a_wrong_config_is_refused_by_its_own_keys(config: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_model(config if "n_embd" in config and "n_head" in config else SIZES | config)
    assert field in {error["field"] for error in refused.value.errors}
    assert hint in refused.value.hint
    assert len({error["field"] for error in refused.value.errors}) == len(refused.value.errors)


def test_of_a_model_of_text_and_images_the_language_model_is_read_and_its_name_says_so() -> None:
    assert read_model(PUBLISHED["gemma3-4b"]).name == "gemma3, its language model alone"
    named = {**PUBLISHED["gemma3-4b"], "_name_or_path": "google/gemma-3-4b-pt"}
    assert read_model(named).name == "google/gemma-3-4b-pt, its language model alone"


def test_a_price_goes_by_the_dimensions_and_not_by_the_name() -> None:
    config, training = PUBLISHED["llama4-17b-128e"], {"seq_len": 8192, "global_batch_size": 512}
    names = ("meta-llama/Llama-4-Maverick-17B-128E", None)
    asked = {"target": "v5p:8x8x8", "training": training, "include_devices": False}
    first, second = (ask_planner(model={**config, "_name_or_path": name}, **asked).plans[0] for name in names)
    assert first.step_time == second.step_time


def test_dimensions_without_a_family_are_no_config() -> None:
    assert not is_config({"hidden_size": 8})
    assert is_config({"architectures": None})


LISTS = {"layer_types", "mlp_layer_types", "moe_layers", "no_rope_layers"}
KEYS = sorted(
    {key for family in read_families().values() for key in family.default}
    | {*ModelSpec.model_fields, *LISTS, "_name_or_path", "moe_layer_freq", "interleave_moe_layer_step"}
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-4, 4096)
    | st.sampled_from(["", "x", "4", "gelu", "∞"])
    | st.sampled_from([[], [0], [1, 0], [-1], ["dense", "sparse"], ["full_attention", "sliding_attention"], [None, {}]])
)


@given(
    st.sampled_from(sorted({*read_families()} - {*UNSUPPORTED})),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6),
)
def test_whatever_a_config_holds_it_is_read_or_refused_in_words(family: str, keys: dict[str, Any]) -> None:
    try:
        model = read_model({**SIZES, "model_type": family, **keys})
    except (InvalidRequestError, UnsupportedModelError):
        return
    assert read_model(model.model_dump()) == model
