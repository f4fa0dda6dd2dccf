"""Problem: the body of every error reply, RFC 9457 with our `code`, `hint`, `errors`, `request_id`.

Also how an error becomes one, and how pydantic's findings become an error: the same words on both sides of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from meshwright.errors import InvalidMeshError, InvalidRequestError, ProblemError, RequestError
from meshwright.wire.base import SCHEMA_VERSION, Reply


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
    """Returns the problem for pydantic's list of errors: `invalid_mesh` if only the mesh is wrong."""
    entries: dict[str, str] = {}
    for error in errors:
        field = "body" if error["type"] == "json_invalid" else _field_of(error["loc"])
        message = _message_of(error)
        entries[field] = f"{entries[field]}; or {message}" if field in entries else message
    fields = [{"field": field, "message": message} for field, message in entries.items()]
    first = fields[0] if fields else {"field": "body", "message": "not valid"}
    more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
    kind = InvalidMeshError if set(entries) == {"mesh"} else InvalidRequestError
    detail = f"{first['field']}: {first['message']}{more}"
    return kind(detail, errors=fields, hint="GET /docs shows every field with its type and bounds")


def _field_of(location: Sequence[int | str]) -> str:
    """Returns the dotted path without the transport's first part and without pydantic's union tags."""
    parts = list(location[1:] if location and location[0] in {"body", "query", "path", "header"} else location)
    if parts and parts[0] == "mesh":
        return "mesh"
    named = [str(part) for part in parts if isinstance(part, int) or str(part).isidentifier()]
    named = [part for part in named if part not in {"str", "int", "float", "bool", "DeviceSelection"}]
    return ".".join(named) or "body"


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


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
