"""Which layers of a Hugging Face config.json attend in windows and which have experts, in the fields of `ModelSpec`.

Rule: a config says it layer by layer or by a period; what comes out is a first number of layers and a period, and an
order that these cannot say is refused. A value of a wrong kind is passed on as it stands: the check of `ModelSpec`
names it. No list is made of layers that the config only counts. Knows no family.

Source of the periods: huggingface/transformers v5.23.0, src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from meshwright.errors import NotCompiledError

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
