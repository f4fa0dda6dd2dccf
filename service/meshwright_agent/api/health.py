"""Health routes: /healthz touches nothing, /readyz is one line from memory, /health is the board."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from meshwright.wire.health import Health
from meshwright_agent.agent import Agent
from meshwright_agent.api.dependencies import AgentHere, problems
from meshwright_agent.api.gate import JsonRoute, PlainRoute

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
