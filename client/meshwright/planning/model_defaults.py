"""What a key of a config.json is where it is missing: the values of each family's configuration class.

Rule: a table, with the keys that `ModelSpec` is read from and no others.

Source: huggingface/transformers v5.23.0, src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LLAMA: Final[Mapping[str, Any]] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
MISTRAL: Final[Mapping[str, Any]] = {
    **LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096 * 32,
    "sliding_window": 4096,
}
PHI3: Final[Mapping[str, Any]] = {
    **LLAMA,
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "sliding_window": None,
}
QWEN2: Final[Mapping[str, Any]] = {
    **LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN2_MOE: Final[Mapping[str, Any]] = {
    **QWEN2,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "qkv_bias": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
QWEN3: Final[Mapping[str, Any]] = {**QWEN2, "head_dim": 128, "attention_bias": False}
QWEN3_MOE: Final[Mapping[str, Any]] = {
    **QWEN2,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "max_window_layers": 0,  # its class has no such key: a window is in all layers
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
QWEN3_VL_MOE: Final[Mapping[str, Any]] = {
    **QWEN3_MOE,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "tie_word_embeddings": True,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
}
GEMMA: Final[Mapping[str, Any]] = {
    **LLAMA,
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "use_bidirectional_attention": None,
}
GEMMA2: Final[Mapping[str, Any]] = {
    **GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3: Final[Mapping[str, Any]] = {
    **GEMMA2,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
GPT2: Final[Mapping[str, Any]] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
GPT_NEOX: Final[Mapping[str, Any]] = {
    **LLAMA,
    "vocab_size": 50432,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "hidden_act": "gelu",
    "attention_bias": True,
    "use_parallel_residual": True,
}
GPT_OSS: Final[Mapping[str, Any]] = {
    **LLAMA,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "attention_bias": True,
    "max_position_embeddings": 131072,
    "sliding_window": 128,
    "sliding_window_pattern": 2,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
LATENT: Final[Mapping[str, Any]] = {
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
DEEPSEEK2: Final[Mapping[str, Any]] = {
    **LATENT,
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "moe_intermediate_size": 1407,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "mlp_bias": False,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": None,
    "first_k_dense_replace": 0,
}
DEEPSEEK3: Final[Mapping[str, Any]] = {
    **LATENT,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
}
DEEPSEEK32: Final[Mapping[str, Any]] = {**DEEPSEEK3, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
LLAMA4: Final[Mapping[str, Any]] = {
    **LLAMA,
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": False,
    "use_qk_norm": True,
    "max_position_embeddings": 4096 * 32,
    "attention_chunk_size": 8192,
    "no_rope_layer_interval": 4,
    "interleave_moe_layer_step": 1,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
}
OLMO2: Final[Mapping[str, Any]] = {**LLAMA, "vocab_size": 50304, "attention_bias": False}
OLMO3: Final[Mapping[str, Any]] = {
    **OLMO2,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
