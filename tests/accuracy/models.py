"""The model of a published run: a preset, a preset with other figures, or GPT's dimensions.

Rule: what a row says and no more; a model that `ModelSpec` cannot describe is refused with the reader's own reason.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from meshwright.planning.models import read_model
from meshwright.wire.model import ModelSpec

GPT: Final[dict[str, Any]] = {
    "activation": "gelu",
    "gated": False,
    "norm": "layernorm",
    "positions": "learned",
    "tie_word_embeddings": True,
    "attention_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
}
"""What GPT-2, Megatron-LM's GPT and MPT have in common.

Source: NVIDIA/Megatron-LM, megatron/model; mosaicml/llm-foundry, whose published counts it meets exactly.
"""


@functools.cache
def build_gpt(hidden: int, heads: int, layers: int, vocabulary: int, length: int) -> ModelSpec:
    """Returns a GPT with a feed-forward of 4 × hidden and learned positions up to `length`.

    Raises:
        InvalidRequestError: the figures do not fit together.
    """
    return read_model(
        {
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "max_position_embeddings": length,
            **GPT,
        }
    )


@functools.cache
def build_preset(name: str, **other: int) -> ModelSpec:
    """Returns a preset, with other figures where a run cut the model.

    Raises:
        InvalidRequestError: no preset has this name, or the figures do not fit together.
        UnsupportedModelError: `ModelSpec` cannot say what it has.
    """
    model = read_model(name)
    return read_model({**model.model_dump(), **other}) if other else model
