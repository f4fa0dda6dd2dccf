"""The app: routes, problem handlers, the contract's document. One function that joins them to an agent.

Knows which routes there are; what they answer stands in their modules.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from meshwright.wire.mesh import PlanRequest
from meshwright.wire.problem import Problem
from meshwright_agent.agent import Agent
from meshwright_agent.api import (
    batch_size,
    bench,
    devices,
    environment,
    events,
    health,
    leases,
    mesh,
    metrics,
    pages,
    runs,
    targets,
)
from meshwright_agent.api.gate import Gate, Observe
from meshwright_agent.api.openapi import document_access
from meshwright_agent.api.problem import MEDIA_TYPE, install_handlers
from meshwright_agent.api.tracing import TracedApp
from meshwright_agent.serving.refused import RefusedConnections
from meshwright_agent.telemetry.logs import log_access

API_VERSION: Final = "2.0.0.dev"
"""The version of the HTTP contract. tests/contract holds its document, and a change without a new version fails, unless
the version is in development."""

_DESCRIPTION: Final = (
    "What devices are here, which mesh, how large a batch, and how fast it really is. "
    "Every error is application/problem+json (RFC 9457) with a stable `code` and a `hint`."
)
_ROUTERS: Final = (
    health.router,
    events.router,
    mesh.router,
    targets.router,
    batch_size.router,
    bench.router,
    runs.router,
    leases.router,
    environment.router,
    devices.router,
)
_PLAIN_ROUTES: Final = (
    *health.PLAIN_ROUTES,
    *devices.PLAIN_ROUTES,
    *leases.PLAIN_ROUTES,
    *mesh.PLAIN_ROUTES,
    *metrics.PLAIN_ROUTES,
    *pages.PLAIN_ROUTES,
)


DOCUMENTED: Final = (Problem, PlanRequest)
"""Models that stand in the document though no FastAPI signature names them."""


def build_api(agent: Agent, refused: RefusedConnections | None = None) -> FastAPI:
    """Returns the FastAPI application on an agent, whose life it leads (lifespan).

    Args:
        agent: whose routes these are.
        refused: what the server counts of connections that end without a request, for /metrics.
    """
    app = FastAPI(
        title="meshwright agent",
        version=API_VERSION,
        description=_DESCRIPTION,
        lifespan=_lead,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        separate_input_output_schemas=False,
    )
    app.openapi_version = "3.2.0"
    app.state.agent = agent
    app.state.rendering = devices.Rendering()
    app.state.board_rendering = health.BoardRendering()
    app.state.meters = metrics.Meters(agent, refused)
    app.router.routes[:0] = list(_PLAIN_ROUTES)
    for router in _ROUTERS:
        app.include_router(router)
    install_handlers(app)
    _document_problems(app)
    return app


def build_app(agent: Agent, refused: RefusedConnections | None = None) -> ASGIApp:
    """Returns what the server runs: the API behind the gate; arguments as of `build_api`."""
    api = build_api(agent, refused)
    meters: metrics.Meters = api.state.meters
    observe: Observe = meters.observe
    if agent.settings.access_log:
        observe = _observe_and_log(meters.observe)
    gate = Gate(
        api,
        observe=observe,
        plain=_PLAIN_ROUTES,
        doorkeeper=agent.doorkeeper,
        observe_refusal=meters.observe_refusal,
    )
    return TracedApp(gate) if agent.settings.tracing else gate


def _observe_and_log(observe: Observe) -> Observe:
    def observe_and_log(route: str, method: str, status: int, seconds: float) -> None:
        observe(route, method, status, seconds)
        log_access(route, method, status, seconds)

    return observe_and_log


@asynccontextmanager
async def _lead(app: FastAPI) -> AsyncIterator[None]:
    agent: Agent = app.state.agent
    await agent.start()
    if agent.host.is_still:  # thousands of devices may take half a second to write: once, before anybody waits
        app.state.rendering.read(agent)
    try:
        yield
    finally:
        await agent.close()


def _document_problems(app: FastAPI) -> None:
    """Puts our own models into the document's schemas, and Problem in the place of FastAPI's own form of a 422."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        document = build()
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for model in DOCUMENTED:
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        for operation in _operations(document):
            response = operation["responses"].get("422")
            if response and "application/json" in response.get("content", {}):
                response["description"] = "the request is not valid"
                response["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        document_access(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    methods = {"get", "post", "put", "patch", "delete"}
    return [op for path in document["paths"].values() for method, op in path.items() if method in methods]
