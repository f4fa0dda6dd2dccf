"""Models for the planner's tests: a plain one, and Hypothesis' choice of sound ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from meshwright.wire.model import ModelSpec

PLAIN: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Models whose dimensions fit together."""
    pairs = draw(st.integers(1, 8))
    heads, size = pairs * draw(st.integers(1, 8)), 2 * draw(st.integers(1, 64))
    experts = draw(st.none() | st.integers(1, 16))
    positions = draw(st.sampled_from(["rope", "learned"]))
    flags = {name: draw(st.booleans()) for name in ("gated", "tie_word_embeddings", "attention_bias", "qk_norm")}
    has_experts = experts is not None
    return ModelSpec(
        vocab_size=draw(st.integers(1, 4096)),
        hidden_size=draw(st.integers(1, 512)),
        intermediate_size=draw(st.integers(1, 512)),
        num_hidden_layers=draw(st.integers(1, 16)),
        num_attention_heads=heads,
        num_key_value_heads=pairs,
        head_dim=size,
        activation=draw(st.sampled_from(["silu", "gelu"])),
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])),
        positions=positions,
        max_position_embeddings=draw(st.integers(1, 4096)) if positions == "learned" else None,
        attention_output_bias=draw(st.booleans()),
        mlp_bias=False if has_experts else draw(st.booleans()),
        num_experts=experts,
        num_experts_per_tok=draw(st.integers(1, experts)) if experts is not None else None,
        moe_intermediate_size=draw(st.none() | st.integers(1, 256)) if has_experts else None,
        num_shared_experts=draw(st.integers(0, 3)) if has_experts else 0,
        **flags,
    )
