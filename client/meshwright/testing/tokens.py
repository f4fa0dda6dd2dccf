"""The tokens of a fake agent: the scope that a route needs, and the permissions of a token. Tokens are not hashed
here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from meshwright._calls.messages import Request
from meshwright.errors import ForbiddenError, UnauthorizedError

Scope = Literal["read", "operate", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
"""Each includes the permissions of those before it."""

OPEN: Final = frozenset({"/healthz", "/readyz"})
"""Answered without a token."""

_READING_POSTS: Final = frozenset({"/mesh/plan", "/mesh/search", "/batch-size"})


def find_scope(method: str, path: str) -> Scope:
    """Returns the scope that a route needs, as in the agent's document."""
    if method == "GET" or path in _READING_POSTS:
        return "read"
    return "admin" if path == "/health/acknowledge" else "operate"


@dataclass(frozen=True)
class Token:
    """The owner of a token, and its scope."""

    name: str
    scope: Scope


class TokenBook:
    """The tokens of one fake agent; no token is required until the first one is added."""

    def __init__(self) -> None:
        self._tokens: dict[str, Token] = {}
        self._is_needed = False

    def add(self, secret: str, token: Token) -> None:
        """Makes the agent know a token."""
        self._tokens[secret] = token
        self._is_needed = True

    def remove(self, secret: str) -> None:
        """Makes the agent refuse a token that it knew."""
        self._tokens.pop(secret, None)

    def admit(self, request: Request, method: str, path: str) -> str:
        """Returns the name of the caller; "" where no token is required.

        Raises:
            UnauthorizedError: there is no token, or it is unknown.
            ForbiddenError: its scope is too small.
        """
        if not self._is_needed or path in OPEN:
            return ""
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        token = self._tokens.get(secret) if kind == "Bearer" and secret else None
        if token is None:
            was = "the one that was sent is none of its own" if secret else "none was sent"
            raise UnauthorizedError(f"this agent needs a token, and {was}")
        needed = find_scope(method, path)
        if SCOPES.index(token.scope) < SCOPES.index(needed):
            raise ForbiddenError(
                f"{method} {path} needs the scope {needed}; the token {token.name!r} has {token.scope}",
                hint=f"use a token with the scope {needed}",
            )
        return token.name
