"""Run routes: state, events as they happen (SSE), cancel."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from meshwright.errors import StoreUnavailableError
from meshwright.wire.runs import FINAL_STATES, Run, RunList, RunState
from meshwright_agent.api.dependencies import STORE_REFUSALS, AgentHere, LastEventId, needs, problems
from meshwright_agent.api.gate import JsonRoute
from meshwright_agent.api.pieces import write_list

log = logging.getLogger(__name__)
router = APIRouter(tags=["runs"], route_class=JsonRoute)

RunId = Annotated[str, Path(max_length=128)]
_REFUSALS = problems(s404="no run has this id") | STORE_REFUSALS
_CANCELLING: Final[dict[int | str, dict[str, Any]]] = {
    202: {"description": "it is being cancelled: the worker has yet to stop", "model": Run}
}


@router.get("/runs", summary="Runs, newest first", response_model=RunList, responses=STORE_REFUSALS)
async def list_runs(
    agent: AgentHere,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    state: Annotated[RunState | None, Query()] = None,
) -> Response:
    """The newest runs, of one state if asked; without their results, which `GET /runs/{id}` has."""
    runs = await agent.runs.list_runs(limit=limit, state=state)
    return Response(await write_list(RunList(runs=()), "runs", runs), media_type="application/json")


@router.get("/runs/{run_id}", summary="A run", response_model=Run, responses=_REFUSALS)
async def read_run(agent: AgentHere, run_id: RunId) -> Response:
    """The run's state, progress, and in the end its result or error; `age_s` of its records is as of now."""
    run = age_records(await agent.runs.get(run_id), agent.clock.now())
    return Response(run.model_dump_json(), media_type="application/json")


@router.delete(
    "/runs/{run_id}",
    summary="Cancel a run",
    response_model=Run,
    responses=_REFUSALS | _CANCELLING,
    openapi_extra=needs("operate"),
)
async def cancel_run(agent: AgentHere, run_id: RunId) -> Response:
    """Cancels a run that waits or runs; one that has ended is returned as it is (200), else 202."""
    run = age_records(await agent.runs.cancel(run_id, "by request (DELETE)"), agent.clock.now())
    status = 200 if run.state in FINAL_STATES else 202
    return Response(run.model_dump_json(), status_code=status, media_type="application/json")


def answer_run(run: Run, now: datetime) -> Response:
    """Returns the answer that something takes long: 202, and where to follow it."""
    text = age_records(run, now).model_dump_json()
    return Response(text, status_code=202, media_type="application/json", headers={"Location": f"/runs/{run.id}"})


def age_records(run: Run, now: datetime) -> Run:
    """Returns the run with the ages of its records as of `now`; they were stored as they were when measured."""
    result = run.result or {}
    if not result.get("records"):
        return run
    return run.model_copy(update={"result": {**result, "records": [_age(record, now) for record in result["records"]]}})


def _age(record: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    age_s = (now - datetime.fromisoformat(record["observed_at"])).total_seconds()
    return {**record, "age_s": max(0.0, age_s)}


ACCEPTED: Final[dict[int | str, dict[str, Any]]] = {
    202: {"description": "the compiler is asked; `Location` names the run, whose result is the answer", "model": Run}
}
"""How a route is documented that may take long."""


async def _find_run(agent: AgentHere, run_id: RunId) -> Run:
    return await agent.runs.get(run_id)


@router.get(
    "/runs/{run_id}/events",
    summary="A run's events (SSE)",
    response_class=EventSourceResponse,
    responses=_REFUSALS,
)
async def stream_events(
    agent: AgentHere,
    run: Annotated[Run, Depends(_find_run)],
    seen: LastEventId,
    after: Annotated[int, Query(ge=0, le=2**53, description="only events after this seq")] = 0,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `id` is seq, `event` is state, progress or record, `data` is RunEvent. Ends with the run."""
    try:
        async for event in agent.runs.events(run.id, max(after, seen or 0)):
            yield ServerSentEvent(raw_data=event.model_dump_json(), event=event.type, id=str(event.seq))
    except StoreUnavailableError as error:  # the answer has begun: it ends, and the listener comes back with its id
        log.warning("a listener of run %s is let go: %s", run.id, error)
