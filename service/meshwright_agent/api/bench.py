"""Bench routes: start a run, read the latest records."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from meshwright.wire.bench import BenchRequest, LatestBench
from meshwright.wire.runs import Run
from meshwright_agent.api.dependencies import BODY_REFUSALS, STORE_REFUSALS, AgentHere, needs, problems
from meshwright_agent.api.gate import JsonRoute, note_operation
from meshwright_agent.api.leases import read_owner
from meshwright_agent.api.pieces import write_list
from meshwright_agent.api.runs import answer_run

router = APIRouter(tags=["bench"], route_class=JsonRoute)

_QUICK: Final = BenchRequest()
_REFUSALS = problems(
    s403="forbidden: the lease that it names belongs to another owner",
    s404="lease_not_found: the lease that it names is not here or has ended",
    s409="device_leased: a lease covers a device; device_busy: another process holds a device",
    s422="invalid_request, or bench_too_large for the memory that is there",
    s429="queue_full: try again after Retry-After",
    s503="no device is known yet, the store does not answer, or the agent is shutting down",
)


@router.post(
    "/placement/bench",
    status_code=202,
    summary="Measure",
    response_model=Run,
    responses=_REFUSALS | BODY_REFUSALS,
    openapi_extra=needs("operate"),
)
async def start_bench(agent: AgentHere, http: Request, request: BenchRequest = _QUICK) -> Response:
    """Queues a bench: `{}` is the quick suite on all devices, within 20 s. Follow `Location` for the run."""
    note_operation(http, request.devices or "all")
    run = await agent.benches.submit(request, by=read_owner(http))
    note_operation(http, run=run.id)
    return answer_run(run, agent.clock.now())


@router.get(
    "/placement/bench",
    summary="The latest measurements",
    response_model=LatestBench,
    responses=STORE_REFUSALS | problems(s422="invalid_request: a parameter; it takes none"),
)
async def read_bench(agent: AgentHere) -> Response:
    """The newest record of each case, axis, size, dtype and set of devices."""
    latest = await agent.runs.read_latest_bench()
    frame = latest.model_copy(update={"records": ()})
    return Response(await write_list(frame, "records", latest.records), media_type="application/json")
