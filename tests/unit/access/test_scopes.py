"""Each route with the scope that it needs, literally: a route that is added stands here before it is served."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from fastapi.routing import APIRoute

from meshwright_agent.access.scopes import SAFE_METHODS, SCOPES, declare_scope, read_scope
from meshwright_agent.agent import Agent
from meshwright_agent.api.app import build_api
from meshwright_agent.api.dependencies import needs
from meshwright_agent.api.gate import JsonRoute, PlainRoute
from meshwright_agent.settings import Settings
from tests.unit.api.asgi import Heard, ask
from tests.unit.store.opening import build_closed_store

NEEDED = {
    "POST /mesh/plan": "read",
    "POST /batch-size": "read",
    "POST /placement/bench": "operate",
    "POST /devices/release": "operate",
    "DELETE /runs/{run_id}": "operate",
    "PUT /leases/{lease_id}": "operate",
    "DELETE /leases/{lease_id}": "operate",
    "POST /health/acknowledge": "admin",
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build_api(Agent(Settings(), build_closed_store())).openapi()


def test_every_operation_that_may_change_something_is_listed_with_its_scope(document: dict[str, Any]) -> None:
    found = {
        f"{method.upper()} {path}": operation["security"][0]["bearer"][0]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if method.upper() not in SAFE_METHODS
    }
    assert found == NEEDED


def test_reading_needs_read_and_probes_need_nothing(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        if "get" in operations:
            expected = [] if path in {"/healthz", "/readyz"} else declare_scope("read")["security"]
            assert operations["get"]["security"] == expected, path
    assert set(document["components"]["securitySchemes"]) == {"bearer", "basic"}


def test_every_route_asks_who_is_there_and_answers_nobody_who_came_past_the_gate(document: dict[str, Any]) -> None:
    app = build_api(Agent(Settings(), build_closed_store()))
    operations = [(path, method) for path, found in document["paths"].items() for method in found]
    assert len(operations) > 15
    for path, method in operations:
        with contextlib.suppress(KeyError):
            heard = _ask_ungated(app, method.upper(), path.replace("{", "").replace("}", ""))
            assert heard.status == 500, (method, path)


@pytest.mark.parametrize("kind", [JsonRoute, PlainRoute])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_route_that_declares_nothing_cannot_be_made(kind: type[APIRoute], method: str) -> None:
    async def answer() -> None: ...

    with pytest.raises(ValueError, match=f"{method} /x declares no scope"):
        kind("/x", answer, methods=[method])
    kind("/x", answer, methods=[method], openapi_extra=needs("admin"))
    kind("/x", answer, methods=["GET"])


@pytest.mark.parametrize("scope", SCOPES)
def test_what_is_declared_is_what_is_read(scope: Any) -> None:
    assert read_scope(declare_scope(scope), ["POST"], "/x") == scope
    assert read_scope(declare_scope(scope), ["GET"], "/x") == scope


def _ask_ungated(app: Any, method: str, target: str) -> Heard:
    async def strip(scope: Any, receive: Any, send: Any) -> None:
        scope.pop("meshwright.caller")
        await app(scope, receive, send)

    return ask(strip, method, target)
