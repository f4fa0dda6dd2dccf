"""Plan routes: a plan for a mesh, by POST or, for curl, by GET; a search for one; a stored plan; and batch sizes."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from meshwright.wire.batch_size import BatchSize, BatchSizeRequest
from meshwright.wire.mesh import PlanRequest, Plans, SearchRequest
from meshwright.wire.runs import Run
from meshwright_agent.answers.plans import PlanAnswer
from meshwright_agent.auth import NEEDS_READ, SAME_SITE
from meshwright_agent.routes.shared import ACCEPTED, AgentHere, QueryParameters, StrictRoute, answer_run

router = APIRouter(tags=["mesh"], route_class=StrictRoute)

_DETECT: Final = BatchSizeRequest()


class PlanQuery(QueryParameters):
    """The query of `GET /mesh/plan`; everything else goes by POST."""

    mesh: str = Field(description='"dp:2,tp:4"; one size may be -1', examples=["dp:2,tp:-1"])
    target: str | None = Field(default=None, description="hardware that need not be here: v5p:4x4x28, 64*h100:8")


def _reply(text: str) -> Response:
    return Response(text, media_type="application/json")


def _answer(http: Request, answer: PlanAnswer | Run) -> Response:
    return answer_run(http, answer) if isinstance(answer, Run) else _reply(answer.text)


@router.post("/mesh/plan", summary="Plan a mesh", response_model=Plans, responses=ACCEPTED, dependencies=[NEEDS_READ])
async def plan_mesh(agent: AgentHere, http: Request, request: PlanRequest) -> Response:
    """A validated plan for a mesh on this host, a target or a topology, stored under its fingerprint.

    With `compile` also what XLA's compiler says of the model's step on it: at once where that is stored, else
    by a run.
    """
    return _answer(http, await agent.plan(request))


@router.post(
    "/mesh/search", summary="Find the best mesh", response_model=Plans, responses=ACCEPTED, dependencies=[NEEDS_READ]
)
async def search_meshes(agent: AgentHere, http: Request, request: SearchRequest) -> Response:
    """The meshes on which a model's step is fastest on this host, on a topology or on targets, of those that fit.

    Each as a plan that is stored under its fingerprint, the fastest first, and why other families of meshes lost. Of
    several targets the best plan on each. With `compile` as for a plan.
    """
    return _answer(http, await agent.plan(request))


@router.get("/mesh/plan", summary="Plan a mesh (for curl)", response_model=Plans, dependencies=[NEEDS_READ, SAME_SITE])
async def plan_mesh_by_query(agent: AgentHere, http: Request, query: Annotated[PlanQuery, Query()]) -> Response:
    """The same by query: `/mesh/plan?mesh=dp:2,tp:4`."""
    return _answer(http, await agent.plan(PlanRequest(mesh=query.mesh, target=query.target)))


@router.get("/mesh/plan/{fingerprint}", summary="A stored plan", response_model=Plans, dependencies=[NEEDS_READ])
async def get_plan(agent: AgentHere, fingerprint: Annotated[str, Path(max_length=128)]) -> Response:
    """The newest plan of this host with this fingerprint, else of other hardware, so that every rank can fetch it.

    It has the mesh only. The facts about a model and the compiler's report are in the reply to the plan's request.
    """
    return _reply(await agent.plans.read_stored(fingerprint))


# ---- batch sizes ----------------------------------------------------------------------------------------------------


class BatchSizeQuery(QueryParameters):
    """The query of `GET /batch-size`; everything else goes by POST."""

    hardware: str | None = Field(default=None, max_length=128)
    per_device_batch_size: int | None = Field(default=None, ge=1, le=2**53)


@router.post(
    "/batch-size",
    summary="How large a batch",
    tags=["batch size"],
    response_model=BatchSize,
    responses=ACCEPTED,
    dependencies=[NEEDS_READ],
)
async def estimate_batch_size(
    agent: AgentHere, http: Request, request: BatchSizeRequest = _DETECT
) -> BatchSize | Response:
    """Advice for the named hardware, or for this host's; a `per_device_batch_size` is checked against the table.

    With a `model` also `estimated`: how many sequences its step should have on a mesh, and which limit says so. With
    `compile` instead the largest batch of a model that XLA's compiler says fits: at once where that is
    stored, else by a run.
    """
    if not request.compile:
        return await agent.plans.answer_batch(request)
    answer = await agent.compiles.answer_batch(request)
    return answer_run(http, answer) if isinstance(answer, Run) else answer


@router.get("/batch-size", summary="How large a batch (for curl)", tags=["batch size"], dependencies=[NEEDS_READ])
async def get_batch_size(agent: AgentHere, query: Annotated[BatchSizeQuery, Query()]) -> BatchSize:
    """The same by query: `?hardware=h100&per_device_batch_size=256`."""
    return await agent.plans.answer_batch(
        BatchSizeRequest(hardware=query.hardware, per_device_batch_size=query.per_device_batch_size)
    )
