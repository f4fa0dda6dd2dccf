"""Problem: the body of every error reply, RFC 9457 with our `code`, `hint`, `errors`, `request_id`.

Also how an error becomes one, and how pydantic's findings become an error: the same words on both sides of HTTP.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from meshwright.errors import InvalidMeshError, InvalidRequestError, ProblemError, RequestError
from meshwright.spec import MeshSpec
from meshwright.wire.base import SCHEMA_VERSION, Reply

MOST_ERRORS: Final = 100
"""That a refusal is made of: a list of thousands of wrong entries has thousands, all alike, and each is compared."""

_DOCS_HINT: Final = "GET /docs shows every field with its type and bounds"
_QUOTED: Final = re.compile(r"'([^']*)'")
_TAGS: Final = frozenset({"str", "int", "float", "bool", "DeviceSelection", "Devices"})
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

    A wrong mesh is told in the words of `MeshSpec`; of a union, only the branch that the value was meant for. After
    the first `MOST_ERRORS` none is looked at: each is compared with all others.
    """
    is_cut, errors = len(errors) > MOST_ERRORS, errors[:MOST_ERRORS]
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for error in _keep_meant(errors):
        entries.setdefault(_field_of(error), []).append(error)
    told = {field: _tell(field, group) for field, group in entries.items()} or {"body": ("not valid", "")}
    refused = _read_mesh(errors) if "mesh" in entries else None
    if refused:
        told["mesh"] = refused.detail, refused.hint
    fields = [{"field": field, "message": message} for field, (message, _) in told.items()]
    count = f"at least {len(fields) - 1}" if is_cut else str(len(fields) - 1)
    more = f" (and {count} more)" if len(fields) > 1 else ""
    kind = InvalidMeshError if set(entries) == {"mesh"} else InvalidRequestError
    detail = f"{fields[0]['field']}: {fields[0]['message']}{more}"
    return kind(detail, errors=fields, hint="; ".join(hint for _, hint in told.values() if hint) or _DOCS_HINT)


def _keep_meant(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the errors without those that only follow from others, and those of branches that were not meant."""
    places = [tuple(error["loc"]) for error in errors]
    return [
        error
        for error, place in zip(errors, places, strict=True)
        if not any(_is_within(other, place) for other in places)
        and not any(_is_meant_more(other, error) for other in errors)
    ]


def _is_within(inner: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _is_meant_more(other: Mapping[str, Any], error: Mapping[str, Any]) -> bool:
    """True where both are of one union, `error` says that the value has not its branch's type, and `other` goes on."""
    place, beside = tuple(error["loc"]), tuple(other["loc"])
    depth = len(place) - 1
    if not (place and _is_tag(place[-1]) and _is_type_error(error)):
        return False
    if len(beside) <= depth or beside[:depth] != place[:depth] or beside[depth] == place[depth]:
        return False
    return len(beside) > depth + 1 or not _is_type_error(other)


def _is_type_error(error: Mapping[str, Any]) -> bool:
    return str(error["type"]).endswith("_type")


def _is_tag(part: int | str) -> bool:
    """True for what pydantic puts into a location for a branch of a union: "tuple[int, ...]", "DeviceSelection"."""
    return isinstance(part, str) and (part in _TAGS or "[" in part)


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


def _tell(field: str, errors: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Returns the message of one field, and a hint with a value that works where one is known."""
    if len(errors) > 1 and all(error["type"] in _KINDS for error in errors):
        kinds = " or ".join(dict.fromkeys(_KINDS[error["type"]] for error in errors))
        return f"it should be {kinds}, got {_shorten(errors[0].get('input'))}", ""
    hints = [hint for error in errors if (hint := _hint_of(field, error))]
    return "; or ".join(dict.fromkeys(map(_message_of, errors))), hints[0] if hints else ""


def _read_mesh(errors: Sequence[Mapping[str, Any]]) -> InvalidMeshError | None:
    """Returns what `MeshSpec` says of the value that no form of a mesh takes; None where it finds no fault."""
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
            return f"unknown field; schema_version {SCHEMA_VERSION} does not have it"
        case "missing":
            return "this field is required"
        case "json_invalid":
            return f"not valid JSON: {error.get('ctx', {}).get('error', error['msg'])}"
        case _:
            return f"{error['msg'][0].lower()}{error['msg'][1:]}, got {_shorten(error.get('input'))}"


def _hint_of(field: str, error: Mapping[str, Any]) -> str:
    limits, value = error.get("ctx", {}), error.get("input")
    match error["type"]:
        case "greater_than_equal":
            return f"set {field} to {limits['ge']} or more"
        case "greater_than":
            return f"set {field} to more than {limits['gt']}, such as {limits['gt'] + 1}"
        case "less_than_equal":
            return f"set {field} to {limits['le']} or less"
        case "literal_error":
            return f"set {field} to {_choose_near(value, _QUOTED.findall(limits['expected']))!r}"
        case "string_too_long" | "string_too_short":
            least = limits.get("min_length")
            return f"write {least} or more characters" if least else f"write up to {limits['max_length']} characters"
        case "too_long":
            return f"give {field} up to {limits['max_length']} entries"
        case "too_short":
            return f"give {field} {limits['min_length']} or more entries, or leave it out"
        case "bool_type":
            return f"set {field} to true or false"
        case "int_type" if isinstance(value, str) and value.isascii() and value.isdigit():
            return f"write {field} without quotes: {value[:20]}"
        case _:
            return ""


def _choose_near(value: object, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(value)[:80], words, n=1)
    return near[0] if near else words[0]


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
