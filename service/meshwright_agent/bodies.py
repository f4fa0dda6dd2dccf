"""Bodies: bytes as strict JSON, and as a model. RFC 8259, without what `json` lets through.

Rule: doubled names, NaN, Infinity, half a surrogate pair and anything but UTF-8 are refused, and every refusal is a
problem. Pure, so that the planner child reads what the agent only passes on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from meshwright.errors import RequestError
from meshwright.wire.problem import MOST_ERRORS, translate_validation

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")

SAID_CHARS: Final = 1 << 14
"""Of one field of a request that a run shows: 1,000 runs are kept, and `GET /runs` lists 50 of them with theirs."""

Model = TypeVar("Model", bound=BaseModel)


def decode_body(body: bytes) -> str:
    """Returns a body's text.

    Raises:
        RequestError: it is not UTF-8.
    """
    try:
        return _decode(body)
    except json.JSONDecodeError as error:
        raise _translate(error) from error


def parse_json(body: bytes) -> Any:
    """Returns the value that a body says.

    Raises:
        json.JSONDecodeError: not UTF-8, not JSON, a name twice in one object, a number that is none, half a surrogate
            pair, or nested too deep.
    """
    text = _decode(body)
    try:
        value = json.loads(text, object_pairs_hook=_build_object, parse_constant=_refuse_constant)
        if _SURROGATE.search(text):
            _refuse_halves(value)
        return value
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deep", "", 0) from error
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        raise json.JSONDecodeError(message, "", 0) from error


def parse_body(body: bytes, model: type[Model]) -> Model:
    """Returns the model that a body says.

    Raises:
        RequestError: no JSON, or not what the model takes.
    """
    try:
        return model.model_validate(parse_json(body))
    except json.JSONDecodeError as error:
        raise _translate(error) from error
    except ValidationError as error:
        found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)[: MOST_ERRORS + 1]]
        raise translate_validation(found) from error


def _translate(error: json.JSONDecodeError) -> RequestError:
    return translate_validation([{"type": "json_invalid", "loc": (), "msg": error.msg, "ctx": {"error": error.msg}}])


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        doubled = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {doubled[:80]!r} stands twice in one object; the first value would be lost")
    return built


def _refuse_halves(value: Any) -> None:
    """Passes if every string of a value can be written again: `json` reads half a pair where it is escaped.

    Source: RFC 8259 §8.2.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise ValueError(f"\\u{half:04x} is half of a surrogate pair and no character; write both halves") from error


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number; numbers are finite")


def shorten_large(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request as its run shows it: a field of more than 16 Ki characters of JSON by its digest.

    That is a `config.json` with thousands of labels, or the names of very many devices.
    """
    return {name: _shorten(value) for name, value in said.items()}


def _shorten(value: Any) -> Any:
    if not isinstance(value, dict | list | str):
        return value
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return value if len(text) <= SAID_CHARS else {"sha256": hashlib.sha256(text.encode()).hexdigest()}
