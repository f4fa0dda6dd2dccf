"""A Hugging Face config.json as `ModelSpec`: its family, its sizes, and which layers attend in windows or have experts.

Rule: a config says its layers one by one or by a period; what comes out is a first number of layers and a period, and
an order that these cannot say is refused. A value of a wrong kind is passed on as it stands: the check of `ModelSpec`
names it.

Source: huggingface/transformers v5.23.0, src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from meshwright.errors import NotCompiledError
from meshwright.planning import model_defaults as defaults

Config = Mapping[str, Any]
Fields = dict[str, Any]


class UnsupportedModelError(NotCompiledError):
    """A known model that `ModelSpec` cannot say: the text says why, in a sentence. An answer, not a failure."""


class ConfigContradictionError(Exception):
    """A key of a config contradicts another.

    Attributes:
        key: the one to change.
        rule: what is wrong with it.
        works: what to do.
    """

    def __init__(self, key: str, rule: str, works: str) -> None:
        super().__init__(f"{key} {rule}")
        self.key = key
        self.rule = rule
        self.works = works


FULL: Final = "full_attention"
_WINDOWS: Final = frozenset({"sliding_attention", "chunked_attention"})


# ---- windows --------------------------------------------------------------------------------------------------------


def read_whole_attention(config: Config) -> Fields:
    """Returns nothing of a family without windows, where each layer attends to all before.

    Raises:
        UnsupportedModelError: some do not.
        ConfigContradictionError: `layer_types` has not one word a layer.
    """
    read_layer_types(config)
    if _has_windows(config):
        raise UnsupportedModelError("layers that attend in windows (layer_types)")
    return {}


def read_windows_everywhere(config: Config) -> Fields:
    """Returns windows of all layers, as Mistral 7B v0.1 has them."""
    return _read_windows(config, {})


def read_windows_of_later_layers(config: Config) -> Fields:
    """Returns windows of the layers behind `max_window_layers`, where `use_sliding_window` says so (Qwen 2 and 3)."""
    if config["use_sliding_window"]:
        return _read_windows(config, {"max_window_layers": config["max_window_layers"]})
    return _read_none(config, "use_sliding_window", "true")


def read_no_windows(config: Config) -> Fields:
    """Returns nothing of a family whose windows have an order that cannot be said, where they are off (Qwen 2 MoE)."""
    if config["use_sliding_window"]:
        raise UnsupportedModelError("windows in every other layer up to max_window_layers (use_sliding_window)")
    return _read_none(config, "use_sliding_window", "true")


def read_alternating_windows(config: Config) -> Fields:
    """Returns windows of all layers but every `sliding_window_pattern`-th (Gemma 2 and 3, GPT-OSS, OLMo 3)."""
    return _read_windows(config, {"sliding_window_pattern": config["sliding_window_pattern"]})


def read_chunks(config: Config) -> Fields:
    """Returns chunks of all layers but every `no_rope_layer_interval`-th (Llama 4)."""
    turned = config.get("no_rope_layers")  # 1: rotary, in chunks; 0: neither
    told = config.get("layer_types")
    if not told and _is_list(turned) and turned:
        told = ["chunked_attention" if each else FULL for each in turned]
    every = {"sliding_window_pattern": config["no_rope_layer_interval"]}
    return _read_windows({**config, "layer_types": told}, every, key="attention_chunk_size")


def _read_windows(config: Config, places: Fields, *, key: str = "sliding_window") -> Fields:
    """Returns the window and which layers have it: those of `layer_types`, else `places`; nothing where none has."""
    window, longest = config.get(key), config.get("max_position_embeddings")
    if window is None:
        return _read_none(config, key, "the tokens of a window")
    found = read_layer_types(config) if config.get("layer_types") else places
    if (_is_count(window) and _is_count(longest) and window >= longest) or _is_beyond(found, config):
        return {}
    return {key: window, **found}


def _is_beyond(places: Fields, config: Config) -> bool:
    """Returns whether windows begin behind the last layer."""
    first, layers = places.get("max_window_layers"), config["num_hidden_layers"]
    return _is_count(first) and _is_count(layers) and first >= layers


def _read_none(config: Config, key: str, works: str) -> Fields:
    """Returns nothing, where `key` says that there are no windows.

    Raises:
        ConfigContradictionError: `layer_types` says that there are.
    """
    read_layer_types(config)
    if _has_windows(config):
        said = "null" if config.get(key) is None else "false"
        rule = f"is {said}, and layer_types has layers that attend in windows"
        raise ConfigContradictionError(key, rule, f"set it to {works}, or make every word of layer_types {FULL}")
    return {}


def _has_windows(config: Config) -> bool:
    kinds = config.get("layer_types")
    return _is_list(kinds) and any(kind in _WINDOWS for kind in map(str, kinds))


def read_layer_types(config: Config) -> Fields:
    """Returns which layers attend in windows by `layer_types`, one word a layer; nothing where that is not given.

    Raises:
        UnsupportedModelError: a word is of another kind of attention, or windows come in an order without a period.
        ConfigContradictionError: it has not one word a layer.
    """
    kinds = config.get("layer_types")
    if not _is_list(kinds) or not kinds:
        return {}
    if others := sorted({str(kind) for kind in kinds} - {FULL, *_WINDOWS}):
        raise UnsupportedModelError(f"layers of {', '.join(others)[:80]} (layer_types)")
    _check_length(config, "layer_types")
    return _find_period([kind == FULL for kind in kinds])


def _check_length(config: Config, key: str) -> None:
    said, layers = len(config[key]), config["num_hidden_layers"]
    if _is_count(layers) and said != layers:
        rule = f"has {said} words, and num_hidden_layers is {layers}; it has one for each layer"
        raise ConfigContradictionError(key, rule, f"give {layers} words, or leave {key} out")


def _find_period(is_whole: Sequence[bool]) -> Fields:
    """Returns first layers or a period that say which layers attend to all."""
    if all(is_whole):
        return {"max_window_layers": len(is_whole)}
    if not any(is_whole):
        return {}
    period, leading = is_whole.index(True) + 1, is_whole.index(False)
    if all(whole == (n % period == 0) for n, whole in enumerate(is_whole, 1)):
        return {"sliding_window_pattern": period}
    if not any(is_whole[leading:]):
        return {"max_window_layers": leading}
    raise UnsupportedModelError("windows of attention in layers that follow no period (layer_types)")


# ---- experts --------------------------------------------------------------------------------------------------------


def read_dense_before_experts(config: Config) -> Fields:
    """Returns the dense layers before those with experts, as DeepSeek has them."""
    if config.get("moe_layer_freq", 1) != 1:
        raise UnsupportedModelError(f"experts in every {config['moe_layer_freq']}-th layer (moe_layer_freq)")
    kinds = config.get("mlp_layer_types")
    if not _is_list(kinds) or not kinds:
        return {"first_k_dense_replace": config["first_k_dense_replace"] or 0}
    dense = sum(kind == "dense" for kind in kinds)
    _check_length(config, "mlp_layer_types")
    if list(kinds) != ["dense"] * dense + ["sparse"] * (len(kinds) - dense):
        raise UnsupportedModelError("dense layers between those with experts (mlp_layer_types)")
    return {"first_k_dense_replace": dense}


def read_sparse_layers(config: Config) -> Fields:
    """Returns which layers have experts by `decoder_sparse_step` and `mlp_only_layers`, as Qwen says it."""
    dense = config["mlp_only_layers"] or []
    if not _is_list(dense) or sorted(map(str, dense)) != sorted(map(str, range(len(dense)))):
        raise UnsupportedModelError("dense layers that are not the first ones (mlp_only_layers)")
    return {"first_k_dense_replace": len(dense), "decoder_sparse_step": config["decoder_sparse_step"]}


def read_interleaved_experts(config: Config) -> Fields:
    """Returns which layers have experts by `moe_layers` or `interleave_moe_layer_step`, as Llama 4 says it."""
    told, layers = config.get("moe_layers"), config["num_hidden_layers"]
    if not _is_list(told) or not told:
        return {"decoder_sparse_step": config["interleave_moe_layer_step"]}
    step = told[0] + 1 if _is_count(told[0]) or told[0] == 0 else 0
    every = range(step - 1, layers, step) if step and _is_count(layers) else range(0)
    if len(told) != len(every) or list(told) != list(every):
        raise UnsupportedModelError("experts in layers that follow no period (moe_layers)")
    return {"decoder_sparse_step": step}


# ---- kinds of values ------------------------------------------------------------------------------------------------


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


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


TEXT: Final = "text_config"


@dataclass(frozen=True)
class ConfigReading:
    """Fields of `ModelSpec` as a config has them, not yet checked.

    Attributes:
        fields: by the names of `ModelSpec`.
        keys: field → the config's key, where they differ; with `text_config.` before it, where it stands there.
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
    return next((name for name, architecture in _list_architectures() if architecture == first), first)


def suggest_model_types(config: Config, *, most: int = 3) -> tuple[str, ...]:
    """Returns families whose name is near to the one that a config has, the nearest first."""
    asked = find_model_type(config)[:128].lower()
    words = {name: name for name in (*FAMILIES, *WRAPPERS)} | {
        architecture.lower(): name for name, architecture in _list_architectures()
    }
    near = difflib.get_close_matches(asked, words, n=2 * most, cutoff=0.6)
    return tuple(dict.fromkeys(words[word] for word in near))[:most]


def _list_architectures() -> Iterator[tuple[str, str]]:
    """Yields each family's name with the class that has it."""
    yield from ((name, family.architecture) for name, family in FAMILIES.items())
    yield from ((name, wrapper.architecture) for name, wrapper in WRAPPERS.items())


def find_language_model(config: Config) -> tuple[Config, str]:
    """Returns the part of a config that says the language model, and the `text_config.` before its keys, if it is one.

    Raises:
        ConfigContradictionError: the config is of a family with such a part, and has none.
    """
    model_type, text = find_model_type(config), config.get(TEXT)
    if isinstance(text, Mapping) and model_type not in FAMILIES:
        return _read_text(config, text, model_type), f"{TEXT}."
    if model_type in WRAPPERS:
        rule = f"is missing; a {model_type} config.json has its language model there"
        raise ConfigContradictionError(TEXT, rule, f"give it, or the language model's own: {WRAPPERS[model_type].text}")
    return config, ""


def _read_text(config: Config, text: Mapping[str, Any], model_type: str) -> Config:
    """Returns the language model's part with its family, its name, and what the whole says of its embeddings."""
    wrapper = WRAPPERS.get(model_type)
    own = text.get("model_type") or (wrapper.text if wrapper else model_type)
    said = {key: config[key] for key in ("tie_word_embeddings",) if config.get(key) is not None}
    name = _read_name(config) or model_type
    return {**said, **text, "model_type": own, "_name_or_path": f"{name}, its language model alone"}


def read_config(config: Config, prefix: str = "") -> ConfigReading:
    """Returns the fields of `ModelSpec` that a config.json of one of `FAMILIES` means.

    Args:
        config: its content, or its part that `find_language_model` found.
        prefix: what stands before its keys where they are named.

    Raises:
        UnsupportedModelError: it has what `ModelSpec` cannot say, such as an activation that is not known.
        ConfigContradictionError: two of its keys do not agree.
        KeyError: its family is none of `FAMILIES`.
    """
    model_type = find_model_type(config)
    family = FAMILIES[model_type]
    try:
        fields = _read_fields(family, config)
    except UnsupportedModelError as refused:
        raise UnsupportedModelError(f"this {model_type} config.json has {refused}") from None
    except ConfigContradictionError as wrong:
        raise ConfigContradictionError(f"{prefix}{wrong.key}", wrong.rule, wrong.works) from None
    own = {name: keys[0] for name, keys in family.keys.items()}
    return ConfigReading(fields, {name: f"{prefix}{own.get(name, name)}" for name in (*fields, *own)})


def _read_fields(family: Family, config: Config) -> dict[str, Any]:
    values = {**family.defaults, **config}
    fields = {"name": _read_name(config), **{key: value for key, value in family.fixed.items() if value is not None}}
    for name in (*_PLAIN_FIELDS, *family.keys):
        keys = family.keys.get(name, (name,))
        if name not in family.fixed and any(key in family.defaults for key in keys):
            fields[name] = _pick(config, family.defaults, keys)
    for read in family.readings:
        fields |= read(values)
    _check_head(values)
    fields["activation"] = _read_activation(values)
    if fields["intermediate_size"] is None and isinstance(fields["hidden_size"], int):
        fields["intermediate_size"] = 4 * fields["hidden_size"]  # GPT-2's n_inner
    if fields.get("num_shared_experts", 0) is None:
        fields["num_shared_experts"] = 0
    if family.defaults.get("attention_bias") is not None:
        fields["attention_output_bias"] = fields["attention_bias"]
    return fields


def _pick(config: Config, defaults: Config, keys: tuple[str, ...]) -> Any:
    """Returns the first value that is not null; null where the config says only that; else the default.

    Raises:
        ConfigContradictionError: two of the keys have different values.
    """
    given = {key: config[key] for key in keys if key in config}
    stood = {key: value for key, value in given.items() if value is not None}
    if not stood:
        return None if given else next((defaults[key] for key in keys if key in defaults), None)
    (first, value), *others = stood.items()
    for key, other in others:
        if other != value:
            rule = f"is {str(other)[:40]}, and {first} is {str(value)[:40]}; both mean the same"
            raise ConfigContradictionError(key, rule, f"leave {key} out, or give both the same value")
    return value


def _check_head(values: Config) -> None:
    """Passes over a size of latent attention's heads that is written out, where it is the sum of its parts.

    Raises:
        ConfigContradictionError: it is not.
    """
    whole, plain, turned = (values.get(key) for key in ("qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"))
    if whole is None or not isinstance(plain, int) or not isinstance(turned, int) or whole == plain + turned:
        return
    rule = f"is {str(whole)[:40]}, and qk_nope_head_dim {plain} + qk_rope_head_dim {turned} is {plain + turned}"
    raise ConfigContradictionError("qk_head_dim", rule, f"set it to {plain + turned}, or leave it out")


def _read_name(config: Config) -> str | None:
    name = config.get("_name_or_path")
    return name[-128:] if isinstance(name, str) and name else None


def _read_activation(values: Config) -> str:
    name = next((str(values[key]) for key in _ACTIVATION_KEYS if values.get(key) is not None), "None")
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(f"the activation {name[:40]}; those that are known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


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
    "use_parallel_residual",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "index_topk",
    "index_n_heads",
    "index_head_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)
"""Fields that have the name of their key, in the families whose defaults have it."""
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
