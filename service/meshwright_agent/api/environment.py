"""Environment route: what a job on this host should start with."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import PlainTextResponse, Response

from meshwright.wire.environment import Environment
from meshwright_agent.api.dependencies import TEXT, AgentHere, problems
from meshwright_agent.api.gate import JsonRoute

router = APIRouter(tags=["environment"], route_class=JsonRoute)


@router.get(
    "/environment",
    summary="Variables for a job",
    response_model=Environment,
    responses={200: {"content": TEXT}, **problems(s422="a strategy or fraction that is none")},
)
async def read_environment(
    agent: AgentHere,
    memory_strategy: Annotated[Literal["conservative", "balanced", "aggressive", "custom"], Query()] = "balanced",
    memory_fraction: Annotated[
        float | None, Query(gt=0, le=1, description="overrides the strategy's; needed for custom")
    ] = None,
    form: Annotated[
        Literal["json", "text"], Query(alias="format", description="text: the export lines alone")
    ] = "json",
) -> Response:
    """The environment for a memory strategy, also as `export` lines: `eval "$(curl -s …/environment?format=text)"`."""
    environment = agent.environment(memory_strategy, memory_fraction)
    if form == "text":
        return PlainTextResponse("".join(f"{line}\n" for line in environment.exports))
    return Response(environment.model_dump_json(), media_type="application/json")
