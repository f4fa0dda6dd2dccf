"""Preflight route: this host's part in the check of many hosts."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from meshwright.wire.preflight import PreflightRequest
from meshwright.wire.runs import Run
from meshwright_agent.auth import Operator
from meshwright_agent.routes.shared import AgentHere, StrictRoute, answer_run, owner_of

router = APIRouter(tags=["preflight"], route_class=StrictRoute)


@router.post("/preflight", status_code=202, summary="Check many hosts", response_model=Run)
async def start_preflight(agent: AgentHere, http: Request, caller: Operator, request: PreflightRequest) -> Response:
    """Starts this host's process of a JAX job that checks all hosts. `meshwright preflight` asks every host.

    Needs the caller's lease of all devices. The run ends as `failed` if this host is at fault, as `cancelled` if it
    waited for another; its result is a PreflightResult.
    """
    return answer_run(http, await agent.preflights.submit(request, by=owner_of(caller)))
