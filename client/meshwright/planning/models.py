"""A model by a preset's name, by its config.json, or by dimensions of the same names, checked for contradictions.

Rule: a preset is found by an exact name or not at all; `models.csv` beside this file has a row each, with its source.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from meshwright.errors import InvalidRequestError
from meshwright.planning.hf_config import (
    ConfigContradictionError,
    UnsupportedModelError,
    find_language_model,
    find_model_type,
    is_config,
    read_config,
    read_families,
)
from meshwright.planning.parallelism import choose_near, list_divisors, write_values
from meshwright.topology.chips import read_cells
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.problem import translate_validation

Trained = TypeVar("Trained", bound=TrainingSpec)


@dataclass(frozen=True)
class Preset:
    """One row of the table.

    Attributes:
        model: its dimensions; of an `unsupported` row, those that `ModelSpec` supports.
        row: column → cell, of those that are not empty: `aliases` in lower case; `published_parameters`, the exact
            count of trained parameters from `published_source`; `source` of the dimensions, and `notes`.
    """

    model: ModelSpec
    row: Mapping[str, str]

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.row["name"]

    @property
    def unsupported(self) -> str:
        """Its features that `ModelSpec` does not support; empty: none."""
        return self.row.get("unsupported", "")


@functools.cache
def read_presets() -> tuple[Preset, ...]:
    """Returns the whole table, by name."""
    return tuple(map(_parse_row, read_cells("meshwright.planning", "models.csv")))


def find_preset(name: str) -> Preset | None:
    """Returns the model of this name or alias, in any case and with any owner before it; None where there is no such
    preset.

    "Qwen/Qwen3-8B" and "qwen3_8b" are the preset qwen3-8b.
    """
    return _by_name().get(_fold(name))


@functools.cache
def _by_name() -> Mapping[str, Preset]:
    presets = read_presets()
    return {name: each for each in presets for name in (each.name, *each.row.get("aliases", each.name).split("|"))}


def _fold(name: str) -> str:
    return "-".join(name.lower().rpartition("/")[2].replace("_", " ").split())


def _parse_row(row: Mapping[str, str]) -> Preset:
    """Returns a preset; an empty cell is the field's default."""
    given = {name: cell for name, cell in row.items() if name in ModelSpec.model_fields}
    fields = {name: cell if name in _WORDS else json.loads(cell) for name, cell in given.items()}
    return Preset(ModelSpec(**fields), row)


_WORDS: Final = frozenset({"name", "activation", "norm", "positions", "qk_norm_scale"})
"""Fields whose cells are text; other cells are numbers, true or false."""


CONTEXT_MOST: Final = 8192
"""The default tokens of a sequence are those of the model's context, up to this limit."""


def fill_sequence_length(model: ModelSpec, training: Trained) -> Trained:
    """Returns the training with the sequence length of its model where it does not give one."""
    if "seq_len" in training.model_fields_set or model.max_position_embeddings is None:
        return training
    return training.model_copy(update={"seq_len": min(model.max_position_embeddings, CONTEXT_MOST)})


Contradiction = tuple[str, str, str]
"""A field, its problem, and a value that works."""


def find_contradictions(model: ModelSpec) -> Iterator[Contradiction]:
    """Yields contradictions in a well-formed model."""
    yield from _check_rotary(model)
    yield from _check_latent(model) if model.is_latent else _check_heads(model)
    yield from _check_indexer(model)
    yield from _check_windows(model)
    yield from _check_experts(model, model.num_experts) if model.num_experts else _check_dense(model)
    if model.positions == "learned" and model.max_position_embeddings is None:
        message = "is missing; learned positions need a vector for each position of the longest sequence"
        yield "max_position_embeddings", message, "set it to the longest sequence, such as 2048"


def _list_given(model: ModelSpec, names: tuple[str, ...]) -> list[str]:
    """Returns those of these fields that are not as they are by default."""
    return [name for name in names if getattr(model, name) != ModelSpec.model_fields[name].default]


# ---- attention ------------------------------------------------------------------------------------------------------

_OF_LATENT: Final = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_OF_GLOBAL: Final = ("global_head_dim", "num_global_key_value_heads")
_NOT_OF_LATENT: Final = ("head_dim", "attention_bias", "attention_output_bias", "qk_norm", *_OF_GLOBAL)
_OF_INDEXER: Final = ("index_topk", "index_n_heads", "index_head_dim")


def _check_rotary(model: ModelSpec) -> Iterator[Contradiction]:
    whole = {"head_dim": model.head_size, "global_head_dim": model.global_head_dim}
    turned = {"qk_rope_head_dim": model.qk_rope_head_dim} if model.is_latent else whole
    for name, size in turned.items() if model.positions == "rope" else ():
        if size and size % 2:
            yield name, f"is {size}; rotary positions turn pairs of elements, so it is even", f"set it to {size + 1}"


def _check_heads(model: ModelSpec) -> Iterator[Contradiction]:
    heads, hidden = model.num_attention_heads, model.hidden_size
    counts = {"num_key_value_heads": model.kv_heads, "num_global_key_value_heads": model.num_global_key_value_heads}
    for name, pairs in counts.items():
        if heads % (pairs or 1):
            message = f"{pairs} does not divide num_attention_heads {heads}; as many query heads share each KV head"
            yield name, message, f"use {write_values(choose_near(list_divisors(heads), pairs or 1))}"
    if model.head_dim is None and hidden % heads:
        message = f"is missing, and num_attention_heads {heads} does not divide hidden_size {hidden}"
        near = choose_near([divisor for divisor in list_divisors(hidden) if hidden // divisor % 2 == 0], heads)
        works = f"give head_dim, such as {max(hidden // heads // 2 * 2, 2)}"
        yield "head_dim", message, f"{works}, or num_attention_heads {write_values(near)}" if near else works
    for name in _list_given(model, ("q_lora_rank", *_OF_LATENT)):
        message = f"is {getattr(model, name)}, but kv_lora_rank is missing; only latent attention has it"
        yield name, message, f"leave out {name}, or give kv_lora_rank, such as 512"


def _check_latent(model: ModelSpec) -> Iterator[Contradiction]:
    for name in _OF_LATENT:
        if getattr(model, name) is None:
            yield name, "is missing; latent attention (kv_lora_rank) has it", "set it to 64 or 128"
    if model.kv_heads != model.num_attention_heads:
        message = f"is {model.kv_heads}, but in latent attention each of {model.num_attention_heads} heads has its own"
        yield "num_key_value_heads", message, "leave it out"
    for name in _list_given(model, _NOT_OF_LATENT):
        message = "is given, but latent attention (kv_lora_rank) has none in this model"
        yield name, message, "leave it out"


def _check_indexer(model: ModelSpec) -> Iterator[Contradiction]:
    given = _list_given(model, _OF_INDEXER)
    if not given:
        return
    for name in _OF_INDEXER:
        if name not in given:
            yield name, f"is missing; an indexer ({given[0]}) has it", "set it to 64 or more"
    for name in ("q_lora_rank", "kv_lora_rank"):
        if getattr(model, name) is None:
            message = f"is missing; the indexer ({given[0]}) reads the narrow queries of latent attention"
            yield name, message, f"set it to 512, or leave out {', '.join(given)}"


def _check_windows(model: ModelSpec) -> Iterator[Contradiction]:
    if model.sliding_window is not None and model.attention_chunk_size is not None:
        message = f"is {model.attention_chunk_size}, and sliding_window is {model.sliding_window}; a layer has one"
        yield "attention_chunk_size", message, "leave out one of them"
    if model.window is None:
        for name in _list_given(model, ("num_window_layers",)):
            message = f"is {getattr(model, name)}, but sliding_window is missing; it says how many layers have windows"
            yield name, message, f"leave out {name}, or give sliding_window, such as 4096"
    for name in _list_given(model, _OF_GLOBAL):
        if not 0 < model.window_layer_count < model.num_hidden_layers or model.attention_chunk_size is not None:
            message = f"is {getattr(model, name)}, but no layers have a sliding_window and others none"
            yield (
                name,
                message,
                f"leave out {name}, or give sliding_window, and num_window_layers up to {model.num_hidden_layers - 1}",
            )
        elif model.expert_layer_count and model.dense_layer_count:
            message = f"is {getattr(model, name)}, and num_expert_layers {model.num_expert_layers}"
            yield name, f"{message}; layers differ by one of them", f"leave out {name} or num_expert_layers"
    yield from _check_layers(model, "num_window_layers")


# ---- experts --------------------------------------------------------------------------------------------------------

_OF_EXPERTS: Final = (
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_shared_experts",
    "shared_expert_intermediate_size",
    "shared_expert_gate",
    "expert_bias",
    "router_bias",
    "num_expert_layers",
)
_OF_SHARED: Final = ("shared_expert_intermediate_size", "shared_expert_gate")


def _check_dense(model: ModelSpec) -> Iterator[Contradiction]:
    for name in _list_given(model, _OF_EXPERTS):
        said = str(getattr(model, name)).replace("True", "true")
        message = f"is {said}, but num_experts is missing; only a mixture of experts has it"
        yield name, message, f"leave out {name}, or give num_experts, such as 8"


def _check_experts(model: ModelSpec, experts: int) -> Iterator[Contradiction]:
    chosen = model.num_experts_per_tok
    if chosen is None:
        message = f"is missing; with num_experts {experts} it says how many of them a token goes through"
        yield "num_experts_per_tok", message, f"set it to {min(2, experts)}"
    elif chosen > experts:
        message = f"{chosen} is more than num_experts {experts}; a token goes to each expert at most once"
        yield "num_experts_per_tok", message, f"use {experts} or less"
    if model.mlp_bias:
        message = "is set, but in a mixture of experts dense layers have no biases here, and experts have expert_bias"
        yield "mlp_bias", message, "set it to false"
    for name in _list_given(model, _OF_SHARED) if not model.num_shared_experts else ():
        yield name, "is given, but num_shared_experts is 0; there is no shared expert", "set num_shared_experts to 1"
    yield from _check_layers(model, "num_expert_layers")


def _check_layers(model: ModelSpec, name: str) -> Iterator[Contradiction]:
    said, layers = getattr(model, name), model.num_hidden_layers
    if said is not None and said > layers:
        yield name, f"{said} is more than num_hidden_layers {layers}", f"use {layers} or less, or leave out {name}"


_OF_OTHER_KINDS: Final = (
    "for a model of another kind compile its own step on a plan's mesh: meshwright compile train:build --plan plan.json"
)


def read_model(value: str | Mapping[str, Any]) -> ModelSpec:
    """Returns the model that a request names or describes.

    Args:
        value: a preset ("llama3-70b", "Qwen/Qwen3-8B"), in any case; or the content of a config.json, known by its
            `model_type` or `architectures`, of which the language model is used; or the fields of `ModelSpec`.

    Raises:
        InvalidRequestError: no preset has this name, or a field is missing, unknown, out of range, or contradicts
            another; names the field, the rule, and a value that works.
        UnsupportedModelError: the model is known, and has a feature that `ModelSpec` does not support.
        TypeError: it is neither text nor a mapping.
    """
    if isinstance(value, str):
        return _read_preset(value)
    if not isinstance(value, Mapping):
        raise TypeError(f"model is a {type(value).__name__}; it is a preset's name or a mapping, such as 'llama3-8b'")
    if not is_config(value):
        return _build_model(value, {})
    try:
        return _read_config(value)
    except ConfigContradictionError as wrong:
        raise _refuse_contradictions((wrong.args,), {}) from None


def read_supported(value: str | Mapping[str, Any], hint: str) -> ModelSpec:
    """Returns the same; of a model that is not supported too, InvalidRequestError, with this hint."""
    try:
        return read_model(value)
    except UnsupportedModelError as error:
        raise InvalidRequestError.of("model", str(error), hint) from error


def _read_config(value: Mapping[str, Any]) -> ModelSpec:
    config, prefix = find_language_model(value)
    model_type = find_model_type(config)
    family = read_families().get(model_type)
    if family is None or family.text:
        raise _refuse_model_type(config, prefix)
    if family.unsupported:
        raise UnsupportedModelError(_write_unsupported(f"a {model_type} model", family.unsupported))
    return _build_model(*read_config(config, prefix))


def _read_preset(name: str) -> ModelSpec:
    preset = find_preset(name)
    if preset is None:
        raise _refuse_name(name)
    if preset.unsupported:
        raise UnsupportedModelError(_write_unsupported(preset.name, preset.unsupported))
    return preset.model


def _build_model(fields: Mapping[str, Any], keys: Mapping[str, str]) -> ModelSpec:
    """Returns the model of these fields; `keys` are their names in the request, where they differ."""
    try:
        model = ModelSpec.model_validate(fields)
    except ValidationError as refused:
        errors = refused.errors(include_url=False)
        named = [{**each, "loc": ("model", *(keys.get(str(part), part) for part in each["loc"]))} for each in errors]
        wrong = translate_validation(named)
        own = f"give the dimensions of a transformer, such as hidden_size; {_OF_OTHER_KINDS}"
        hint = wrong.hint if "hidden_size" in fields else own
        raise InvalidRequestError(wrong.detail, hint=hint, errors=wrong.errors) from None
    if contradictions := tuple(find_contradictions(model)):
        raise _refuse_contradictions(contradictions, keys)
    return model


def _refuse_contradictions(wrong: tuple[Contradiction, ...], keys: Mapping[str, str]) -> InvalidRequestError:
    named = {keys.get(name, name): (message, works) for name, message, works in wrong}  # one key can be of two fields
    fields = [{"field": f"model.{key}", "message": f"{key} {message}"} for key, (message, _) in named.items()]
    more = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
    hint = "; ".join(f"{key}: {works}" for key, (_, works) in named.items())
    return InvalidRequestError(f"model: {fields[0]['message']}{more}", hint=hint, errors=fields)


def _refuse_name(name: str) -> InvalidRequestError:
    words = difflib.get_close_matches(_fold(name)[:128], _by_name(), n=9, cutoff=0.6)
    near = list(dict.fromkeys(_by_name()[word].name for word in words))[:3]
    detail = f"model {name[:80]!r} is no preset; it is a preset's name, a config.json's content or plain dimensions"
    hint = f"did you mean {' or '.join(near)}?" if near else "use one of docs/reference/requests.md, such as llama3-8b"
    return InvalidRequestError.of("model", detail, hint, "no preset has this name")


def _refuse_model_type(config: Mapping[str, Any], prefix: str) -> InvalidRequestError:
    key = prefix + ("model_type" if config.get("model_type") else "architectures")
    known = f"these are: {', '.join(name for name, family in read_families().items() if not family.unsupported)}"
    message = f"{find_model_type(config)[:80]!r} is no family that is read; {known}"
    sizes = "hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads and vocab_size"
    own = f'of a model built as Llama give model_type "llama"; of another decoder only its dimensions: {sizes}'
    hint = f"{own}; {_OF_OTHER_KINDS}"
    return InvalidRequestError.of(f"model.{key}", f"model: {key} {message}", hint, message)


def _write_unsupported(name: str, feature: str) -> str:
    found = f"{name} has {feature}, which a model is not described with here, so it cannot be counted"
    works = "dimensions, or take a preset such as llama3-8b, mixtral-8x7b or qwen3-8b"
    return f"{found}. For a plain decoder of its size give {works}"
