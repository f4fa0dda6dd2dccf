"""What a request's `model` means: a preset's name, the content of a Hugging Face config.json, or plain dimensions.

Rule: what it returns can be built: its dimensions fit together. A model that is known but not of the kind that the
step computes is told from a wrong one. Knows no mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from meshwright.errors import InvalidRequestError, RequestError
from meshwright.planning.divisors import choose_near, list_divisors, write_values
from meshwright.planning.model_config import (
    FAMILIES,
    UNSUPPORTED,
    UnsupportedModelError,
    find_model_type,
    is_config,
    read_config,
)
from meshwright.planning.presets import find_preset, suggest_presets
from meshwright.wire.model import ModelSpec
from meshwright.wire.problem import translate_validation

__all__ = ["UnsupportedModelError", "read_model"]

Contradiction = tuple[str, str, str]
"""A field, what is wrong with it, and a value that works."""


def read_model(value: str | Mapping[str, Any]) -> ModelSpec:
    """Returns the model that a request names or describes.

    Args:
        value: a preset ("llama3-70b", "Qwen/Qwen3-8B"), in any case; or the content of a config.json, known by its
            `model_type` or `architectures`; or the fields of `ModelSpec`.

    Raises:
        InvalidRequestError: no preset has this name, or a field is missing, unknown, out of range, or contradicts
            another; names the field, the rule, and a value that works.
        UnsupportedModelError: the model is known, and has what the step cannot express.
        TypeError: it is neither text nor a mapping.
    """
    if isinstance(value, str):
        return _read_preset(value)
    if not isinstance(value, Mapping):
        raise TypeError(f"model is a {type(value).__name__}; it is a preset's name or a mapping, such as 'llama3-8b'")
    if not is_config(value):
        return _build_model(value, {})
    model_type = find_model_type(value)
    if model_type in UNSUPPORTED:
        raise UnsupportedModelError(_write_unsupported(f"a {model_type} model", UNSUPPORTED[model_type]))
    if model_type not in FAMILIES:
        raise _refuse_model_type(model_type, value)
    reading = read_config(value)
    return _build_model(reading.fields, reading.keys)


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
        raise _translate(refused, keys) from None
    if wrong := tuple(_find_contradictions(model)):
        raise _refuse_contradictions(wrong, keys)
    return model


def _find_contradictions(model: ModelSpec) -> Iterator[Contradiction]:
    """Yields what does not fit together in a model that is well formed."""
    yield from _check_heads(model)
    yield from _check_experts(model)
    if model.positions == "learned" and model.max_position_embeddings is None:
        message = "is missing; learned positions need a vector for each position of the longest sequence"
        yield "max_position_embeddings", message, "set it to the longest sequence, such as 2048"


def _check_heads(model: ModelSpec) -> Iterator[Contradiction]:
    heads, pairs, hidden = model.num_attention_heads, model.kv_heads, model.hidden_size
    if heads % pairs:
        message = f"{pairs} does not divide num_attention_heads {heads}; as many query heads share each KV head"
        yield "num_key_value_heads", message, f"use {write_values(choose_near(list_divisors(heads), pairs))}"
    if model.head_dim is None and hidden % heads:
        message = f"is missing, and num_attention_heads {heads} does not divide hidden_size {hidden}"
        near = choose_near([divisor for divisor in list_divisors(hidden) if hidden // divisor % 2 == 0], heads)
        works = f"give head_dim, such as {max(hidden // heads // 2 * 2, 2)}"
        yield "head_dim", message, f"{works}, or num_attention_heads {write_values(near)}" if near else works
    elif model.positions == "rope" and model.head_size % 2:
        message = f"is {model.head_size}; rotary positions turn pairs of elements, so it is even"
        yield "head_dim", message, f"set it to {model.head_size + 1}"


def _check_experts(model: ModelSpec) -> Iterator[Contradiction]:
    experts, chosen = model.num_experts, model.num_experts_per_tok
    if experts is None:
        for name in ("num_experts_per_tok", "moe_intermediate_size", "num_shared_experts"):
            if getattr(model, name):
                message = f"is {getattr(model, name)}, but num_experts is missing; only a mixture of experts has it"
                yield name, message, f"leave out {name}, or give num_experts, such as 8"
        return
    if chosen is None:
        message = f"is missing; with num_experts {experts} it says how many of them a token goes through"
        yield "num_experts_per_tok", message, f"set it to {min(2, experts)}"
    elif chosen > experts:
        message = f"{chosen} is more than num_experts {experts}; a token goes to each expert at most once"
        yield "num_experts_per_tok", message, f"use {experts} or less"
    if model.mlp_bias:
        yield "mlp_bias", "is set, but experts have no biases in this model", "set it to false"


def _translate(refused: ValidationError, keys: Mapping[str, str]) -> RequestError:
    errors = [
        {**error, "loc": ("model", *(keys.get(str(part), part) for part in error["loc"]))}
        for error in refused.errors(include_url=False)
    ]
    return translate_validation(errors)


def _refuse_contradictions(wrong: tuple[Contradiction, ...], keys: Mapping[str, str]) -> InvalidRequestError:
    fields = [
        {"field": f"model.{keys.get(name, name)}", "message": f"{keys.get(name, name)} {message}"}
        for name, message, _ in wrong
    ]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    hint = "; ".join(f"{keys.get(name, name)}: {works}" for name, _, works in wrong)
    return InvalidRequestError(f"model: {fields[0]['message']}{more}", hint=hint, errors=fields)


def _refuse_name(name: str) -> InvalidRequestError:
    near = suggest_presets(name)
    detail = f"model {name[:80]!r} is no preset; it is a preset's name, a config.json's content or plain dimensions"
    hint = f"did you mean {' or '.join(near)}?" if near else "use a preset such as llama3-8b, mixtral-8x7b or qwen3-8b"
    return InvalidRequestError(detail, hint=hint, errors=[{"field": "model", "message": "no preset has this name"}])


def _refuse_model_type(model_type: str, config: Mapping[str, Any]) -> InvalidRequestError:
    key = "model_type" if config.get("model_type") else "architectures"
    message = f"{model_type[:80]!r} is no family that is read; these are: {', '.join(FAMILIES)}"
    hint = "give plain dimensions (hidden_size, num_hidden_layers, …) without model_type and architectures"
    if "text_config" in config:
        hint = f"give the content of text_config alone, if it is of one of these families; or {hint}"
    return InvalidRequestError(
        f"model: {key} {message}", hint=hint, errors=[{"field": f"model.{key}", "message": message}]
    )


def _write_unsupported(name: str, feature: str) -> str:
    return (
        f"{name} has {feature}, which the step that is compiled does not have. For a plain decoder of its size give "
        f"dimensions, or take a preset such as llama3-8b, mixtral-8x7b or qwen3-8b"
    )
