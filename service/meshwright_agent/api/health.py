"""Health routes: /healthz touches nothing, /readyz is one line from memory, /health is the board."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from meshwright.wire.health import Acknowledgement, Component, Health
from meshwright_agent.agent import Agent
from meshwright_agent.api.dependencies import BODY_REFUSALS, AgentHere, needs, problems
from meshwright_agent.api.gate import JsonRoute, PlainRoute, name_caller

router = APIRouter(tags=["health"], route_class=JsonRoute)

_TEXT = {"description": "one line of text", "content": {"text/plain": {"schema": {"type": "string"}}}}


async def read_healthz(request: Request) -> Response:
    """Liveness: answers while the event loop turns. Static, touches nothing."""
    return PlainTextResponse("ok\n")


async def read_readyz(request: Request) -> Response:
    """Readiness: 200 when plans can be answered, else 503; one short line says why."""
    agent: Agent = request.app.state.agent
    ready, line = agent.readiness()
    return PlainTextResponse(f"{line}\n", status_code=200 if ready else 503)


@router.get("/health", summary="Health of every component", responses=problems(s422="an unknown query parameter"))
async def read_health(agent: AgentHere) -> Health:
    """Each component's state: initializing, healthy, degraded, unhealthy, or unknown when its last check is too old."""
    return agent.health()


@router.post(
    "/health/acknowledge",
    summary="Say that a component's faults are dealt with",
    responses=problems(
        s404="component_not_found: no component has this name", s422="invalid_request: no component, or no reason"
    )
    | BODY_REFUSALS,
    openapi_extra=needs("admin"),
)
async def acknowledge(agent: AgentHere, request: Acknowledgement, http: Request) -> Component:
    """Clears standing faults, and what counters have told so far; a device that is missing is expected no more.

    What the next look sees anew stands again. The answer is the component as it is then; the word itself is an event.
    """
    return agent.acknowledge(request, name_caller(http.scope))


PLAIN_ROUTES = (
    PlainRoute("/healthz", read_healthz, tags=["health"], response_class=PlainTextResponse, responses={200: _TEXT}),
    PlainRoute(
        "/readyz",
        read_readyz,
        tags=["health"],
        response_class=PlainTextResponse,
        responses={200: _TEXT, 503: _TEXT},
    ),
)
