"""One request and its outcome, as values: the interface between the core and the sender.

Independent of endpoints and of the HTTP library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FailureKind = Literal["refused", "timeout", "stale", "lost", "untrusted", "expired", "handshake", "closed"]
"""No listener, or no such host · no answer in time · a closed keep-alive connection · any other broken exchange · TLS:
the agent's certificate is not trusted · it is not valid at this time · the agent rejects the client's certificate, or
does not use TLS · this client was closed."""


@dataclass(frozen=True)
class Request:
    """One HTTP request. `path` starts with a slash and carries the query."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Answer:
    """A whole reply, or the head of a stream. Header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def media_type(self) -> str:
        """The content type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True)
class Failure:
    """No reply, or half of one."""

    kind: FailureKind
    message: str


Outcome = Answer | Failure
