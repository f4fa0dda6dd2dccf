"""Run routes: start a bench and read the latest measurements; a run's state, its events (SSE), cancel."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import fastapi
from fastapi import APIRouter, Depends, Path, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field
from starlette.responses import Response

from meshwright.wire.bench import BenchRequest, LatestBench
from meshwright.wire.runs import FINAL_STATES, Run, RunList, RunState
from meshwright_agent.auth import NEEDS_READ, Operator, Reader, note
from meshwright_agent.routes.shared import (
    MAX_SEQ,
    AgentHere,
    AuthenticatorHere,
    LastEventId,
    QueryParameters,
    StrictRoute,
    answer_run,
    owner_of,
)
from meshwright_agent.store import StoreUnavailableError

log = logging.getLogger(__name__)
router = APIRouter(tags=["runs"], route_class=StrictRoute)

RunId = Annotated[str, Path(max_length=128)]
_QUICK: Final = BenchRequest()


class RunsQuery(QueryParameters):
    """The query of `GET /runs`."""

    limit: int = Field(default=50, ge=1, le=1000)
    state: RunState | None = None


class RunEventsQuery(QueryParameters):
    """The query of `GET /runs/{run_id}/events`."""

    after: int = Field(default=0, ge=0, le=MAX_SEQ, description="only events after this seq")


@router.post("/placement/bench", status_code=202, summary="Measure", tags=["bench"], response_model=Run)
async def start_bench(agent: AgentHere, http: Request, caller: Operator, request: BenchRequest = _QUICK) -> Response:
    """Queues a bench: `{}` is the quick suite on all devices, within 20 s. Follow `Location` for the run."""
    note(http, request.devices or "all")
    return answer_run(http, await agent.benches.submit(request, by=owner_of(caller)))


@router.get("/placement/bench", summary="The latest measurements", tags=["bench"], dependencies=[NEEDS_READ])
async def get_latest_bench(agent: AgentHere) -> LatestBench:
    """The newest record of each case, axis, size, dtype and set of devices."""
    return await agent.runs.read_latest_bench()


@router.get("/runs", summary="Runs, newest first", dependencies=[NEEDS_READ])
async def list_runs(agent: AgentHere, query: Annotated[RunsQuery, fastapi.Query()]) -> RunList:
    """The newest runs, of one state if asked; without their results, which `GET /runs/{id}` has."""
    return RunList(runs=tuple(await agent.runs.list_runs(limit=query.limit, state=query.state)))


@router.get("/runs/{run_id}", summary="A run", dependencies=[NEEDS_READ])
async def get_run(agent: AgentHere, run_id: RunId) -> Run:
    """The run's state, progress, and in the end its result or error; `age_s` of its records is as of now."""
    return age_records(await agent.runs.get(run_id), agent.clock.now())


@router.delete(
    "/runs/{run_id}",
    summary="Cancel a run",
    responses={202: {"description": "it is being cancelled: the worker has yet to stop", "model": Run}},
)
async def cancel_run(agent: AgentHere, run_id: RunId, caller: Operator, response: Response) -> Run:
    """Cancels a run that waits or runs; one that has ended is returned as it is (200), else 202."""
    run = age_records(await agent.runs.cancel(run_id, "by request (DELETE)"), agent.clock.now())
    response.status_code = 200 if run.state in FINAL_STATES else 202
    return run


def age_records(run: Run, now: datetime) -> Run:
    """Returns the run with the ages of its records as of `now`. The stored ages are those at the measurement."""
    result = run.result or {}
    if not result.get("records"):
        return run
    return run.model_copy(update={"result": {**result, "records": [_age(record, now) for record in result["records"]]}})


def _age(record: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    age_s = (now - datetime.fromisoformat(record["observed_at"])).total_seconds()
    return {**record, "age_s": max(0.0, age_s)}


async def _find_run(agent: AgentHere, run_id: RunId) -> Run:
    return await agent.runs.get(run_id)


@router.get("/runs/{run_id}/events", summary="A run's events (SSE)", response_class=EventSourceResponse)
async def stream_run_events(
    agent: AgentHere,
    authenticator: AuthenticatorHere,
    caller: Reader,
    run: Annotated[Run, Depends(_find_run)],
    query: Annotated[RunEventsQuery, fastapi.Query()],
    last_event_id: LastEventId = None,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `id` is seq, `event` is state, progress or record, `data` is RunEvent. Ends with the run."""
    try:
        async for event in agent.runs.events(run.id, max(query.after, last_event_id or 0)):
            if not authenticator.is_valid(caller):
                return
            yield ServerSentEvent(raw_data=event.model_dump_json(), event=event.type, id=str(event.seq))
    except StoreUnavailableError as error:  # the answer has begun: it ends, and the listener reconnects with its id
        log.warning("the event stream of run %s ends early: %s", run.id, error)
