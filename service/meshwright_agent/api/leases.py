"""Lease routes: reserve devices, look, renew, end."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from meshwright.wire.leases import DeviceCount, Lease, LeaseRenewal, LeaseRequest, Leases
from meshwright_agent.access.callers import Caller
from meshwright_agent.access.scopes import covers
from meshwright_agent.agent import Agent
from meshwright_agent.api.dependencies import (
    BODY_REFUSALS,
    STORE_REFUSALS,
    AgentHere,
    IdempotencyKey,
    needs,
    problems,
)
from meshwright_agent.api.gate import CALLER_KEY, JsonRoute, PlainRoute, check_query, name_caller, note_operation
from meshwright_agent.leasing.ownership import Claimant

router = APIRouter(tags=["leases"], route_class=JsonRoute)

LeaseId = Annotated[str, Path(max_length=128)]
_UNKNOWN = problems(s404="lease_not_found: no lease has this id, or it has ended, and why") | STORE_REFUSALS
_REFUSALS = problems(
    s409="device_leased: a lease is in the way; device_busy: a bench is in the way of a preemptible lease, or the "
    "agent's worker does not let go; idempotency_conflict: the key made another request, or a lease that has ended",
    s422="invalid_request: a device that is not there, or more devices than there are",
    s503="no device is known yet, or the store does not answer",
)


@router.post(
    "/leases",
    status_code=201,
    summary="Reserve devices",
    response_model=Lease,
    responses={200: {"description": "the lease that this Idempotency-Key made", "model": Lease}}
    | _REFUSALS
    | BODY_REFUSALS,
    openapi_extra=needs("operate"),
)
async def create_lease(
    agent: AgentHere, request: LeaseRequest, http: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    """Reserves devices: until the lease ends, no bench opens them and no plan takes them unless it is told to.

    Unless `preemptible`, it takes devices over from preemptible leases and from benches, and the agent's own worker is
    off them when the answer comes. Other processes are not touched: `POST /devices/release` names them.
    """
    owner = name_owner(name_caller(http.scope))
    note_operation(http, f"count:{asked.count}" if isinstance(asked := request.devices, DeviceCount) else asked)
    lease, is_new = await agent.leases.create(request, owner=owner, key=idempotency_key)
    if isinstance(asked, DeviceCount):
        _note_devices(http, lease)
    note_operation(http, lease=lease.id)
    return Response(
        lease.model_dump_json(),
        status_code=201 if is_new else 200,
        media_type="application/json",
        headers={"Location": f"/leases/{lease.id}"},
    )


def name_owner(caller: str) -> str:
    """Returns the name of the token or certificate that was shown; "" where none was: an address owns nothing."""
    kind, _, name = caller.partition(":")
    return name if kind in {"token", "cert"} else ""


def read_claimant(request: Request) -> Claimant:
    """Returns for whom a request wants to renew or end a lease."""
    caller: Caller = request.scope[CALLER_KEY]
    return Claimant(name_owner(caller.name), is_admin=covers(caller.scope, "admin"))


async def list_leases(request: Request) -> Response:
    """The leases that hold now, oldest first."""
    if request.scope["query_string"]:
        check_query(request, ())
    agent: Agent = request.app.state.agent
    return Response(Leases(leases=agent.leases.list()).model_dump_json(), media_type="application/json")


@router.get("/leases/{lease_id}", summary="A lease", responses=_UNKNOWN)
async def read_lease(agent: AgentHere, lease_id: LeaseId) -> Lease:
    """A lease that holds, with the seconds that it has left."""
    return await agent.leases.get(lease_id)


@router.post(
    "/leases/{lease_id}/renew",
    summary="Renew a lease",
    responses=_UNKNOWN | BODY_REFUSALS,
    openapi_extra=needs("operate"),
)
async def renew_lease(agent: AgentHere, lease_id: LeaseId, request: LeaseRenewal, http: Request) -> Lease:
    """Lets a lease end `ttl_s` from now, earlier or later than before."""
    lease = await agent.leases.renew(lease_id, request.ttl_s, by=read_claimant(http))
    _note_devices(http, lease)
    return lease


@router.delete("/leases/{lease_id}", summary="End a lease", responses=_UNKNOWN, openapi_extra=needs("operate"))
async def end_lease(agent: AgentHere, lease_id: LeaseId, http: Request) -> Lease:
    """Ends a lease and returns it as it was; a second time it is not found."""
    lease = await agent.leases.end(lease_id, by=read_claimant(http))
    _note_devices(http, lease)
    return lease


def _note_devices(request: Request, lease: Lease) -> None:
    note_operation(request, [device.local_index for device in lease.devices])


PLAIN_ROUTES = (
    PlainRoute(
        "/leases",
        list_leases,
        tags=["leases"],
        summary="Leases that hold",
        response_model=Leases,
        responses=STORE_REFUSALS,
    ),
)
