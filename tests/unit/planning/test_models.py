"""What a request's model means, and what is said where it means nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError
from meshwright.planning.hf_config import UnsupportedModelError
from meshwright.planning.models import find_preset, read_model, read_presets
from meshwright.planning.tensors import count_parameters, list_tensors
from meshwright.wire.model import ModelSpec
from tests.unit.planning.models import PLAIN, described_models, models

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
INDEXER = {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 8}
GLOBAL = {"sliding_window": 8, "num_window_layers": 1, "global_head_dim": 16}
SUPPORTED = [preset for preset in read_presets() if not preset.unsupported]
COUNTED = [preset for preset in read_presets() if "published_parameters" in preset.row]
MAXTEXT_SCALES = {
    16: 15_831_400_448, 32: 31_662_800_896, 64: 62_801_313_792, 128: 125_078_339_584, 256: 250_156_679_168,
    512: 499_264_782_336, 1024: 997_480_988_672,
}  # fmt: skip
"""Source: AI-Hypercomputer/maxtext, base.yml with global_parameter_scale: matmuls and embeddings, without norms."""


@pytest.mark.parametrize("preset", COUNTED, ids=lambda preset: preset.name)
def test_a_preset_has_exactly_the_published_count_of_parameters(preset: Any) -> None:
    assert count_parameters(preset.model) == int(preset.row["published_parameters"])
    assert preset.row["published_source"]


def test_the_published_counts_are_many() -> None:
    assert len(COUNTED) >= 62


@pytest.mark.parametrize(("scale", "published"), MAXTEXT_SCALES.items())
def test_maxtexts_scale_models_have_its_count_without_norms(scale: int, published: int) -> None:
    model = read_model(f"maxtext-scale-{scale}")
    assert count_parameters(model) - list_tensors(model).measure("norms") == published


def count_active(model: ModelSpec) -> float:
    """Returns the parameters that a token goes through: not those of experts that it did not choose."""
    chosen = (model.num_experts_per_tok or 0) / (model.num_experts or 1)
    return count_parameters(model) - list_tensors(model).measure("experts") * (1 - chosen)


@pytest.mark.parametrize(("name", "billions"), [
    ("qwen3-30b-a3b", 3.3), ("qwen3-235b-a22b", 22), ("llama4-17b-16e", 17), ("llama4-17b-128e", 17),
    ("deepseek2-236b", 21), ("deepseek3-671b", 37),  # arXiv:2412.19437
])  # fmt: skip
def test_active_parameters_are_those_that_the_models_are_named_for(name: str, billions: float) -> None:
    assert count_active(read_model(name)) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61)])
def test_gpt_oss_has_the_active_parameters_of_its_card_without_embedding(name: str, billions: float) -> None:
    # arXiv:2508.10925, table 1
    model = read_model(name)
    assert (count_active(model) - list_tensors(model).measure("embedding")) / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.parametrize(("name", "billions", "active"), [("gemma4-31b", 30.7, 30.7), ("gemma4-26b", 25.2, 3.8)])
def test_gemma_4_has_the_parameters_of_its_card(name: str, billions: float, active: float) -> None:
    # ai.google.dev/gemma/docs/core/model_card_4, without the vision encoder
    model = read_model(name)
    assert count_parameters(model) / 1e9 == pytest.approx(billions, abs=0.05)
    assert count_active(model) / 1e9 == pytest.approx(active, abs=0.05)


@pytest.mark.parametrize("preset", SUPPORTED, ids=lambda preset: preset.name)
def test_each_supported_preset_fits_together_and_says_its_source(preset: Any) -> None:
    assert read_model(preset.model.model_dump()) == preset.model
    assert preset.row["source"]


@pytest.mark.parametrize(("typed", "name"), [
    ("llama3-70b", "llama3-70b"), ("Llama-3-70B", "llama3-70b"), ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
    ("meta-llama/Llama-3.1-405B", "llama3.1-405b"), ("Qwen/Qwen3-8B", "qwen3-8b"), ("qwen3_8b", "qwen3-8b"),
    ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"), ("openai-community/gpt2-xl", "gpt2-xl"),
])  # fmt: skip
def test_presets_are_found_as_people_type_them(typed: str, name: str) -> None:
    assert read_model(typed).name == name


KINDS = {
    "compressed sparse attention": "deepseek4-284b deepseek4-tiny", "residual streams": "deepseek-custom",
    "an embedding for each layer": "gemma4-e2b gemma4-e4b",
    "narrower than the hidden size": "qwen3-custom-30b-a3b",
    "linear attention": "qwen3-next-80b-a3b qwen3.5-35b-a3b qwen3.5-397b-a17b",
}  # fmt: skip
UNSUPPORTED = {name: reason for reason, names in KINDS.items() for name in names.split()}


def test_all_presets_can_be_described_but_these() -> None:
    assert {preset.name for preset in read_presets() if preset.unsupported} == set(UNSUPPORTED)


@pytest.mark.parametrize(("name", "reason"), UNSUPPORTED.items())
def test_a_known_model_of_another_kind_is_unsupported_with_what_it_has(name: str, reason: str) -> None:
    preset: Any = find_preset(name)
    assert reason in preset.unsupported
    with pytest.raises(UnsupportedModelError) as refused:
        read_model(name)
    assert f"{name} has {preset.unsupported}" in str(refused.value)


@given(models() | described_models())
def test_what_was_read_reads_as_itself(model: ModelSpec) -> None:
    assert read_model(model.model_dump()) == model
    assert read_model(json.loads(model.model_dump_json(exclude_defaults=True))) == model


@pytest.mark.parametrize(("change", "field", "rule", "works"), [
    ({"num_key_value_heads": 3}, "num_key_value_heads", "does not divide", {"num_key_value_heads": 4}),
    ({"num_attention_heads": 7}, "head_dim", "does not divide hidden_size", {"head_dim": 8}),
    ({"num_attention_heads": 64}, "head_dim", "it is even", {"head_dim": 2}),
    ({"num_attention_heads": 128}, "head_dim", "does not divide", {"head_dim": 2}),
    ({"positions": "learned"}, "max_position_embeddings", "is missing", {"max_position_embeddings": 2048}),
    ({"num_experts": 4}, "num_experts_per_tok", "is missing", {"num_experts_per_tok": 2}),
    ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok", "more than", {"num_experts_per_tok": 4}),
    ({"num_experts_per_tok": 2}, "num_experts_per_tok", "num_experts is missing", {"num_experts": 8}),
    ({"num_experts": 4, "num_experts_per_tok": 2, "mlp_bias": True}, "mlp_bias", "no biases", {"mlp_bias": False}),
    ({"expert_bias": True}, "expert_bias", "num_experts is missing", {"expert_bias": False}),
    ({"num_expert_layers": 1}, "num_expert_layers", "only a mixture", {"num_expert_layers": None}),
    ({**MIXTURE, "num_expert_layers": 3}, "num_expert_layers", "more than", {"num_expert_layers": 2}),
    ({**MIXTURE, "num_expert_layers": 0}, "num_expert_layers", "equal to 1", {"num_expert_layers": 1}),
    ({**MIXTURE, "shared_expert_gate": True}, "shared_expert_gate", "no shared expert", {"num_shared_experts": 1}),
    ({"v_head_dim": 8}, "v_head_dim", "only latent attention", {"v_head_dim": None}),
    ({**LATENT, "v_head_dim": None}, "v_head_dim", "is missing", {"v_head_dim": 64}),
    ({**LATENT, "qk_rope_head_dim": 3}, "qk_rope_head_dim", "it is even", {"qk_rope_head_dim": 4}),
    ({**LATENT, "head_dim": 8}, "head_dim", "latent attention", {"head_dim": None}),
    ({**LATENT, "attention_bias": True}, "attention_bias", "latent attention", {"attention_bias": False}),
    ({**LATENT, "num_key_value_heads": 2}, "num_key_value_heads", "its own", {"num_key_value_heads": None}),
    ({"index_topk": 8}, "index_n_heads", "is missing", {"index_topk": None}),
    ({**LATENT, **INDEXER}, "q_lora_rank", "narrow queries", {"q_lora_rank": 512}),
    ({"num_window_layers": 2}, "num_window_layers", "sliding_window is missing", {"sliding_window": 4096}),
    ({"sliding_window": 8, "num_window_layers": 3}, "num_window_layers", "more than", {"num_window_layers": 2}),
    ({"sliding_window": 8, "attention_chunk_size": 8}, "attention_chunk_size", "a layer has one",
     {"attention_chunk_size": None}),
    ({"global_head_dim": 16}, "global_head_dim", "no layers have a sliding_window", {"global_head_dim": None}),
    ({**GLOBAL, "global_head_dim": 15}, "global_head_dim", "it is even", {"global_head_dim": 16}),
    ({**GLOBAL, "num_window_layers": 2}, "global_head_dim", "and others none", {"num_window_layers": 1}),
    ({**GLOBAL, "num_global_key_value_heads": 3}, "num_global_key_value_heads", "does not divide",
     {"num_global_key_value_heads": 2}),
    ({**GLOBAL, **MIXTURE, "num_expert_layers": 1}, "global_head_dim", "differ by one", {"num_expert_layers": None}),
    ({"hidden_size": 0}, "hidden_size", "greater than or equal to 1", {"hidden_size": 1, "head_dim": 2}),
    ({"hidden_size": "64"}, "hidden_size", "should be an integer", {"hidden_size": 64}),
    ({"color": 1}, "color", "unknown field", {"color": None}),
])  # fmt: skip
def test_dimensions_that_do_not_fit_are_refused(change: dict[str, Any], field: str, rule: str, works: Any) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_model({**PLAIN, **change})
    entry = next(error for error in refused.value.errors if error["field"] == f"model.{field}")
    assert rule in entry["message"]
    mended = {name: value for name, value in {**PLAIN, **change, **works}.items() if value is not None}
    assert read_model(mended)
    name, value = next(iter(works.items()))
    if field != "color":
        assert (name if value in (None, False, 0) else str(value)).lower() in refused.value.hint.lower()


def test_what_is_neither_a_name_nor_a_mapping_is_no_model() -> None:
    with pytest.raises(TypeError, match="llama3-8b"):
        read_model(8)  # type: ignore[arg-type]


@given(st.text(max_size=40))
def test_any_text_is_a_preset_or_refused(text: str) -> None:
    preset = find_preset(text)
    if preset is None:
        with pytest.raises(InvalidRequestError):
            read_model(text)
    elif not preset.unsupported:
        assert read_model(text) == preset.model
