"""Which layers of a config attend in windows and which have experts, as each family's own code reads its keys.

Expected: the rules of huggingface/transformers v5.23.0, src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.planning.hf_config import UnsupportedModelError
from meshwright.planning.models import read_model
from tests.unit.planning.models import GEMMA4, SIZES

WINDOW, WHOLE, CHUNK = "sliding_attention", "full_attention", "chunked_attention"


@pytest.mark.parametrize("config", [
    {"model_type": "mistral", "sliding_window": None},
    {"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 4096},
    {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
    {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 28},
    {"model_type": "gemma2", "layer_types": [WHOLE] * 32},
    {"model_type": "qwen3", "use_sliding_window": True, "layer_types": [WHOLE] * 32},
    {"model_type": "qwen3", "layer_types": [WHOLE] * 32}, {"model_type": "gemma2", "sliding_window": None},
    {"model_type": "llama4_text", "attention_chunk_size": None},
    {"model_type": "llama4_text", "max_position_embeddings": 8192},
    {"model_type": "olmo3", "max_position_embeddings": 2048},
])  # fmt: skip
def test_a_window_that_is_not_used_is_no_window(config: dict[str, Any]) -> None:
    model = read_model(SIZES | config)
    assert (model.window, model.window_layer_count) == (None, 0)


@pytest.mark.parametrize(("config", "window", "layers"), [
    ({"model_type": "mistral"}, 4096, 32), ({"model_type": "mixtral", "sliding_window": 1024}, 1024, 32),
    ({"model_type": "phi3", "sliding_window": 2047}, 2047, 32),
    ({"model_type": "qwen2", "use_sliding_window": True}, 4096, 4),
    ({"model_type": "qwen3_moe", "use_sliding_window": True}, 4096, 32),
    ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": [WHOLE] * 30 + [WINDOW] * 2}, 4096, 2),
    ({"model_type": "gemma2"}, 4096, 16), ({"model_type": "gemma3_text"}, 4096, 27),
    ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, 4096, 16),
    ({"model_type": "gemma3_text", "num_hidden_layers": 3}, 4096, 3), ({"model_type": "gpt_oss"}, 128, 16),
    ({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": [WINDOW] * 3}, 128, 3),
    ({"model_type": "olmo3", "max_position_embeddings": 65536}, 4096, 24), ({"model_type": "llama4_text"}, 8192, 24),
    ({"model_type": "llama4_text", "no_rope_layer_interval": 2}, 8192, 16),
    ({"model_type": "llama4_text", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]}, 8192, 2),
    ({"model_type": "llama4_text", "num_hidden_layers": 2, "layer_types": [CHUNK, WHOLE]}, 8192, 1),
    ({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": [WINDOW, WHOLE, WHOLE]}, 128, 1),
    ({"model_type": "qwen2_moe", "use_sliding_window": True, "max_window_layers": 5}, 4096, 3),
])  # fmt: skip
def test_windows_are_in_the_layers_of_the_familys_code(config: dict[str, Any], window: int, layers: int) -> None:
    model = read_model(SIZES | config)
    assert (model.window, model.window_layer_count) == (window, layers)


@pytest.mark.parametrize(("config", "layers"), [
    ({"model_type": "qwen3_moe"}, 32), ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, 16),
    ({"model_type": "qwen3_moe", "mlp_only_layers": [1, 0]}, 30),
    ({"model_type": "qwen3_moe", "decoder_sparse_step": 3, "mlp_only_layers": [0, 1, 2]}, 9),
    ({"model_type": "deepseek_v3"}, 29), ({"model_type": "deepseek_v3", "first_k_dense_replace": None}, 32),
    ({"model_type": "deepseek_v32", "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"]}, 2),
    ({"model_type": "llama4_text", "interleave_moe_layer_step": 2}, 16),
    ({"model_type": "llama4_text", "num_hidden_layers": 7, "moe_layers": [1, 3, 5]}, 3),
    ({"model_type": "llama4_text", "num_hidden_layers": 4, "moe_layers": [0, 1]}, 2),
    ({"model_type": "qwen3_moe", "mlp_only_layers": [3]}, 31),
    ({"model_type": "qwen3_moe", "decoder_sparse_step": 2, "mlp_only_layers": [2, 3]}, 15),
    ({"model_type": "deepseek_v3", "first_k_dense_replace": 1, "moe_layer_freq": 2}, 15),
    ({"model_type": "deepseek_v32", "num_hidden_layers": 2, "mlp_layer_types": ["sparse", "dense"]}, 1),
])  # fmt: skip
def test_experts_are_in_the_layers_that_the_familys_code_gives_them(config: dict[str, Any], layers: int) -> None:
    assert read_model(SIZES | config).expert_layer_count == layers


@pytest.mark.parametrize(("config", "reason"), [
    ({"model_type": "llama", "layer_types": [WINDOW] * 32}, "windows"),
    ({"model_type": "qwen3", "layer_types": ["linear_attention", WHOLE]}, "linear_attention"),
    ({"model_type": "deepseek_v32", "mlp_layer_types": ["sparse", "wide"]}, "wide"),
    ({"model_type": "llama", "hidden_act": "relu"}, "relu"),
    ({"model_type": "gemma", "use_bidirectional_attention": True}, "both directions"),
    ({**GEMMA4, "use_bidirectional_attention": "all"}, "both directions"),
    ({**GEMMA4, "hidden_size_per_layer_input": 256}, "an embedding for each layer"),
    ({"model_type": "gemma4_text"}, "an embedding for each layer"),
    ({**GEMMA4, "num_kv_shared_layers": 20}, "layers that share keys and values"),
])  # fmt: skip
def test_layers_of_a_kind_that_cannot_be_said_are_unsupported(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        read_model(SIZES | config)


@pytest.mark.parametrize(("config", "field", "hint"), [
    ({"model_type": "gemma2", "layer_types": [WINDOW] * 2}, "layer_types", "give 32 words"),
    ({"model_type": "llama", "layer_types": [WHOLE] * 2}, "layer_types", "give 32 words"),
    ({"model_type": "deepseek_v32", "mlp_layer_types": ["dense"]}, "mlp_layer_types", "give 32 words"),
    ({"model_type": "qwen3", "layer_types": [WINDOW] * 32}, "use_sliding_window", "set it to true"),
    ({"model_type": "gemma2", "sliding_window_pattern": 0}, "sliding_window_pattern", "1 or more"),
    ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "x"}, "max_window_layers", "0 or more"),
    ({"model_type": "qwen3_moe", "mlp_only_layers": [32]}, "mlp_only_layers", "up to 31"),
    ({"model_type": "qwen3_moe", "mlp_only_layers": list(range(32))}, "mlp_only_layers", "leave it out"),
    ({"model_type": "llama4_text", "moe_layers": [1, 1]}, "moe_layers", "up to 31"),
    ({"model_type": "deepseek_v32", "mlp_layer_types": ["dense"] * 32}, "mlp_layer_types", "leave it out"),
    ({"model_type": "deepseek_v3", "first_k_dense_replace": 32}, "first_k_dense_replace", "use 31 or less"),
    ({"model_type": "deepseek_v3", "first_k_dense_replace": 31, "moe_layer_freq": 4}, "first_k_dense_replace",
     "use 28 or less"),
    ({"model_type": "qwen3_moe", "decoder_sparse_step": 33}, "decoder_sparse_step", "use 32 or less"),
    ({"model_type": "gpt_oss", "sliding_window": None, "layer_types": [WINDOW] * 32}, "sliding_window", WHOLE),
])  # fmt: skip
def test_layers_that_contradict_a_key_are_refused_by_their_own(config: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_model(SIZES | config)
    assert [error["field"] for error in refused.value.errors] == [f"model.{field}"]
    assert hint in refused.value.hint


def test_layers_that_are_only_counted_are_never_walked_through() -> None:
    model = read_model({**SIZES, "model_type": "gpt_oss", "num_hidden_layers": 2**40})
    assert (model.window_layer_count, model.expert_layer_count) == (2**39, 2**40)
