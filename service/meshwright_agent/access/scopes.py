"""What a caller may do, in three steps: read < operate < admin. A route says which step it needs where it is made.

Rule: the declaration is the OpenAPI document's own `security`, so that what is documented is what is checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, get_args

Scope = Literal["read", "operate", "admin"]

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110 §9.2.1); their routes need `read` where they declare nothing."""

BEARER: Final = "bearer"
BASIC: Final = "basic"
SECURITY_SCHEMES: Final[dict[str, Any]] = {
    BEARER: {
        "type": "http",
        "scheme": "bearer",
        "description": "a token of MESHWRIGHT_TOKENS_FILE; an agent without one needs none. "
        "Scopes: read < operate (bench, lease, release, cancel) < admin (acknowledge)",
    },
    BASIC: {"type": "http", "scheme": "basic", "description": "the token as the password, any user: for browsers"},
}
"""How the document names the two ways to send a token."""


def covers(has: Scope, needed: Scope) -> bool:
    """Returns whether a caller with one scope may do what needs another."""
    return SCOPES.index(has) >= SCOPES.index(needed)


def declare_scope(scope: Scope) -> dict[str, Any]:
    """Returns what a route says about itself in the document: a token of this scope, or none where none is needed."""
    return {"security": [{BEARER: [scope]}, {BASIC: [scope]}, {}]}


def read_scope(declared: Mapping[str, Any] | None, methods: Collection[str], path: str) -> Scope:
    """Returns the scope that a route needs: as declared, else `read` for methods that change nothing.

    Args:
        declared: the route's `openapi_extra`.
        methods: its methods.
        path: its path, for the message.

    Raises:
        ValueError: it may change something and declares no scope.
    """
    for requirement in (declared or {}).get("security", ()):
        for scope in requirement.get(BEARER, ()):
            found: Scope = scope
            return found
    if SAFE_METHODS.issuperset(methods):
        return "read"
    raise ValueError(
        f"{', '.join(sorted(methods))} {path} declares no scope; add "
        'openapi_extra=needs("read"), needs("operate") or needs("admin")'
    )
