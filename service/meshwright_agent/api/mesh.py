"""Mesh routes: a plan for an explicit mesh, by POST or, for curl, by GET; and a stored plan by its fingerprint.

Plans come from the agent as text and go out as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from meshwright.errors import InvalidRequestError
from meshwright.planning.request import parse_importance
from meshwright.wire.mesh import DeviceSelection, PlanRequest, Plans
from meshwright.wire.model import Remat, TrainingSpec
from meshwright.wire.runs import Run
from meshwright_agent.agent import Agent
from meshwright_agent.answers.replies import PlanAnswer
from meshwright_agent.api.dependencies import (
    BODY_REFUSALS,
    SITE_REFUSAL,
    AgentHere,
    document_body,
    needs,
    problems,
)
from meshwright_agent.api.gate import JsonRoute, PlainRoute, read_body, refuse_other_sites
from meshwright_agent.api.runs import ACCEPTED, answer_run

router = APIRouter(tags=["mesh"], route_class=JsonRoute)

_REFUSALS = problems(
    s409="device_leased: leases of others have all or too many of the devices",
    s422="invalid_mesh, invalid_request, plan_infeasible, devices_unused, does_not_divide: the rule, and what works",
    s429="queue_full: many plans or compiles wait already; try again after Retry-After",
    s503="no device is known yet, the worker cannot start, or the planner died or did not answer in time",
)


class PlanQuery(BaseModel):
    """The query of `GET /mesh/plan`: the fields of the POST, lists written with commas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mesh: str = Field(description='"dp:2,tp:4"; one size may be -1', examples=["dp:2,tp:-1"])
    devices: str | None = Field(default=None, description="local indices, uuids or PCI bus ids: 0,1,4,5")
    count: int | None = Field(default=None, ge=1, description="choose that many devices, near to each other")
    exclude: str | None = Field(default=None, description="devices to leave out: 3,7")
    device_order: Literal["planned", "given"] = "planned"
    axis_types: str | None = Field(default=None, description="auto, explicit or manual; or one an axis: auto,explicit")
    allow_unused: bool = False
    include_devices: bool = True
    memory_strategy: Literal["conservative", "balanced", "aggressive"] = "balanced"
    target: str | None = Field(default=None, description="hardware that need not be here: v5p:4x4x28, 64*h100:8")
    dcn: str | None = Field(default=None, description="how axes are split over granules: dp:4")
    importance: str | None = Field(default=None, description="how much traffic each axis has: tp:8,dp:1")
    model: str | None = Field(default=None, description="a preset's name: llama3-70b; dimensions go by POST")
    batch: int | None = Field(default=None, ge=1, le=2**24, description="sequences in one optimizer step")
    seq: int | None = Field(default=None, ge=1, le=2**24, description="tokens in a sequence; 4096 unless told")
    remat: Remat | None = Field(default=None, description="what the backward pass computes again; full unless told")
    verify: Literal["none", "compile"] = "none"

    def to_request(self) -> PlanRequest:
        """Returns the same question as the POST's body.

        Raises:
            InvalidRequestError: parameters of which one would have to be dropped.
        """
        selection = self.count is not None or self.exclude is not None
        self._check_selection(selection)
        chosen = DeviceSelection(count=self.count, exclude=_split(self.exclude))
        return PlanRequest(
            mesh=self.mesh,
            devices=chosen if selection else None if self.devices is None else _split(self.devices),
            device_order=self.device_order,
            axis_types=_split_words(self.axis_types),
            allow_unused=self.allow_unused,
            include_devices=self.include_devices,
            memory_strategy=self.memory_strategy,
            target=self.target,
            dcn=self.dcn,
            importance=None if self.importance is None else parse_importance(self.importance),
            model=self.model,
            training=self._read_training(),
            verify=self.verify,
        )

    def _read_training(self) -> TrainingSpec | None:
        told: dict[str, Any] = {"sequence_length": self.seq, "remat": self.remat}
        told = {name: value for name, value in told.items() if value is not None}
        self._check_model(told)
        if self.batch is not None:
            return TrainingSpec(global_batch=self.batch, **told)
        if told:
            message = "seq or remat stands without batch; how a model is trained begins with the batch"
            raise _refuse("batch", message, "add batch=64, or leave out seq and remat")
        return None

    def _check_model(self, told: Mapping[str, Any]) -> None:
        asked = ["batch"] * (self.batch is not None) + [{"sequence_length": "seq"}.get(name, name) for name in told]
        if asked and self.model is None and self.verify == "none":
            message = f"{' and '.join(asked)} say how a model is trained, and model is not given"
            raise _refuse(asked[0], message, f"add model=llama3-8b, or leave out {' and '.join(asked)}")

    def _check_selection(self, is_chosen: bool) -> None:
        if self.devices is not None and is_chosen:
            name = "count" if self.count is not None else "exclude"
            message = f"{name} stands beside devices; devices are named, or chosen by count and exclude"
            raise _refuse(name, message, "leave out devices, or name the devices that you want and no more")


def _refuse(field: str, message: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {message}", hint=hint, errors=[{"field": field, "message": message}])


def _split(text: str | None) -> tuple[int | str, ...]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    return tuple(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part for part in parts)


def _split_words(text: str | None) -> str | tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",")) if text and "," in text else text


def _reply(text: str) -> Response:
    return Response(text, media_type="application/json")


def _answer(agent: Agent, answer: PlanAnswer | Run) -> Response:
    return answer_run(answer, agent.clock.now()) if isinstance(answer, Run) else _reply(answer.write())


async def plan_by_post(request: Request) -> Response:
    """A validated plan for an explicit mesh on this host, a target or a topology, stored under its fingerprint.

    With `verify: "compile"` also what XLA's compiler says of the model's step on it: at once where that is stored, else
    by a run.
    """
    agent: Agent = request.app.state.agent
    limit_bytes = agent.settings.plan_body_limit_bytes
    body = await read_body(request, limit_bytes, setting="MESHWRIGHT_PLAN_BODY_LIMIT_BYTES")
    return _answer(agent, await agent.plan(body))


@router.get(
    "/mesh/plan", summary="Plan a mesh (for curl)", response_model=Plans, responses=_REFUSALS | ACCEPTED | SITE_REFUSAL
)
async def plan_by_get(agent: AgentHere, sent: Request, query: Annotated[PlanQuery, Query()]) -> Response:
    """The same by query: `/mesh/plan?mesh=dp:2,tp:4`."""
    if query.target is not None or query.model is not None or query.verify != "none":
        refuse_other_sites(sent)
    return _answer(agent, await agent.plan(query.to_request()))


@router.get(
    "/mesh/plan/{fingerprint}",
    summary="A stored plan",
    response_model=Plans,
    responses=problems(s404="no plan has this fingerprint", s503="the store does not answer"),
)
async def read_plan(agent: AgentHere, fingerprint: Annotated[str, Path(max_length=128)]) -> Response:
    """The newest plan with this fingerprint, so that every rank can fetch the same one.

    It is of the mesh alone: what was said of a model, and by the compiler, stands in the reply to whoever asked.
    """
    return _reply(await agent.plans.read_stored(fingerprint))


PLAIN_ROUTES = (
    PlainRoute(
        "/mesh/plan",
        plan_by_post,
        methods=["POST"],
        tags=["mesh"],
        summary="Plan a mesh",
        response_model=Plans,
        openapi_extra=needs("read") | {"requestBody": document_body(PlanRequest)},
        responses=_REFUSALS
        | ACCEPTED
        | BODY_REFUSALS
        | problems(
            s404="lease_not_found: no device is covered by the lease that it names",
            s413="the body is larger than MESHWRIGHT_PLAN_BODY_LIMIT_BYTES",
        ),
    ),
)
