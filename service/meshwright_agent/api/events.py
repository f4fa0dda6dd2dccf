"""Event routes: what happened to components of the host's health, and what happens (SSE)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import AwareDatetime, BeforeValidator

from meshwright.errors import StoreUnavailableError
from meshwright.wire.health import HealthEvents
from meshwright_agent.api.dependencies import MOST_SEQ, STORE_REFUSALS, AgentHere, LastEventId, problems
from meshwright_agent.api.gate import JsonRoute

log = logging.getLogger(__name__)
router: Final = APIRouter(tags=["health"], route_class=JsonRoute)

_REFUSALS = problems(s422="a query parameter that is none, or out of range") | STORE_REFUSALS


def _refuse_number(value: object) -> object:
    """Refuses a bare number, which pydantic takes for seconds or milliseconds since 1970, by its size."""
    if isinstance(value, str) and ":" not in value:
        raise ValueError("a time with its zone, as RFC 3339 has it: 2026-01-31T12:00:00Z")
    return value


Since = Annotated[AwareDatetime, BeforeValidator(_refuse_number)]
ComponentName = Annotated[str | None, Query(min_length=1, max_length=200, description="of this component alone")]


@router.get("/events", summary="Events of health, oldest first", responses=_REFUSALS)
async def read_events(
    agent: AgentHere,
    component: ComponentName = None,
    after: Annotated[int | None, Query(ge=0, le=MOST_SEQ, description="only events after this seq")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    since: Annotated[Since | None, Query(description="only events from this time on")] = None,
) -> HealthEvents:
    """Changes of state, faults that driver or kernel reported, words of operators.

    With `after`, the first `limit` events that follow it; without, the newest.
    """
    moment: datetime | None = since
    return await agent.history.list_events(after=after, limit=limit, component=component, since=moment)


@router.get(
    "/events/stream",
    summary="Events of health as they happen (SSE)",
    response_class=EventSourceResponse,
    responses=_REFUSALS,
)
async def stream_events(
    agent: AgentHere,
    seen: LastEventId,
    component: ComponentName = None,
    after: Annotated[int | None, Query(ge=0, le=MOST_SEQ, description="only events after this seq")] = None,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `id` is seq, `event` is state, fault or acknowledged, `data` is HealthEvent.

    Begins after `Last-Event-ID` or `after`, whichever is later; without both, with what happens from now on.
    """
    known = [seq for seq in (after, seen) if seq is not None]
    try:
        async for event in agent.history.follow(max(known) if known else agent.history.last_seq, component):
            yield ServerSentEvent(raw_data=event.model_dump_json(), event=event.kind, id=str(event.seq))
    except StoreUnavailableError as error:  # the answer has begun: it ends, and the listener comes back with its id
        log.warning("a listener of events is let go: %s", error)
