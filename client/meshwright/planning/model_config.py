"""What a Hugging Face config.json says of a model, in the fields of `ModelSpec`.

Rule: a key that is missing has the default of the family's configuration class, as transformers would have it; a key
that changes what is computed and that `ModelSpec` cannot say is refused, and keys that change no tensor and no matmul
(rope_theta, torch_dtype, dropout, …) are passed over. Of a model of text and images the language model is read, from
`text_config`, and its name says so. Knows no preset, and not whether the dimensions fit together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from meshwright.planning.model_families import FAMILIES, WRAPPERS, Family
from meshwright.planning.model_layers import Config, ConfigContradictionError, UnsupportedModelError

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
