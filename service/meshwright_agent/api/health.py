"""Health routes: /healthz touches nothing, /readyz is one line from memory, /health is the board."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from meshwright.wire.health import Acknowledgement, Component, Health
from meshwright_agent.agent import Agent
from meshwright_agent.api.dependencies import BODY_REFUSALS, AgentHere, needs, problems
from meshwright_agent.api.gate import JsonRoute, PlainRoute, check_query, name_caller
from meshwright_agent.health.words import make_sendable

router = APIRouter(tags=["health"], route_class=JsonRoute)

LONGEST_LINE: Final = 80
"""Characters of /readyz: node-problem-detector cuts what is longer (its plugins' `max_output_length`)."""
_TEXT = {"description": "one line of text", "content": {"text/plain": {"schema": {"type": "string"}}}}


async def read_healthz(request: Request) -> Response:
    """Liveness: answers while the event loop turns. Static, touches nothing."""
    return PlainTextResponse("ok\n")


async def read_readyz(request: Request) -> Response:
    """Readiness: 200 when plans can be answered, else 503; one short line says why."""
    agent: Agent = request.app.state.agent
    ready, line = agent.readiness()
    return PlainTextResponse(f"{shorten_line(line)}\n", status_code=200 if ready else 503)


def shorten_line(text: str) -> str:
    """Returns the text as one line of at most `LONGEST_LINE` characters, whatever a dying worker wrote into it."""
    line = make_sendable("".join(c if c.isprintable() else " " for c in " ".join(text.split())))
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3].rstrip()}..."


async def read_health(request: Request) -> Response:
    """Each component's state: initializing, healthy, degraded, unhealthy, or unknown when its last check is too old."""
    if request.scope["query_string"]:
        check_query(request, ())
    board: BoardRendering = request.app.state.board_rendering
    return board.read(request.app.state.agent)


class BoardRendering:
    """`/health` as a reply: made anew when something was reported or a clock was set, else once a second, for ages."""

    def __init__(self) -> None:
        self._key: object = None
        self._reply = Response()

    def read(self, agent: Agent) -> Response:
        """Returns the reply of this moment."""
        second = int(agent.clock.monotonic()), int(agent.clock.now().timestamp())
        if (agent.board.version, second) != self._key:
            self._reply = Response(agent.health().model_dump_json(), media_type="application/json")
            self._key = (agent.board.version, second)
        return self._reply


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
    PlainRoute(
        "/health",
        read_health,
        tags=["health"],
        summary="Health of every component",
        response_model=Health,
        responses=problems(s422="an unknown query parameter"),
    ),
)
