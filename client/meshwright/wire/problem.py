"""Problem: the body of every error reply, RFC 9457 with our `code`, `hint`, `errors`, `request_id`."""

from __future__ import annotations

from pydantic import Field

from meshwright.errors import ProblemError
from meshwright.wire.base import Reply


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
