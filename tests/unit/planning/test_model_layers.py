"""Which layers of a config attend in windows and which have experts, as each family's own code reads its keys.

Expected: the rules of huggingface/transformers v5.23.0, src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.planning.models import UnsupportedModelError, read_model

WINDOW, WHOLE, CHUNK = "sliding_attention", "full_attention", "chunked_attention"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 4096},
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
        {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 28},
        {"model_type": "qwen3", "use_sliding_window": True, "layer_types": [WHOLE] * 32},
        {"model_type": "qwen3", "layer_types": [WHOLE] * 32},
        {"model_type": "gemma2", "sliding_window": None},
        {"model_type": "llama4_text", "attention_chunk_size": None},
        {"model_type": "llama4_text", "max_position_embeddings": 8192},
        {"model_type": "olmo3"},  # of its class: sequences of 2048, windows of 4096
    ],
)
def test_a_window_that_is_not_used_is_no_window(config: dict[str, Any]) -> None:
    model = read_model(config)
    assert (model.window, model.window_layer_count) == (None, 0)


@pytest.mark.parametrize(
    ("config", "window", "layers"),
    [
        ({"model_type": "mistral"}, 4096, 32),
        ({"model_type": "mixtral", "sliding_window": 1024}, 1024, 32),
        ({"model_type": "phi3", "sliding_window": 2047}, 2047, 32),
        ({"model_type": "qwen2", "use_sliding_window": True}, 4096, 4),
        ({"model_type": "qwen3_moe", "use_sliding_window": True}, 4096, 24),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": [WHOLE] * 30 + [WINDOW] * 2}, 4096, 2),
        ({"model_type": "gemma2"}, 4096, 13),
        ({"model_type": "gemma3_text"}, 4096, 22),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, 4096, 13),
        ({"model_type": "gemma3_text", "num_hidden_layers": 3}, 4096, 3),
        ({"model_type": "gpt_oss"}, 128, 18),
        ({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": [WINDOW] * 3}, 128, 3),
        ({"model_type": "olmo3", "max_position_embeddings": 65536}, 4096, 24),
        ({"model_type": "llama4_text"}, 8192, 36),
        ({"model_type": "llama4_text", "no_rope_layer_interval": 2}, 8192, 24),
        ({"model_type": "llama4_text", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]}, 8192, 2),
        ({"model_type": "llama4_text", "num_hidden_layers": 2, "layer_types": [CHUNK, WHOLE]}, 8192, 1),
    ],
)
def test_windows_are_in_the_layers_that_the_familys_code_gives_them(
    config: dict[str, Any], window: int, layers: int
) -> None:
    model = read_model(config)
    assert (model.window, model.window_layer_count) == (window, layers)


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"model_type": "qwen3_moe"}, 24),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, 12),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1, 0]}, 22),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 3, "mlp_only_layers": [0, 1, 2]}, 7),
        ({"model_type": "deepseek_v3"}, 58),
        ({"model_type": "deepseek_v3", "first_k_dense_replace": None}, 61),
        ({"model_type": "deepseek_v32", "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"]}, 2),
        ({"model_type": "llama4_text", "interleave_moe_layer_step": 2}, 24),
        ({"model_type": "llama4_text", "num_hidden_layers": 7, "moe_layers": [1, 3, 5]}, 3),
    ],
)
def test_experts_are_in_the_layers_that_the_familys_code_gives_them(config: dict[str, Any], layers: int) -> None:
    assert read_model(config).expert_layer_count == layers


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "qwen2_moe", "use_sliding_window": True}, "use_sliding_window"),
        ({"model_type": "llama", "layer_types": [WINDOW] * 32}, "windows"),
        ({"model_type": "qwen3", "layer_types": ["linear_attention", WHOLE]}, "linear_attention"),
        ({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": [WINDOW, WHOLE, WHOLE]}, "no period"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [3]}, "mlp_only_layers"),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, "moe_layer_freq"),
        (
            {"model_type": "deepseek_v32", "num_hidden_layers": 2, "mlp_layer_types": ["sparse", "dense"]},
            "mlp_layer_types",
        ),
        ({"model_type": "llama4_text", "num_hidden_layers": 4, "moe_layers": [0, 1]}, "moe_layers"),
    ],
)
def test_an_order_of_layers_that_cannot_be_said_is_unsupported(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        read_model(config)


@pytest.mark.parametrize(
    ("config", "field", "hint"),
    [
        ({"model_type": "gemma2", "layer_types": [WINDOW] * 2}, "layer_types", "give 26 words"),
        ({"model_type": "llama", "layer_types": [WHOLE] * 2}, "layer_types", "give 32 words"),
        ({"model_type": "deepseek_v32", "mlp_layer_types": ["dense"]}, "mlp_layer_types", "give 61 words"),
        ({"model_type": "qwen3", "layer_types": [WINDOW] * 32}, "use_sliding_window", "set it to true"),
        ({"model_type": "gpt_oss", "sliding_window": None, "layer_types": [WINDOW] * 36}, "sliding_window", WHOLE),
    ],
)
def test_an_order_of_layers_that_contradicts_another_key_is_refused_by_its_own(
    config: dict[str, Any], field: str, hint: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_model(config)
    assert [error["field"] for error in refused.value.errors] == [f"model.{field}"]
    assert hint in refused.value.hint


def test_layers_that_are_only_counted_are_never_walked_through() -> None:
    model = read_model({"model_type": "gpt_oss", "num_hidden_layers": 2**40})
    assert (model.window_layer_count, model.expert_layer_count) == (2**39, 2**40)
