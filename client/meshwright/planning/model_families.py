"""The families of models whose config.json is read: what each key is called and what is so where it is missing.

Rule: a table. A family stands here when `ModelSpec` can say its every tensor, or with what it has that cannot be said.
Keys that change no tensor and no matmul (rope_theta, torch_dtype, dropout, …) are in no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from meshwright.planning import model_defaults as defaults
from meshwright.planning.model_layers import (
    Config,
    Fields,
    UnsupportedModelError,
    read_alternating_windows,
    read_chunks,
    read_dense_before_experts,
    read_interleaved_experts,
    read_no_windows,
    read_sparse_layers,
    read_whole_attention,
    read_windows_everywhere,
    read_windows_of_later_layers,
)

Reading = Callable[[Config], Fields]
"""Takes a config with its family's defaults; returns fields, or raises what is wrong or cannot be said."""


@dataclass(frozen=True)
class Family:
    """How one `model_type` is read.

    Attributes:
        architecture: the class that a config names where it has no `model_type`.
        defaults: key → value where the config has none.
        fixed: fields that are so in every model of the family; None: the field's default.
        keys: field → its keys in the config, the first that has a value is read; others have their own name.
        readings: which layers attend in windows or have experts; what cannot be said.
    """

    architecture: str
    defaults: Config
    fixed: Config = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    readings: tuple[Reading, ...] = (read_whole_attention,)


@dataclass(frozen=True)
class Wrapper:
    """A model of several kinds of input, whose language model a config has in `text_config`.

    Attributes:
        architecture: the class that a config names where it has no `model_type`.
        text: the language model's `model_type`, where `text_config` does not name it.
    """

    architecture: str
    text: str


def _refuse_both_directions(config: Config) -> Fields:
    if config["use_bidirectional_attention"]:
        raise UnsupportedModelError("attention in both directions (use_bidirectional_attention)")
    return {}


# ---- the families ---------------------------------------------------------------------------------------------------

_LOCAL_EXPERTS: Final = {"num_experts": ("num_local_experts", "num_experts")}
_ROUTED_EXPERTS: Final = {
    "num_experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "num_shared_experts": ("n_shared_experts",),
}
_PLAIN_MLP: Final[Config] = {"gated": False, "norm": "layernorm", "mlp_bias": True}
_BOTH_NORMS: Final[Config] = {"post_attention_norm": True, "post_feedforward_norm": True}
_LATER_NORMS: Final[Config] = {**_BOTH_NORMS, "pre_norms": False, "qk_norm": True, "qk_norm_scale": "all_heads"}
_NO_HEAD_DIM: Final[Config] = {"head_dim": None}
"""Where latent attention is, transformers writes the part turned by position there."""

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("LlamaForCausalLM", {**defaults.LLAMA, "attention_bias": False, "mlp_bias": False}),
    "mistral": Family("MistralForCausalLM", defaults.MISTRAL, readings=(read_windows_everywhere,)),
    "mixtral": Family(
        "MixtralForCausalLM",
        {**defaults.MISTRAL, "sliding_window": None, "num_experts_per_tok": 2, "num_local_experts": 8},
        keys=_LOCAL_EXPERTS,
        readings=(read_windows_everywhere,),
    ),
    "phi3": Family("Phi3ForCausalLM", defaults.PHI3, readings=(read_windows_everywhere,)),
    "qwen2": Family(
        "Qwen2ForCausalLM", defaults.QWEN2, fixed={"attention_bias": True}, readings=(read_windows_of_later_layers,)
    ),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        defaults.QWEN2_MOE,
        fixed={"num_shared_experts": 1, "shared_expert_gate": True},
        keys={"attention_bias": ("qkv_bias",), "num_experts": ("num_experts", "num_local_experts")},
        readings=(read_no_windows, read_sparse_layers),
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM", defaults.QWEN3, fixed={"qk_norm": True}, readings=(read_windows_of_later_layers,)
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        defaults.QWEN3_MOE,
        fixed={"qk_norm": True},
        keys={"num_experts": ("num_experts", "num_local_experts")},
        readings=(read_windows_of_later_layers, read_sparse_layers),
    ),
    "qwen3_vl_text": Family("Qwen3VLTextModel", defaults.QWEN3, fixed={"qk_norm": True}),
    "qwen3_vl_moe_text": Family(
        "Qwen3VLMoeTextModel",
        defaults.QWEN3_VL_MOE,
        fixed={"qk_norm": True},
        keys={"num_experts": ("num_experts", "num_local_experts")},
        readings=(read_whole_attention, read_sparse_layers),
    ),
    "gemma": Family("GemmaForCausalLM", defaults.GEMMA, readings=(read_whole_attention, _refuse_both_directions)),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        defaults.GEMMA2,
        fixed=_BOTH_NORMS,
        readings=(read_alternating_windows, _refuse_both_directions),
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        defaults.GEMMA3,
        fixed={**_BOTH_NORMS, "qk_norm": True},
        readings=(read_alternating_windows, _refuse_both_directions),
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        defaults.GPT2,
        fixed={**_PLAIN_MLP, "positions": "learned", "attention_bias": True, "attention_output_bias": True},
        keys={
            "hidden_size": ("n_embd", "hidden_size"),
            "intermediate_size": ("n_inner", "intermediate_size"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "max_position_embeddings": ("n_positions", "max_position_embeddings"),
        },
        readings=(),
    ),
    "gpt_neox": Family("GPTNeoXForCausalLM", defaults.GPT_NEOX, fixed=_PLAIN_MLP),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        defaults.GPT_OSS,
        fixed={"attention_sinks": True, "router_bias": True, "expert_bias": True},
        keys=_LOCAL_EXPERTS,
        readings=(read_alternating_windows,),
    ),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        defaults.DEEPSEEK2,
        fixed=_NO_HEAD_DIM,
        keys=_ROUTED_EXPERTS,
        readings=(read_dense_before_experts,),
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        defaults.DEEPSEEK3,
        fixed=_NO_HEAD_DIM,
        keys=_ROUTED_EXPERTS,
        readings=(read_dense_before_experts,),
    ),
    "kimi_k2": Family(
        "DeepseekV3ForCausalLM",
        defaults.DEEPSEEK3,
        fixed=_NO_HEAD_DIM,
        keys=_ROUTED_EXPERTS,
        readings=(read_dense_before_experts,),
    ),
    "deepseek_v32": Family(
        "DeepseekV32ForCausalLM",
        defaults.DEEPSEEK32,
        fixed=_NO_HEAD_DIM,
        keys=_ROUTED_EXPERTS,
        readings=(read_dense_before_experts,),
    ),
    "llama4_text": Family(
        "Llama4ForCausalLM",
        defaults.LLAMA4,
        fixed={"num_shared_experts": 1, "qk_norm_scale": "none"},
        keys={
            **_LOCAL_EXPERTS,
            "intermediate_size": ("intermediate_size_mlp",),
            "moe_intermediate_size": ("intermediate_size",),
            "qk_norm": ("use_qk_norm",),
        },
        readings=(read_chunks, read_interleaved_experts),
    ),
    "olmo2": Family("Olmo2ForCausalLM", defaults.OLMO2, fixed=_LATER_NORMS),
    "olmo3": Family("Olmo3ForCausalLM", defaults.OLMO3, fixed=_LATER_NORMS, readings=(read_alternating_windows,)),
}
"""By `model_type`: families whose every tensor `ModelSpec` can say."""

WRAPPERS: Final[Mapping[str, Wrapper]] = {
    "gemma3": Wrapper("Gemma3ForConditionalGeneration", "gemma3_text"),
    "llama4": Wrapper("Llama4ForConditionalGeneration", "llama4_text"),
    "mistral3": Wrapper("Mistral3ForConditionalGeneration", "mistral"),
    "qwen3_vl": Wrapper("Qwen3VLForConditionalGeneration", "qwen3_vl_text"),
    "qwen3_vl_moe": Wrapper("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"),
}
"""By `model_type`: models of text and images, whose language model is one of `FAMILIES`."""

_LINEAR: Final = "layers of linear attention"
_TWO_SIZES: Final = "heads of two sizes"
_STATE_SPACE: Final = "state space layers"

UNSUPPORTED: Final[Mapping[str, str]] = {
    "deepseek_v4": "compressed sparse attention, and several residual streams",
    "falcon_mamba": _STATE_SPACE,
    "gemma3n": "an embedding for each layer, and several residual streams",
    "gemma3n_text": "an embedding for each layer, and several residual streams",
    "gemma4": _TWO_SIZES,
    "gemma4_text": _TWO_SIZES,
    "jamba": _STATE_SPACE,
    "kimi_linear": _LINEAR,
    "mamba": _STATE_SPACE,
    "mamba2": _STATE_SPACE,
    "nemotron_h": _STATE_SPACE,
    "qwen3_5": _LINEAR,
    "qwen3_5_moe": _LINEAR,
    "qwen3_5_moe_text": _LINEAR,
    "qwen3_5_text": _LINEAR,
    "qwen3_next": _LINEAR,
}
"""By `model_type`: known families, and what they have that `ModelSpec` cannot say."""
