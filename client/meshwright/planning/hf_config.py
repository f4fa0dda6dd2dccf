"""A Hugging Face config.json as fields of `ModelSpec`: its family, its sizes, how many layers have windows or experts.

Rule: `hf_families.toml` beside this file defines the meaning of each family's keys. A value of a wrong kind is passed
on unchanged; the check of `ModelSpec` names it.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, TypeGuard

from meshwright.errors import NotCompiledError
from meshwright.wire.model import ModelSpec

Config = Mapping[str, Any]
Fields = dict[str, Any]


class UnsupportedModelError(NotCompiledError):
    """A known model that `ModelSpec` does not support. The text has the reason in a sentence. An answer, not a
    failure."""


class ConfigContradictionError(Exception):
    """A key of a config contradicts another: has the key to change, its problem, and what to do."""


@dataclass(frozen=True)
class Family:
    """How one `model_type` is read; see `hf_families.toml`."""

    architecture: str = ""
    text: str = ""
    unsupported: str = ""
    windows: str = ""
    mlp_ratio: int = 0
    keys: Mapping[str, list[str]] = field(default_factory=dict)
    default: Config = field(default_factory=dict)
    fixed: Config = field(default_factory=dict)

    def list_keys(self, name: str) -> list[str]:
        """Returns the keys of a field in a config, the first before others."""
        return self.keys.get(name, ["attention_bias" if name == "attention_output_bias" else name])


@functools.cache
def read_families() -> Mapping[str, Family]:
    """Returns the rows of `hf_families.toml` by `model_type`."""
    rows = tomllib.loads((files("meshwright.planning") / "hf_families.toml").read_text(encoding="utf-8"))
    return {name: Family(**row) for name, row in rows.items()}


TEXT: Final = "text_config"


# ---- the family -----------------------------------------------------------------------------------------------------


def is_config(value: Config) -> bool:
    """Returns whether this is the content of a config.json, and no plain dimensions."""
    return "model_type" in value or "architectures" in value


def find_model_type(config: Config) -> str:
    """Returns the family that a config names, by `model_type` or otherwise by the first of `architectures`.

    An unknown family is returned unchanged.
    """
    if config.get("model_type"):
        return str(config["model_type"])
    named = config.get("architectures")
    first = str(named[0] if _is_list(named) and named else named)
    known = (name for name, family in read_families().items() if first and family.architecture == first)
    return next(known, first)


def find_language_model(config: Config) -> tuple[Config, str]:
    """Returns the part of a config that describes the language model, and its prefix: `text_config.` or "".

    Raises:
        ConfigContradictionError: the config is of a family with such a part, and has none.
    """
    model_type, text = find_model_type(config), config.get(TEXT)
    family = read_families().get(model_type, Family(unsupported="not known"))
    if isinstance(text, Mapping) and (family.text or family.unsupported):
        own = text.get("model_type") or family.text or model_type
        said = {key: config[key] for key in ("tie_word_embeddings",) if config.get(key) is not None}
        name = f"{_read_name(config) or model_type}, its language model alone"
        return {**said, **text, "model_type": own, "_name_or_path": name}, f"{TEXT}."
    if family.text:
        rule = f"is missing; a {model_type} config.json has its language model there"
        raise ConfigContradictionError(TEXT, rule, f"give it, or the language model's own: {family.text}")
    return config, ""


def _read_name(config: Config) -> str | None:
    name = config.get("_name_or_path")
    return name[-128:] if isinstance(name, str) and name else None


# ---- fields ---------------------------------------------------------------------------------------------------------


def read_config(config: Config, prefix: str = "") -> tuple[Fields, dict[str, str]]:
    """Returns the fields of `ModelSpec` that a config.json defines, and the key of each field.

    Args:
        config: its content, or its part that `find_language_model` found.
        prefix: the prefix of its keys in messages.

    Raises:
        UnsupportedModelError: it has a feature that `ModelSpec` does not support, such as an unknown activation.
        ConfigContradictionError: two of its keys do not agree.
        KeyError: its family is unknown.
    """
    model_type = find_model_type(config)
    family = read_families()[model_type]
    try:
        fields = _read_fields(family, config)
    except UnsupportedModelError as refused:
        raise UnsupportedModelError(f"this {model_type} config.json has {refused}") from None
    except ConfigContradictionError as wrong:
        key, rule, works = wrong.args
        raise ConfigContradictionError(f"{prefix}{key}", rule, works) from None
    return fields, {name: prefix + (family.list_keys(name) or [name])[0] for name in ModelSpec.model_fields}


_READ_ELSEWHERE: Final = frozenset(
    {"name", "activation", "sliding_window", "attention_chunk_size", "num_window_layers", "num_expert_layers"}
)


def _read_fields(family: Family, config: Config) -> Fields:
    fields: Fields = {"name": _read_name(config), **family.fixed}
    for name, wanted in ModelSpec.model_fields.items():
        if name not in family.fixed and name not in _READ_ELSEWHERE:
            value = _pick(family, config, family.list_keys(name))
            if value is not None or wanted.is_required():
                fields[name] = value
    if fields["intermediate_size"] is None and family.mlp_ratio and isinstance(fields["hidden_size"], int):
        fields["intermediate_size"] = family.mlp_ratio * fields["hidden_size"]
    values, layers = {**family.default, **config}, fields["num_hidden_layers"]
    for key, (what, *counts) in _UNSUPPORTED.items():
        if values.get(key) and values[key] not in counts:
            raise UnsupportedModelError(f"{what} ({key})")
    fields["activation"] = _read_activation(values)
    if not values.get("enable_moe_block", True):  # Gemma 4 has it, and keys that are values, only where it says so
        fields = {name: value for name, value in fields.items() if "expert" not in name}
    if not values.get("attention_k_eq_v", True):
        fields.pop("num_global_key_value_heads", None)
    if _is_count(layers):
        fields |= _read_windows(family, values, layers)
        fields |= _read_experts(values, layers) if fields.get("num_experts") is not None else {}
    return {name: value for name, value in fields.items() if value is not None}


_UNSUPPORTED: Final = {
    "use_bidirectional_attention": ("attention in both directions", "vision"),  # text has its own still in Gemma 4
    "hidden_size_per_layer_input": ("an embedding for each layer",),
    "num_kv_shared_layers": ("layers that share keys and values",),
}
"""Keys that are not read → what they say, and values that mean no such thing."""


def _pick(family: Family, config: Config, keys: list[str]) -> Any:
    """Returns the first value that is not null; null where the config has only null; otherwise the default.

    Raises:
        ConfigContradictionError: two of the keys have different values.
    """
    given = {key: config[key] for key in keys if config.get(key) is not None}
    for key, other in given.items():
        first, value = next(iter(given.items()))
        if other != value:
            rule = f"is {str(other)[:40]}, and {first} is {str(value)[:40]}; both mean the same"
            raise ConfigContradictionError(key, rule, f"leave {key} out, or give both the same value")
    defaults = {} if any(key in config for key in keys) else family.default
    return next((found[key] for found in (given, defaults) for key in keys if key in found), None)


_ACTIVATIONS: Final = {"silu": "silu", "swish": "silu"} | dict.fromkeys(
    ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu"
)
"""Exact and approximate GELU cost a step about the same, and have no parameters."""


def _read_activation(values: Config) -> str:
    keys = ("hidden_activation", "hidden_act", "activation_function")
    name = next((str(values[key]) for key in keys if values.get(key) is not None), "silu")
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(f"the activation {name[:40]}; those that are known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


# ---- layers ---------------------------------------------------------------------------------------------------------

_FULL: Final = "full_attention"


def _read_windows(family: Family, values: Config, layers: int) -> Fields:
    """Returns the window and the number of layers with it; empty where no layer has one.

    Raises:
        UnsupportedModelError: a word of `layer_types` is of another kind of attention.
        ConfigContradictionError: a list does not have one word per layer, or has words for windows where the config has
            no window.
    """
    told = _read_words(values, "layer_types", layers, (_FULL, "sliding_attention", "chunked_attention"))
    turned = _read_words(values, "no_rope_layers", layers, ("0", "1"))  # 1: rotary, in chunks; 0: neither
    chunks = family.windows == "chunks"
    key = "attention_chunk_size" if chunks else "sliding_window"
    window, longest, said = values.get(key), values.get("max_position_embeddings"), len(told) - told.count(_FULL)
    if said and not family.windows:
        raise UnsupportedModelError("layers that attend in windows (layer_types)")
    is_off = not values.get("use_sliding_window", True)
    if said and (is_off or window is None):
        key, null, works = ("use_sliding_window", "false", "true") if is_off else (key, "null", "tokens of a window")
        rule = f"is {null}, and layer_types has layers that attend in windows"
        raise ConfigContradictionError(key, rule, f"set it to {works}, or make every word of layer_types {_FULL}")
    if is_off or window is None or not family.windows:
        return {}
    count = said if told else turned.count("1") if chunks and turned else _count_windows(family, values, layers)
    if not count or (_is_count(window) and _is_count(longest) and window >= longest):
        return {}
    return {key: window} if count == layers else {key: window, "num_window_layers": count}


def _count_windows(family: Family, values: Config, layers: int) -> int:
    first = min(_read_number(values, "max_window_layers", 0), layers)
    if period := {"pattern": "sliding_window_pattern", "chunks": "no_rope_layer_interval"}.get(family.windows):
        return layers - layers // _read_number(values, period, 1)
    return {"later": layers - first, "early": (first + 1) // 2}.get(family.windows, layers)


def _read_experts(values: Config, layers: int) -> Fields:
    """Returns the number of layers with experts; empty where all layers have them.

    Raises:
        ConfigContradictionError: no layer has experts, or a list does not have one word per layer.
    """
    key = next((key for key in ("moe_layer_freq", "interleave_moe_layer_step") if key in values), "decoder_sparse_step")
    step, first = _read_number(values, key, 1), _read_number(values, "first_k_dense_replace", 0)
    shift = 0 if key == "moe_layer_freq" else 1  # layers 0, step, 2·step, … or step - 1, 2·step - 1, …
    last = (layers - 1 + shift) // step * step - shift
    dense = [place for place in _read_places(values, "mlp_only_layers", layers) if (place + shift) % step == 0]
    count = (layers - 1 + shift) // step - (first - 1 + shift) // step - sum(place >= first for place in dense)
    if chosen := _read_places(values, "moe_layers", layers):
        count = len(chosen)
    if kinds := _read_words(values, "mlp_layer_types", layers, ("dense", "sparse")):
        key, count = "mlp_layer_types", kinds.count("sparse")
    if count > 0:
        return {} if count == layers else {"num_expert_layers": count}
    if not kinds and last >= 0:
        key = "mlp_only_layers" if first <= last else "first_k_dense_replace"
    most = {"first_k_dense_replace": last, "mlp_only_layers": None, "mlp_layer_types": None}.get(key, layers)
    works = f"use {most} or less" if most is not None else "leave it out"
    rule = f"{str(values[key])[:40]} leaves none of {layers} layers with experts"
    raise ConfigContradictionError(key, rule, f"{works}, or give no experts")


# ---- kinds of values ------------------------------------------------------------------------------------------------


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def _read_number(values: Config, key: str, least: int) -> int:
    """Returns the whole number of a key; `least` where it is missing."""
    value = values.get(key)
    if value is None:
        return least
    if not (_is_count(value) or (value == least == 0 and value is not False)):
        rule = f"is {str(value)[:40]!r}; it is a whole number, {least} or more"
        raise ConfigContradictionError(key, rule, f"set it to {least} or more, or leave it out")
    return int(value)


def _read_words(values: Config, key: str, layers: int, known: Collection[str]) -> list[str]:
    """Returns the words of a list that has one for each layer; empty where it is not given."""
    words = [str(word) for word in values[key]] if _is_list(values.get(key)) else []
    if others := sorted({*words} - {*known}):
        raise UnsupportedModelError(f"layers of {', '.join(others)[:80]} ({key})")
    if words and len(words) != layers:
        rule = f"has {len(words)} words, and num_hidden_layers is {layers}; it has one for each layer"
        raise ConfigContradictionError(key, rule, f"give {layers} words, or leave {key} out")
    return words


def _read_places(values: Config, key: str, layers: int) -> set[int]:
    """Returns the layers of a list, which counts them from 0; empty where it is not given."""
    said = values[key] if _is_list(values.get(key)) else ()
    places = {place for place in said if _is_count(place) or (place == 0 and place is not False)}
    if len(places) != len(said) or any(place >= layers for place in places):
        rule = f"is {str(said)[:40]}; it has numbers of layers, each once, from 0 to {layers - 1}"
        raise ConfigContradictionError(key, rule, f"use numbers up to {layers - 1}, or leave {key} out")
    return places
