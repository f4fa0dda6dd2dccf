"""Batch-size routes: the table, the roofline beside it, and the verdict on a given batch."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query

from meshwright.wire.batch_size import BatchSize, BatchSizeRequest
from meshwright_agent.api.dependencies import BODY_REFUSALS, AgentHere, problems
from meshwright_agent.api.gate import JsonRoute

router = APIRouter(tags=["batch size"], route_class=JsonRoute)

_DETECT: Final = BatchSizeRequest()
_REFUSALS = problems(s422="unknown_hardware (with near names) or invalid_request", s503="no device is known yet")


@router.post("/batch-size", summary="How large a batch", responses=_REFUSALS | BODY_REFUSALS)
async def advise_by_post(agent: AgentHere, request: BatchSizeRequest = _DETECT) -> BatchSize:
    """Advice for the named hardware, or for this host's; a `batch` that is given is judged."""
    return agent.batch_size(request)


@router.get("/batch-size", summary="How large a batch (for curl)", responses=_REFUSALS)
async def advise_by_get(
    agent: AgentHere,
    hardware: Annotated[str | None, Query(max_length=128)] = None,
    batch: Annotated[int | None, Query(ge=1, le=2**53)] = None,
) -> BatchSize:
    """The same by query: `/batch-size?hardware=h100&batch=256`."""
    return agent.batch_size(BatchSizeRequest(hardware=hardware, batch=batch))
