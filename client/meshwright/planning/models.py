"""What a request's `model` means: a preset's name, the content of a Hugging Face config.json, or plain dimensions.

Rule: what it returns can be counted and planned: its fields fit together. A model that is known and that
`ModelSpec` cannot say is told from a wrong one. Knows no mesh, and not what the compiled step has: `expressible`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from meshwright.errors import InvalidRequestError, RequestError
from meshwright.planning.model_checks import Contradiction, find_contradictions
from meshwright.planning.model_config import (
    find_language_model,
    find_model_type,
    is_config,
    read_config,
    suggest_model_types,
)
from meshwright.planning.model_families import FAMILIES, UNSUPPORTED, WRAPPERS
from meshwright.planning.model_layers import ConfigContradictionError, UnsupportedModelError
from meshwright.planning.presets import find_preset, suggest_presets
from meshwright.wire.model import ModelSpec
from meshwright.wire.problem import translate_validation

__all__ = ["UnsupportedModelError", "read_model"]

_OF_OTHER_KINDS: Final = (
    "give the dimensions of a transformer, such as hidden_size; for a model of another kind compile its own step on a "
    "plan's mesh: meshwright verify train:build --plan plan.json"
)


def read_model(value: str | Mapping[str, Any]) -> ModelSpec:
    """Returns the model that a request names or describes.

    Args:
        value: a preset ("llama3-70b", "Qwen/Qwen3-8B"), in any case; or the content of a config.json, known by its
            `model_type` or `architectures`, of which the language model counts; or the fields of `ModelSpec`.

    Raises:
        InvalidRequestError: no preset has this name, or a field is missing, unknown, out of range, or contradicts
            another; names the field, the rule, and a value that works.
        UnsupportedModelError: the model is known, and has what `ModelSpec` cannot say.
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
        raise _refuse_contradictions(((wrong.key, wrong.rule, wrong.works),), {}) from None


def _read_config(value: Mapping[str, Any]) -> ModelSpec:
    config, prefix = find_language_model(value)
    model_type = find_model_type(config)
    if model_type in UNSUPPORTED:
        raise UnsupportedModelError(_write_unsupported(f"a {model_type} model", UNSUPPORTED[model_type]))
    if model_type not in FAMILIES:
        raise _refuse_model_type(config, prefix)
    reading = read_config(config, prefix)
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
        wrong = _translate(refused, keys)
        hint = wrong.hint if "hidden_size" in fields else _OF_OTHER_KINDS
        raise InvalidRequestError(wrong.detail, hint=hint, errors=wrong.errors) from None
    if contradictions := tuple(find_contradictions(model)):
        raise _refuse_contradictions(contradictions, keys)
    return model


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
    return InvalidRequestError.of("model", detail, hint, "no preset has this name")


def _refuse_model_type(config: Mapping[str, Any], prefix: str) -> InvalidRequestError:
    key = prefix + ("model_type" if config.get("model_type") else "architectures")
    near = suggest_model_types(config)
    known = f"these are: {', '.join((*FAMILIES, *WRAPPERS))}"
    message = f"{find_model_type(config)[:80]!r} is no family that is read; {known}"
    plain = "give plain dimensions (hidden_size, num_hidden_layers, …) without model_type and architectures"
    hint = f"did you mean {' or '.join(near)}? Else {plain}" if near else plain
    return InvalidRequestError.of(f"model.{key}", f"model: {key} {message}", hint, message)


def _write_unsupported(name: str, feature: str) -> str:
    return (
        f"{name} has {feature}, which a model is not described with here, so it cannot be counted. For a plain decoder "
        f"of its size give dimensions, or take a preset such as llama3-8b, mixtral-8x7b or qwen3-8b"
    )
