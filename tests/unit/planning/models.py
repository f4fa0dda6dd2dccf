"""Models for the planner's tests: a plain one, and Hypothesis' choice of sound ones, compiled or only described."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from meshwright.wire.model import ModelSpec

PLAIN: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
}  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "intermediate_size_mlp": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32,
}  # fmt: skip
"""What every published config.json says."""


GEMMA4: dict[str, Any] = {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "sliding_window": 512}


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Models whose dimensions fit together."""
    pairs = draw(st.integers(1, 8))
    heads, size = pairs * draw(st.integers(1, 8)), 2 * draw(st.integers(1, 64))
    experts = draw(st.none() | st.integers(1, 16))
    positions = draw(st.sampled_from(["rope", "learned"]))
    flags = {name: draw(st.booleans()) for name in ("gated", "tie_word_embeddings", "attention_bias", "qk_norm")}
    wide = {name: draw(st.integers(1, 512)) for name in ("hidden_size", "intermediate_size")}
    fields: dict[str, Any] = {
        "vocab_size": draw(st.integers(1, 4096)), "num_hidden_layers": draw(st.integers(1, 16)),
        "num_attention_heads": heads, "num_key_value_heads": pairs, "head_dim": size,
        "activation": draw(st.sampled_from(["silu", "gelu"])), "norm": draw(st.sampled_from(["rmsnorm", "layernorm"])),
        "positions": positions,
        "max_position_embeddings": draw(st.integers(1, 4096)) if positions == "learned" else None,
        "attention_output_bias": draw(st.booleans()), "mlp_bias": False if experts else draw(st.booleans()),
    }  # fmt: skip
    if experts:
        fields |= {
            "num_experts": experts, "num_experts_per_tok": draw(st.integers(1, experts)),
            "moe_intermediate_size": draw(st.none() | st.integers(1, 256)),
            "num_shared_experts": draw(st.integers(0, 3)),
        }  # fmt: skip
    return ModelSpec.model_validate(fields | wide | flags)


@st.composite
def described_models(draw: st.DrawFn) -> ModelSpec:
    """Models whose dimensions fit together, with what can be described, be it compiled or not."""
    plain = draw(models())
    fields = plain.model_dump() | draw(_layers) | _draw_windows(draw, plain.num_hidden_layers)
    if draw(st.booleans()):
        fields |= _draw_latent(draw, plain.num_attention_heads)
    elif 0 < (fields["num_window_layers"] or 0) < plain.num_hidden_layers and fields["sliding_window"]:
        pairs = st.sampled_from([n for n in range(1, 9) if plain.num_attention_heads % n == 0])
        fields |= {"global_head_dim": 2 * draw(st.integers(1, 64)), "num_global_key_value_heads": draw(pairs)}
    if plain.num_experts is not None and not fields["global_head_dim"]:
        fields |= _draw_experts(draw, plain.num_hidden_layers)
    return ModelSpec.model_validate(fields)


FLAGS = ("attention_sinks", "pre_norms", "post_attention_norm", "post_feedforward_norm", "use_parallel_residual")
_layers = st.fixed_dictionaries({
    **{name: st.booleans() for name in FLAGS}, "qk_norm_scale": st.sampled_from(["head", "all_heads", "none"]),
    "attn_logit_softcapping": st.none() | st.just(50.0), "final_logit_softcapping": st.none() | st.just(30.0),
})  # fmt: skip


def _draw_windows(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    window = draw(st.sampled_from([None, "sliding_window", "attention_chunk_size"]))
    if window is None:
        return {}
    return {window: draw(st.integers(1, 64)), "num_window_layers": draw(st.none() | st.integers(0, layers))}


def _draw_latent(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    sizes = {name: draw(st.integers(1, 64)) for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")}
    narrow = draw(st.none() | st.integers(1, 64))
    indexer = {name: draw(st.integers(1, 16)) for name in ("index_topk", "index_n_heads", "index_head_dim")}
    without = {"head_dim": None, "attention_bias": False, "attention_output_bias": False, "qk_norm": False}
    chosen = indexer if narrow and draw(st.booleans()) else {}
    rope = {"qk_rope_head_dim": 2 * draw(st.integers(1, 32)), "num_key_value_heads": heads, "q_lora_rank": narrow}
    return without | sizes | chosen | rope


def _draw_experts(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    shared = draw(st.integers(0, 3))
    return {
        "expert_bias": draw(st.booleans()), "router_bias": draw(st.booleans()), "num_shared_experts": shared,
        "shared_expert_intermediate_size": draw(st.none() | st.integers(1, 64)) if shared else None,
        "shared_expert_gate": draw(st.booleans()) if shared else False,
        "num_expert_layers": draw(st.none() | st.integers(1, layers)),
    }  # fmt: skip
