"""Device routes: the topology, the release, the environment of a job, and the hardware that plans may name."""

from __future__ import annotations

from typing import Annotated, Literal

import fastapi
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from meshwright.environment import format_exports
from meshwright.topology.targets import list_targets
from meshwright.topology.text import format_devices
from meshwright.wire.devices import Devices, Environment, Release, ReleaseRequest, Targets
from meshwright_agent.auth import NEEDS_READ, Operator
from meshwright_agent.routes.shared import TEXT, AgentHere, QueryParameters, StrictRoute

router = APIRouter(tags=["devices"], route_class=StrictRoute)


class FormatQuery(QueryParameters):
    """The query of a route that also answers text."""

    form: Literal["json", "text"] = Field(default="json", alias="format", description="text: for a terminal")


class EnvironmentQuery(FormatQuery):
    """The query of `GET /environment`."""

    memory_strategy: Literal["conservative", "balanced", "aggressive", "custom"] = "balanced"
    memory_fraction: float | None = Field(
        default=None, gt=0, le=1, description="overrides the strategy's; needed for custom"
    )


class TargetsQuery(QueryParameters):
    """The query of `GET /targets`."""

    chip: str | None = Field(default=None, max_length=80, description="one chip by any of its names")


@router.get(
    "/devices",
    summary="What is here",
    response_model=Devices,
    responses={200: {"content": TEXT}},
    dependencies=[NEEDS_READ],
)
async def get_devices(agent: AgentHere, query: Annotated[FormatQuery, fastapi.Query()]) -> Response:
    """The host's topology: devices, links, granules, each fact with its basis and age. `?format=text` for people."""
    devices = agent.host.devices()
    if query.form == "text":
        return PlainTextResponse(format_devices(devices))
    return Response(devices.model_dump_json(), media_type="application/json")


@router.post("/devices/release", summary="Give the devices back")
async def release_devices(agent: AgentHere, caller: Operator, request: ReleaseRequest | None = None) -> Release:
    """Ends the processes that hold devices (worker, bench, preflight) within 2 s, and names what still holds a device.

    All devices or none: JAX frees devices only when its process ends. So the body, if there is one, is `{}`.
    """
    return await agent.host.release()


@router.get(
    "/environment",
    summary="Variables for a job",
    response_model=Environment,
    responses={200: {"content": TEXT}},
    dependencies=[NEEDS_READ],
)
async def get_environment(agent: AgentHere, query: Annotated[EnvironmentQuery, fastapi.Query()]) -> Response:
    """The environment for a memory strategy, also as `export` lines: `eval "$(curl -s …/environment?format=text)"`."""
    environment = agent.environment(query.memory_strategy, query.memory_fraction)
    if query.form == "text":
        return PlainTextResponse("".join(f"{line}\n" for line in format_exports(environment.variables)))
    return Response(environment.model_dump_json(), media_type="application/json")


@router.get("/targets", summary="What can be planned on", dependencies=[NEEDS_READ])
async def get_targets(query: Annotated[TargetsQuery, fastapi.Query()]) -> Targets:
    """Known chips, the hosts of GPUs, the named TPU slices: what `target` in a plan may say. Tables, not this host."""
    return list_targets(query.chip)
