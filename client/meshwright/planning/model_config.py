"""What a Hugging Face config.json says of a model, in the fields of `ModelSpec`.

Rule: a key that is missing has the default of the family's configuration class, as transformers would have it; a key
that changes what is computed and that `ModelSpec` cannot say is refused, and keys that change no tensor and no matmul
(rope_theta, torch_dtype, dropout, …) are passed over. Knows no preset, and not whether the dimensions fit together.

Source of defaults: huggingface/transformers at 008e574, src/transformers/models/*/configuration_*.py (mistral at
001f85b, gpt2 at 01ae98a).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from meshwright.errors import NotCompiledError

Config = Mapping[str, Any]
Refusal = Callable[[Config], str | None]
"""Returns what a config has that the step has not, or None."""


class UnsupportedModelError(NotCompiledError):
    """A known model that the step cannot express: the text says why, in a sentence. An answer, not a failure."""


@dataclass(frozen=True)
class Family:
    """How one `model_type` is read.

    Attributes:
        architecture: the class that a config names where it has no `model_type`.
        defaults: key → value where the config has none.
        fixed: fields that are so in every model of the family.
        keys: field → its keys in the config, the first that has a value is read; others have their own name.
        refusals: what of it the step has not.
    """

    architecture: str
    defaults: Config
    fixed: Config = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class ConfigReading:
    """Fields of `ModelSpec` as a config has them, not yet checked.

    Attributes:
        fields: by the names of `ModelSpec`.
        keys: field → the config's key, where they differ.
    """

    fields: Mapping[str, Any]
    keys: Mapping[str, str]


def is_config(value: Mapping[str, Any]) -> bool:
    """Returns whether this is the content of a config.json, and no plain dimensions."""
    return "model_type" in value or "architectures" in value


def find_model_type(config: Config) -> str:
    """Returns the family that a config names, by `model_type` or else by the first of `architectures`.

    One that nobody knows is returned as it stands.
    """
    if config.get("model_type"):
        return str(config["model_type"])
    named = config.get("architectures")
    first = str(named[0]) if isinstance(named, list | tuple) and named else str(named)
    return next((name for name, family in FAMILIES.items() if family.architecture == first), first)


def read_config(config: Config) -> ConfigReading:
    """Returns the fields of `ModelSpec` that a config.json of one of `FAMILIES` means.

    Raises:
        UnsupportedModelError: it has what the step cannot express, such as a sliding window that is used.
        KeyError: its family is none of `FAMILIES`.
    """
    model_type = find_model_type(config)
    family = FAMILIES[model_type]
    values = {**family.defaults, **config}
    for refusal in (*family.refusals, _find_activation, _find_layer_types):
        if found := refusal(values):
            raise UnsupportedModelError(f"this {model_type} config.json has {found}")
    return ConfigReading(_read_fields(family, config), {name: keys[0] for name, keys in family.keys.items()})


def _read_fields(family: Family, config: Config) -> dict[str, Any]:
    fields = {**family.fixed, "name": _read_name(config)}
    for name in (*_PLAIN_FIELDS, *family.keys):
        keys = family.keys.get(name, (name,))
        if name not in family.fixed and any(key in config or key in family.defaults for key in keys):
            fields[name] = _pick(config, family.defaults, keys)
    if fields["intermediate_size"] is None and isinstance(fields["hidden_size"], int):
        fields["intermediate_size"] = 4 * fields["hidden_size"]  # GPT-2's n_inner
    fields["activation"] = _ACTIVATIONS[_read_activation({**family.defaults, **config})]
    if family.defaults.get("attention_bias") is not None:
        fields["attention_output_bias"] = fields["attention_bias"]
    return fields


def _pick(config: Config, defaults: Config, keys: tuple[str, ...]) -> Any:
    """Returns the first value that is not null; null where the config says only that; else the default."""
    given = [config[key] for key in keys if key in config]
    stood = next((value for value in given if value is not None), None)
    return stood if given else next((defaults[key] for key in keys if key in defaults), None)


def _read_name(config: Config) -> str | None:
    name = config.get("_name_or_path")
    return name[-128:] if isinstance(name, str) and name else None


def _read_activation(values: Config) -> str:
    return str(_pick(values, {}, _ACTIVATION_KEYS))


def _find_activation(values: Config) -> str | None:
    name = _read_activation(values)
    return None if name in _ACTIVATIONS else f"the activation {name}; the step has {', '.join(_ACTIVATIONS)}"


def _find_layer_types(values: Config) -> str | None:
    kinds = values.get("layer_types")
    others = sorted({str(kind) for kind in kinds} - {"full_attention"}) if isinstance(kinds, list | tuple) else []
    return f"layers of {', '.join(others)}; the step has full attention in all layers" if others else None


def _find_window(values: Config) -> str | None:
    window, longest = values["sliding_window"], values["max_position_embeddings"]
    is_unused = window is None or _is_at_least(window, longest)
    return None if is_unused else _write_window(window)


def _find_used_window(values: Config) -> str | None:
    if not values["use_sliding_window"] or values.get("layer_types"):
        return None
    is_unused = values["sliding_window"] is None or _is_at_least(
        values["max_window_layers"], values["num_hidden_layers"]
    )
    return None if is_unused else _write_window(values["sliding_window"])


def _is_at_least(value: object, least: object) -> bool:
    return isinstance(value, int) and isinstance(least, int) and value >= least


def _write_window(window: object) -> str:
    return (
        f"a sliding window of {window} tokens, and the step attends to whole sequences; "
        f"with sliding_window null it is compiled so"
    )


def _find_dense_layers(values: Config) -> str | None:
    is_mixed = values["decoder_sparse_step"] != 1 or values["mlp_only_layers"]
    return "dense layers between the mixtures of experts (decoder_sparse_step, mlp_only_layers)" if is_mixed else None


def _find_parallel_residual(values: Config) -> str | None:
    return (
        "attention and MLP side by side in a layer (use_parallel_residual, the default); the step has them in turn"
        if values["use_parallel_residual"]
        else None
    )


def _find_both_directions(values: Config) -> str | None:
    return "attention in both directions" if values["use_bidirectional_attention"] else None


_PLAIN_FIELDS: Final = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_ACTIVATION_KEYS: Final = ("hidden_activation", "hidden_act", "activation_function")
_ACTIVATIONS: Final[Mapping[str, str]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
}
"""Exact and approximate GELU cost a step about the same, and have no parameters."""

_LLAMA: Final[Config] = {
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
_MISTRAL: Final[Config] = {
    **_LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096 * 32,
    "sliding_window": 4096,
}
_QWEN2: Final[Config] = {
    **_LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_QWEN3_MOE: Final[Config] = {
    **_QWEN2,
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
_GEMMA: Final[Config] = {
    **_LLAMA,
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
_GPT2: Final[Config] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
_GPT_NEOX: Final[Config] = {
    **_LLAMA,
    "vocab_size": 50432,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "hidden_act": "gelu",
    "attention_bias": True,
    "use_parallel_residual": True,
}
_EXPERT_KEYS: Final = {"num_experts": ("num_experts", "num_local_experts")}
_PLAIN_MLP: Final[Config] = {"gated": False, "norm": "layernorm", "mlp_bias": True}

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("LlamaForCausalLM", {**_LLAMA, "attention_bias": False, "mlp_bias": False}),
    "mistral": Family("MistralForCausalLM", _MISTRAL, refusals=(_find_window,)),
    "mixtral": Family(
        "MixtralForCausalLM",
        {**_MISTRAL, "sliding_window": None, "num_experts_per_tok": 2, "num_local_experts": 8},
        keys={"num_experts": ("num_local_experts", "num_experts")},
        refusals=(_find_window,),
    ),
    "qwen2": Family("Qwen2ForCausalLM", _QWEN2, fixed={"attention_bias": True}, refusals=(_find_used_window,)),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {**_QWEN2, "head_dim": 128, "attention_bias": False},
        fixed={"qk_norm": True},
        refusals=(_find_used_window,),
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        _QWEN3_MOE,
        fixed={"qk_norm": True},
        keys=_EXPERT_KEYS,
        refusals=(_find_used_window, _find_dense_layers),
    ),
    "gemma": Family("GemmaForCausalLM", _GEMMA, refusals=(_find_both_directions,)),
    "gpt2": Family(
        "GPT2LMHeadModel",
        _GPT2,
        fixed={**_PLAIN_MLP, "positions": "learned", "attention_bias": True, "attention_output_bias": True},
        keys={
            "hidden_size": ("n_embd", "hidden_size"),
            "intermediate_size": ("n_inner", "intermediate_size"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "max_position_embeddings": ("n_positions", "max_position_embeddings"),
        },
    ),
    "gpt_neox": Family("GPTNeoXForCausalLM", _GPT_NEOX, fixed=_PLAIN_MLP, refusals=(_find_parallel_residual,)),
}
"""By `model_type`: families whose every tensor `ModelSpec` can say."""

_LATENT: Final = "latent attention (MLA), and dense layers before the mixtures of experts"
_LINEAR: Final = "linear attention in three of four layers, and a gated shared expert"
_GEMMA3: Final = "norms after attention and MLP, and windows of attention in five of six layers"
_LLAMA4: Final = "attention in chunks in three of four layers, and experts whose weight scales their input"

UNSUPPORTED: Final[Mapping[str, str]] = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "gemma2": "norms after attention and MLP, capped logits, and windows of attention in every other layer",
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gpt_oss": "attention sinks, windows of attention in every other layer, and biases in router and experts",
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "olmo2": "norms after attention and MLP, and query and key norms over all heads",
    "olmo3": "norms after attention and MLP, query and key norms over all heads, and windows of attention",
    "qwen2_moe": "a shared expert with a gate and a size of its own",
    "qwen3_next": _LINEAR,
    "qwen3_5": _LINEAR,
    "qwen3_5_moe": _LINEAR,
}
"""By `model_type`: known families, and what they have that the step has not."""
