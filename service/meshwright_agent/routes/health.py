"""Health routes: /healthz touches nothing, /readyz is a line from memory, /health lists components."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Final, Literal

import fastapi
from fastapi import APIRouter
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import AwareDatetime, BeforeValidator, Field
from starlette.responses import PlainTextResponse, Response

from meshwright.wire.health import WORST_FIRST, Acknowledgement, Component, Health, HealthEvents, State
from meshwright_agent.auth import NEEDS_READ, Admin, Reader
from meshwright_agent.health.events import make_sendable
from meshwright_agent.routes.shared import (
    MAX_SEQ,
    TEXT,
    AgentHere,
    AuthenticatorHere,
    LastEventId,
    QueryParameters,
    StrictRoute,
)
from meshwright_agent.store import StoreUnavailableError

log = logging.getLogger(__name__)
router = APIRouter(tags=["health"], route_class=StrictRoute)

MAX_LINE_CHARS: Final = 80
"""Maximum length of /readyz: node-problem-detector truncates longer lines (its plugins' `max_output_length`)."""
_LINE: Final = {"description": "one line of text", "content": TEXT}


@router.get("/healthz", response_class=PlainTextResponse, responses={200: _LINE})
async def get_healthz() -> str:
    """Liveness: answers while the event loop turns. Static, touches nothing."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse, responses={200: _LINE, 503: _LINE})
async def get_readyz(agent: AgentHere) -> Response:
    """Readiness: 200 when the devices are known and the worker has not failed, else 503; one short line says why."""
    ready, line = agent.readiness()
    return PlainTextResponse(f"{shorten_line(line)}\n", status_code=200 if ready else 503)


def shorten_line(text: str) -> str:
    """Returns the text as one line of at most `MAX_LINE_CHARS`, even if a crashed worker wrote more."""
    line = make_sendable("".join(c if c.isprintable() else " " for c in " ".join(text.split())))
    return line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 3].rstrip()}..."


class HealthQuery(QueryParameters):
    """The query of `GET /health`."""

    form: Literal["json", "text"] = Field(default="json", alias="format", description="text: worst first, for people")
    state: State | None = Field(default=None, description="only components in this state")


@router.get(
    "/health",
    summary="Health of every component",
    response_model=Health,
    responses={200: {"content": TEXT}},
    dependencies=[NEEDS_READ],
)
async def get_health(agent: AgentHere, query: Annotated[HealthQuery, fastapi.Query()]) -> Response:
    """Each component's state: initializing, healthy, degraded, unhealthy, or unknown when its last check is too old.

    `state` selects components; the state of the whole stays that of all. `?format=text` lists the worst first.
    """
    health = agent.health.view(agent.clock.now())
    parts = tuple(part for part in health.components if query.state in (None, part.state))
    if query.form == "text":
        return PlainTextResponse(format_health(health.state, parts))
    return Response(Health(state=health.state, components=parts).model_dump_json(), media_type="application/json")


def format_health(state: State, parts: Iterable[Component]) -> str:
    """Returns the overall state, then one line per component, worst first, with the action below it."""
    lines = [f"health: {state}"]
    for part in sorted(parts, key=lambda part: WORST_FIRST.index(part.state)):
        lines.append(f"{part.state:<12} {part.name}: {part.reason}")
        lines += [f"{'':<12} → {part.action}"] if part.action else []
    return "\n".join([*lines, ""])


@router.post("/health/acknowledge", summary="Acknowledge the faults of a component")
async def acknowledge_health(agent: AgentHere, request: Acknowledgement, caller: Admin) -> Component:
    """Clears the faults of a component, and counts its counters anew. A device that is missing is expected no more.

    A fault that the next probe finds counts again. The answer is the component afterwards; the acknowledgement is an
    event.
    """
    return agent.acknowledge(request, caller.name)


def _read_time(value: object) -> object:
    """Rejects a bare number, which pydantic would read as seconds or milliseconds since 1970.

    The + of a zone is a space in a query.
    """
    if isinstance(value, str) and ":" not in value:
        raise ValueError("a time with its zone, as RFC 3339 has it: 2026-01-31T12:00:00Z")
    return re.sub(r" (?=\d\d:\d\d$)", "+", value) if isinstance(value, str) else value


class EventsQuery(QueryParameters):
    """The query of `GET /events/stream`."""

    component: str | None = Field(default=None, min_length=1, max_length=200, description="of this component alone")
    after: int | None = Field(default=None, ge=0, le=MAX_SEQ, description="only events after this seq")


class EventListQuery(EventsQuery):
    """The query of `GET /events`."""

    limit: int = Field(default=100, ge=1, le=1000)
    since: Annotated[AwareDatetime, BeforeValidator(_read_time)] | None = Field(
        default=None, description="only events from this time on"
    )


@router.get("/events", summary="Events of health, oldest first", dependencies=[NEEDS_READ])
async def list_events(agent: AgentHere, query: Annotated[EventListQuery, fastapi.Query()]) -> HealthEvents:
    """Changes of state, faults that driver or kernel reported, acknowledgements.

    With `after`, the first `limit` events that follow it; without, the newest.
    """
    return await agent.history.list_events(
        after=query.after, limit=query.limit, component=query.component, since=query.since
    )


@router.get("/events/stream", summary="Events of health as they happen (SSE)", response_class=EventSourceResponse)
async def stream_events(
    agent: AgentHere,
    authenticator: AuthenticatorHere,
    caller: Reader,
    query: Annotated[EventsQuery, fastapi.Query()],
    last_event_id: LastEventId = None,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `id` is seq, `event` is state, fault or acknowledged, `data` is HealthEvent.

    Begins after `Last-Event-ID` or `after`, whichever is later; without both, with what happens from now on. When
    the token that opened it has expired or was removed, it ends instead of the next event.
    """
    known = [seq for seq in (query.after, last_event_id) if seq is not None]
    try:
        async for event in agent.history.follow(max(known) if known else agent.history.last_seq):
            if not authenticator.is_valid(caller):
                return
            if query.component in (None, event.component):
                yield ServerSentEvent(raw_data=event.model_dump_json(), event=event.kind, id=str(event.seq))
    except StoreUnavailableError as error:  # the answer has begun: it ends, and the listener reconnects with its id
        log.warning("the stream of health events ends early: %s", error)
