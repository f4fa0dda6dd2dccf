"""What the OpenAPI document says of access: the ways to send a token, the scope of each operation, its refusals.

Rule: what a route declared stays; `read` is added where a route declares nothing and is not open to probes.
"""

from __future__ import annotations

from typing import Any, Final

from meshwright_agent.access.doorkeeper import CHALLENGE, OPEN_PATHS
from meshwright_agent.access.scopes import SECURITY_SCHEMES, declare_scope
from meshwright_agent.api.dependencies import problems

_METHODS: Final = ("get", "head", "post", "put", "patch", "delete")
_UNKNOWN: Final = problems(
    s401="unauthorized: where the agent has tokens or a CA for clients, and none was shown that is good",
    s421="host_not_allowed: the Host header names another host",
)
_SMALL: Final = problems(s403="forbidden: the token's scope is too small, or a page of another site sent this")


def document_access(document: dict[str, Any]) -> None:
    """Writes schemes, scopes and refusals into an OpenAPI document."""
    document["components"]["securitySchemes"] = SECURITY_SCHEMES
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                _document_operation(path, method, operations[method])


def _document_operation(path: str, method: str, operation: dict[str, Any]) -> None:
    refusals = dict(_UNKNOWN)
    if path in OPEN_PATHS:
        operation["security"] = []
        del refusals[401]
    operation.setdefault("security", declare_scope("read")["security"])
    if method not in {"get", "head"}:
        refusals |= _SMALL
    for status, refusal in refusals.items():
        _add_response(operation["responses"], str(status), refusal)
    if 401 in refusals:
        challenge = {"schema": {"type": "string"}, "description": CHALLENGE}
        operation["responses"]["401"] = operation["responses"]["401"] | {"headers": {"WWW-Authenticate": challenge}}


def _add_response(responses: dict[str, Any], status: str, refusal: dict[str, Any]) -> None:
    """Adds a refusal; to what stands there for its status already, as one more case."""
    if status not in responses:
        responses[status] = refusal
        return
    responses[status]["description"] += f"; {refusal['description']}"
