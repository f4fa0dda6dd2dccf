"""Mesh routes: a plan for an explicit mesh, by POST or, for curl, by GET; and a stored plan by its fingerprint."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from meshwright.errors import InvalidRequestError
from meshwright.wire.base import SCHEMA_VERSION, SchemaVersion
from meshwright.wire.mesh import DeviceSelection, PlanRequest, Plans
from meshwright_agent.agent import Agent
from meshwright_agent.api.dependencies import BODY_REFUSALS, IDEMPOTENCY_PARAMETER, AgentHere, document_body, problems
from meshwright_agent.api.gate import JsonRoute, PlainRoute, read_model

router = APIRouter(tags=["mesh"], route_class=JsonRoute)

_REFUSALS = problems(
    s422="invalid_mesh, invalid_request, plan_infeasible or devices_unused: with the rule and shapes that work",
    s503="no device is known yet, or the worker cannot start",
)


class PlanQuery(BaseModel):
    """The query of `GET /mesh/plan`: the fields of the POST, lists written with commas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mesh: str = Field(description='"dp:2,tp:4"; one size may be -1', examples=["dp:2,tp:-1"])
    devices: str | None = Field(default=None, description="local indices, uuids or PCI bus ids: 0,1,4,5")
    count: int | None = Field(default=None, ge=1, description="choose that many devices")
    policy: Literal["packed", "spread"] = "packed"
    exclude: str | None = Field(default=None, description="devices to leave out: 3,7")
    device_order: Literal["planned", "given"] = "planned"
    axis_types: str | None = Field(default=None, description="auto, explicit or manual; or one an axis: auto,explicit")
    allow_unused: bool = False
    include_devices: bool = True
    memory_strategy: Literal["conservative", "balanced", "aggressive"] = "balanced"
    schema_version: SchemaVersion = SCHEMA_VERSION

    def to_request(self) -> PlanRequest:
        """Returns the same question as the POST's body.

        Raises:
            InvalidRequestError: parameters of which one would have to be dropped.
        """
        selection = self.count is not None or self.exclude is not None
        self._check_selection(selection)
        chosen = DeviceSelection(count=self.count, policy=self.policy, exclude=_split(self.exclude))
        return PlanRequest(
            mesh=self.mesh,
            devices=chosen if selection else None if self.devices is None else _split(self.devices),
            device_order=self.device_order,
            axis_types=_split_words(self.axis_types),
            allow_unused=self.allow_unused,
            include_devices=self.include_devices,
            memory_strategy=self.memory_strategy,
            schema_version=self.schema_version,
        )

    def _check_selection(self, is_chosen: bool) -> None:
        if self.devices is not None and is_chosen:
            name = "count" if self.count is not None else "exclude"
            message = f"{name} stands beside devices; devices are named, or chosen by count, policy and exclude"
            raise _refuse(name, message, "leave out devices, or name the devices that you want and no more")
        if self.policy == "spread" and not is_chosen:
            message = "policy says how to choose, and nothing says how many; it needs count or exclude beside it"
            raise _refuse("policy", message, "add a number, such as count=2&policy=spread, or leave policy out")


def _refuse(field: str, message: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {message}", hint=hint, errors=[{"field": field, "message": message}])


def _split(text: str | None) -> tuple[int | str, ...]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    return tuple(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part for part in parts)


def _split_words(text: str | None) -> str | tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",")) if text and "," in text else text


def _reply(plans: Plans) -> Response:
    return Response(plans.model_dump_json(), media_type="application/json")


async def plan_by_post(request: Request) -> Response:
    """A validated plan for an explicit mesh on this host, stored under its fingerprint."""
    agent: Agent = request.app.state.agent
    return _reply(await agent.plan(await read_model(request, PlanRequest)))


@router.get("/mesh/plan", summary="Plan a mesh (for curl)", response_model=Plans, responses=_REFUSALS)
async def plan_by_get(agent: AgentHere, query: Annotated[PlanQuery, Query()]) -> Response:
    """The same by query: `/mesh/plan?mesh=dp:2,tp:4`."""
    return _reply(await agent.plan(query.to_request()))


@router.get(
    "/mesh/plan/{fingerprint}",
    summary="A stored plan",
    response_model=Plans,
    responses=problems(s404="no plan has this fingerprint", s503="the store does not answer"),
)
async def read_plan(agent: AgentHere, fingerprint: Annotated[str, Path(max_length=128)]) -> Response:
    """The plan with this fingerprint, so that every rank can fetch the same one."""
    return _reply(await agent.stored_plan(fingerprint))


PLAIN_ROUTES = (
    PlainRoute(
        "/mesh/plan",
        plan_by_post,
        methods=["POST"],
        tags=["mesh"],
        summary="Plan a mesh",
        response_model=Plans,
        openapi_extra={"requestBody": document_body(PlanRequest), "parameters": [IDEMPOTENCY_PARAMETER]},
        responses=_REFUSALS | BODY_REFUSALS,
    ),
)
