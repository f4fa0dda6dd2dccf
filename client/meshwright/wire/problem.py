"""Problem: the body of every error reply, RFC 9457 with our `code`, `hint`, `errors`, `request_id`.

Also how an error becomes one, and how pydantic's findings become an error: the same words on both sides of HTTP.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from meshwright import wire
from meshwright.errors import InvalidMeshError, InvalidRequestError, ProblemError, RequestError
from meshwright.spec import MeshSpec
from meshwright.wire.base import LINE_PATTERN, Reply, RequestPart, iterate_parts

MOST_ERRORS: Final = 100
"""That a refusal is made of: a list of thousands of wrong entries has thousands, all alike, and each is compared."""

_DOCS_HINT: Final = "GET /docs, and docs/reference/requests.md, show every field"
_MODEL_HINT: Final = "docs/reference/requests.md lists the dimensions of a model"
_QUOTED: Final = re.compile(r"'([^']*)'")
_TAG: Final = re.compile(r"(constrained-)?(str|int|float|bool)|Devices|.*\[.*", re.DOTALL)
"""What pydantic calls a branch of a union in a location, beside the name of a part of a request."""
_KINDS: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""Pydantic's errors of type, and what JSON calls that type."""
_LISTS: Final = frozenset({"tuple_type", "list_type"})


class FieldProblem(Reply):
    """One wrong field of a request."""

    field: str = Field(description="dotted path in the request, or the name of a header or query parameter")
    message: str


class Problem(Reply):
    """An error as `application/problem+json`."""

    type: str = Field(description="a URI that names the kind of problem: `urn:meshwright:problem:` and the code")
    title: str
    status: int
    detail: str = Field(description="what was asked, what was there, the rule")
    code: str = Field(description="stable, machine-readable; the same words as in meshwright.errors")
    hint: str = Field(default="", description="a value or a step that works")
    errors: tuple[FieldProblem, ...] = ()
    log: tuple[str, ...] = Field(default=(), description="last lines of a dead worker's log, where there is one")
    request_id: str = ""


def build_problem(error: ProblemError, *, request_id: str = "") -> Problem:
    """Returns the problem document of an error."""
    return Problem(
        type=f"urn:meshwright:problem:{error.code}",
        title=error.title,
        status=error.status,
        detail=error.detail,
        code=error.code,
        hint=error.hint,
        errors=tuple(FieldProblem(**entry) for entry in error.errors),
        log=error.log,
        request_id=request_id or error.request_id,
    )


def translate_validation(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """Returns the problem for pydantic's list of errors: `invalid_mesh` if only the mesh is wrong.

    A wrong mesh has the message of `MeshSpec`. For a union, only the intended branch is reported. Errors after the
    first `MOST_ERRORS` are ignored, since each is compared with all others.
    """
    is_cut, errors = len(errors) > MOST_ERRORS, errors[:MOST_ERRORS]
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for error in _keep_meant(errors):
        entries.setdefault(_field_of(error), []).append(error)
    told = {field: _describe_errors(field, group) for field, group in entries.items()} or {"body": ("not valid", "")}
    refused = _read_mesh(errors) if "mesh" in entries else None
    if refused:
        told["mesh"] = refused.detail, refused.hint
    fields = [{"field": field, "message": message} for field, (message, _) in told.items()]
    count = f"at least {len(fields) - 1}" if is_cut else str(len(fields) - 1)
    more = f" (and {count} more)" if len(fields) > 1 else ""
    kind = InvalidMeshError if set(entries) == {"mesh"} else InvalidRequestError
    detail = f"{fields[0]['field']}: {fields[0]['message']}{more}"
    rest = _MODEL_HINT if fields[0]["field"].startswith("model.") else _DOCS_HINT
    return kind(detail, errors=fields, hint="; ".join(dict.fromkeys(hint for _, hint in told.values() if hint)) or rest)


def _keep_meant(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the errors without those that only follow from others, and those of branches that were not meant."""
    places = [tuple(error["loc"]) for error in errors]
    return [
        error
        for error, place in zip(errors, places, strict=True)
        if not any(other != place and other[: len(place)] == place for other in places)
        and not (_is_of_branch(error) and any(_is_meant_more(other, error) for other in errors))
    ]


def _is_of_branch(error: Mapping[str, Any]) -> bool:
    """True where an error says that the value is not of the type of a branch of a union."""
    return bool(error["loc"]) and _is_type_error(error) and _is_tag(error["loc"][-1])


def _is_meant_more(other: Mapping[str, Any], error: Mapping[str, Any]) -> bool:
    """True where both are of one union, and the value has the type of the branch of `other`."""
    place, beside = tuple(error["loc"]), tuple(other["loc"])
    depth = len(place) - 1
    if len(beside) <= depth or beside[:depth] != place[:depth] or beside[depth] == place[depth]:
        return False
    return len(beside) > depth + 1 or not _is_type_error(other)


def _is_type_error(error: Mapping[str, Any]) -> bool:
    """True where the value is not of the branch's type; of a literal, where it is not that word."""
    return error["type"] == "literal_error" or str(error["type"]).endswith("_type")


def _is_tag(part: int | str) -> bool:
    """True for what pydantic puts into a location for a branch of a union: "tuple[int, ...]", "DeviceSelection"."""
    return isinstance(part, str) and (_TAG.fullmatch(part) is not None or _find_part(part) is not None)


def _find_part(tag: str) -> type[RequestPart] | None:
    """Returns the part of a request in a tag: "DeviceSelection", "function-after[f(), DeviceSelection]"."""
    name = tag.removesuffix("]").rpartition(" ")[2]
    return next((part for part in iterate_parts() if part.__name__ == name), None)


def _field_of(error: Mapping[str, Any]) -> str:
    """Returns the dotted path without the transport's first part and without pydantic's union tags."""
    location = tuple(error["loc"])
    if error["type"] == "json_invalid":
        return "body"
    if location and location[0] in {"query", "path", "header"}:
        return ".".join(map(str, location[1:])) or str(location[0])
    parts = location[1:] if location and location[0] == "body" else location
    if parts and parts[0] == "mesh":
        return "mesh"
    last = len(parts) - 1
    is_name = error["type"] == "extra_forbidden"
    named = [str(part)[:80] for i, part in enumerate(parts) if (is_name and i == last) or not _is_tag(part)]
    return ".".join(named) or "body"


def _describe_errors(field: str, errors: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Returns the message of one field, and a hint with a value that works where one is known."""
    kinds = list(dict.fromkeys(map(_kind_of, errors)))
    if all(kinds) and (len(errors) > 1 or errors[0]["type"] in _KINDS):
        named = [kind for kind in kinds if kind != "an integer" or "a number" not in kinds]
        message = f"it should be {' or '.join(named)}, got {_shorten(errors[0].get('input'))}"
        return message, _hint_of_kind(field, errors)
    hint = next((hint for error in errors if (hint := _hint_of(field, error))), "")
    return "; or ".join(dict.fromkeys(map(_message_of, errors))), hint


def _kind_of(error: Mapping[str, Any]) -> str:
    """Returns the type, or the word, that the branch of an error takes; "" where the type is not the problem."""
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"])
    return _KINDS.get(error["type"], "")


def _hint_of_kind(field: str, errors: Sequence[Mapping[str, Any]]) -> str:
    """Returns a hint for a value of a type that the field does not take."""
    value, kinds = errors[0].get("input"), {error["type"] for error in errors}
    if field == "devices":
        return _hint_of_devices(value, errors)
    if kinds <= _LISTS and isinstance(value, str | int | float) and not isinstance(value, bool):
        entries = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
        return f"write {field} as a list: {_shorten_json(entries)}"
    return next((hint for error in errors if (hint := _hint_of(field, error))), "")


def _hint_of_devices(value: object, errors: Sequence[Mapping[str, Any]]) -> str:
    """Returns the forms of `devices` that the request takes, with the possible meaning of the value in each."""
    parts = [_find_part(str(error["loc"][-1])) for error in errors]  # a branch of a union is named by its class
    words = [str(error["ctx"]["expected"]) for error in errors if error["type"] == "literal_error"]
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else None
    forms = ["[0, 1] for devices 0 and 1" if number is None else f"[{number}] for device {number}"]
    if any(part is not None and "count" in part.model_fields for part in parts):
        count = number or 2
        forms.append(f'{{"count": {count}}} for {count} device{"s" * (count > 1)}')
    return f"use {', or '.join([*forms, *(word.replace(chr(39), chr(34)) for word in words)])}"


def _read_mesh(errors: Sequence[Mapping[str, Any]]) -> InvalidMeshError | None:
    """Returns the message of `MeshSpec` for a value that matches no form of a mesh; None where it finds no error."""
    whole = next((error for error in errors if tuple(error["loc"])[-2:] == ("mesh", "str")), None)
    if whole is None:
        return None
    try:
        MeshSpec.parse(whole["input"])
    except InvalidMeshError as refused:
        return refused
    return None


def _message_of(error: Mapping[str, Any]) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "unknown field"
        case "missing":
            return "this field is required"
        case "json_invalid":
            return f"not valid JSON: {error.get('ctx', {}).get('error', error['msg'])}"
        case "string_pattern_mismatch" if error["ctx"]["pattern"] == LINE_PATTERN:
            return f"it should be one line without control characters, got {_shorten(error['input'])}"
        case "string_pattern_mismatch" if error["ctx"]["pattern"] == wire.leases.LEASE_ID_PATTERN:
            return f"it should be {wire.leases.LEASE_ID_RULE}, got {_shorten(error['input'])}"
        case "value_error":
            text, value = str(error["msg"]).removeprefix("Value error, "), error.get("input")
            is_shown = isinstance(value, list | tuple | dict) or _shorten(value) in text
            return text if is_shown else f"{text}, got {_shorten(value)}"
        case "too_short" | "too_long":
            limits = error["ctx"]
            bound = f"{limits['min_length']} or more" if "min_length" in limits else f"up to {limits['max_length']}"
            return f"it should have {bound} entries, got {limits['actual_length']}"
        case _:
            return f"{error['msg'][0].lower()}{error['msg'][1:]}, got {_shorten(error.get('input'))}"


_HINTS_OF_MISSING: Final = {
    "mesh": 'give a mesh, such as "dp:2,tp:4"; POST /mesh/search finds one for a model',
    "model": 'add "model": "llama3-8b"',
    "training": 'add "training": {"global_batch_size": 64}',
}


def _hint_of(field: str, error: Mapping[str, Any]) -> str:
    limits, value = error.get("ctx", {}), error.get("input")
    match error["type"]:
        case "greater_than_equal":
            return f"set {field} to {limits['ge']} or more"
        case "greater_than":
            return f"set {field} to more than {limits['gt']}, such as {limits['gt'] + 1}"
        case "less_than_equal":
            return f"set {field} to {limits['le']} or less"
        case "literal_error" if error["loc"][-1] == "[key]":
            return f"in place of {field} use one of {limits['expected']}"
        case "literal_error":
            words = _QUOTED.findall(limits["expected"])
            near = difflib.get_close_matches(str(value)[:80], words, n=1)
            return f"set {field} to {near[0]!r}" if near else f"set {field} to one of these, such as {words[0]!r}"
        case "string_too_long" | "string_too_short":
            least = limits.get("min_length")
            return f"write {least} or more characters" if least else f"write up to {limits['max_length']} characters"
        case "missing":
            return _HINTS_OF_MISSING.get(field, "")
        case "extra_forbidden" if field.startswith("model."):
            near = difflib.get_close_matches(
                field.removeprefix("model."), wire.model.ModelSpec.model_fields, n=1, cutoff=0.75
            )
            return f"write {near[0]} in place of {field}" if near else _MODEL_HINT
        case "too_long":
            return f"give {field} up to {limits['max_length']} entries"
        case "too_short":
            return f"give {field} {limits['min_length']} or more entries" + ", or leave it out" * (field != "hosts")
        case "string_pattern_mismatch" if limits["pattern"] == LINE_PATTERN:
            line = _join_lines(str(value))
            return f"write {field} on one line" + (f": {_shorten_json(line)}" if line else "")
        case "string_pattern_mismatch" if limits["pattern"] == wire.leases.LEASE_ID_PATTERN:
            return 'name the job, such as "slurm-4711"'
        case "bool_type":
            return f"set {field} to true or false"
        case "int_type" if isinstance(value, float) and value.is_integer():
            return f"write {field} without a fraction: {int(value)}"
        case "int_type" | "float_type" if isinstance(value, str) and value.isascii() and value.isdigit():
            return f"write {field} without quotes: {value[:20]}"
        case "int_type" if re.fullmatch(r"devices\.\d+", field):
            return "name devices by number, such as [0, 1]"
        case _:
            return ""


def _join_lines(text: str) -> str:
    """Returns text with a space for each run of control characters and spaces."""
    return " ".join("".join(" " if unicodedata.category(char) == "Cc" else char for char in text).split())


def _shorten(value: object) -> str:
    return _cut(repr(value))


def _shorten_json(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
