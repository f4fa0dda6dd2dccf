"""Batch-size routes: the table, the roofline beside it, the verdict on a given batch, and the batch of a model."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, BatchTraining
from meshwright.wire.runs import Run
from meshwright_agent.api.dependencies import BODY_REFUSALS, SITE_REFUSAL, AgentHere, needs, problems
from meshwright_agent.api.gate import JsonRoute, refuse_other_sites
from meshwright_agent.api.runs import ACCEPTED, answer_run

router = APIRouter(tags=["batch size"], route_class=JsonRoute)

_DETECT: Final = BatchSizeRequest()
_REFUSALS = problems(
    s422="unknown_hardware (with near names), invalid_request, or a mesh or model that cannot be",
    s429="queue_full: many requests wait for the planner; try again after Retry-After",
    s503="no device is known yet, the planner failed, or the agent is shutting down",
)
_COMPILE_REFUSALS = problems(
    s404="plan_not_found: no stored plan has the fingerprint",
    s422="unknown_hardware (with near names), invalid_request, or a mesh or model that cannot be",
    s429="queue_full: many compiles wait already; try again after Retry-After",
    s503="no device is known yet, the store does not answer, the planner failed, or the agent is shutting down",
)


@router.post(
    "/batch-size",
    summary="How large a batch",
    response_model=BatchSize,
    responses=_COMPILE_REFUSALS | BODY_REFUSALS | ACCEPTED,
    openapi_extra=needs("read"),
)
async def advise_by_post(agent: AgentHere, request: BatchSizeRequest = _DETECT) -> Response:
    """Advice for the named hardware, or for this host's; a `batch` that is given is judged.

    With a `model` also `reckoned`: how many sequences its step should have on a mesh, and which limit says so. With
    `verify: "compile"` instead the largest batch of a model that XLA's compiler says fits: at once where that is
    stored, else by a run.
    """
    if request.verify == "none":
        return _reply(await agent.batch_sizes.answer(request))
    answer = await agent.batch_sizes.answer_by_compile(request)
    return answer_run(answer, agent.clock.now()) if isinstance(answer, Run) else _reply(answer)


def _reply(advice: BatchSize) -> Response:
    return Response(advice.model_dump_json(), media_type="application/json")


@router.get("/batch-size", summary="How large a batch (for curl)", responses=_REFUSALS | SITE_REFUSAL)
async def advise_by_get(
    agent: AgentHere,
    sent: Request,
    hardware: Annotated[str | None, Query(max_length=128)] = None,
    batch: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    model: Annotated[str | None, Query(max_length=128, description="a preset's name")] = None,
    seq: Annotated[int | None, Query(ge=1, le=2**24, description="tokens of a sequence")] = None,
    target: Annotated[str | None, Query(max_length=128)] = None,
    mesh: Annotated[str | None, Query(max_length=1024)] = None,
) -> BatchSize:
    """The same by query: `?hardware=h100&batch=256`, `?model=llama3-8b&target=v5e:4x4&seq=8192`."""
    if model is not None:
        refuse_other_sites(sent)
    training = None if seq is None else BatchTraining(sequence_length=seq)
    return await agent.batch_sizes.answer(
        BatchSizeRequest(hardware=hardware, batch=batch, model=model, training=training, target=target, mesh=mesh)
    )
