"""Lease routes: reserve devices, look, renew, end."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from meshwright.wire.leases import LEASE_ID_PATTERN, DeviceCount, Lease, LeaseRequest, Leases
from meshwright_agent.access.callers import Caller
from meshwright_agent.access.scopes import covers
from meshwright_agent.agent import Agent
from meshwright_agent.api.dependencies import BODY_REFUSALS, STORE_REFUSALS, AgentHere, needs, problems
from meshwright_agent.api.gate import CALLER_KEY, JsonRoute, PlainRoute, check_query, note_operation
from meshwright_agent.leases import Owner

router = APIRouter(tags=["leases"], route_class=JsonRoute)

LeaseId = Annotated[str, Path(max_length=128)]
NewLeaseId = Annotated[
    str,
    Path(
        pattern=LEASE_ID_PATTERN,
        description="made by the client, such as slurm-4711: 1 to 64 letters, digits, dots, hyphens and underscores, "
        "a letter or digit first",
    ),
]
_OWNER_REFUSAL = problems(s403="forbidden: the lease belongs to another owner")
_UNKNOWN = problems(s404="lease_not_found: no lease has this id, or it has ended, and why") | STORE_REFUSALS
_REFUSALS = problems(
    s409="device_leased: another lease is in the way, or the lease of this id holds other devices; device_busy: a "
    "bench is in the way of a preemptible lease, or the agent's worker does not end",
    s422="invalid_request: a device that is not there, more devices than there are, or an id that is not allowed",
    s503="no device is known yet, or the store does not answer: nothing has changed",
)


@router.put(
    "/leases/{lease_id}",
    status_code=201,
    summary="Reserve devices, or renew a lease",
    response_model=Lease,
    responses={200: {"description": "the lease was renewed", "model": Lease}}
    | _REFUSALS
    | _OWNER_REFUSAL
    | BODY_REFUSALS,
    openapi_extra=needs("operate"),
)
async def put_lease(agent: AgentHere, lease_id: NewLeaseId, request: LeaseRequest, http: Request) -> Response:
    """Reserves devices: until the lease ends, no bench opens them and no plan takes them unless it is told to.

    Unless `preemptible`, it takes devices over from preemptible leases and from benches, and the agent's own worker is
    off them when the answer comes. Other processes are not touched: `POST /devices/release` names them.

    While a lease of this id holds, the same owner renews it: it ends `ttl_s` from now, and `purpose` may change. The id
    of a lease that has ended may be used again.
    """
    note_operation(http, f"count:{asked.count}" if isinstance(asked := request.devices, DeviceCount) else asked)
    lease, is_new = await agent.leases.put(lease_id, request, by=read_owner(http))
    if isinstance(asked, DeviceCount):
        _note_devices(http, lease)
    note_operation(http, lease=lease.id)
    return Response(
        lease.model_dump_json(),
        status_code=201 if is_new else 200,
        media_type="application/json",
        headers={"Location": f"/leases/{lease.id}"},
    )


def read_owner(request: Request) -> Owner:
    """Returns as whom a request asks: the token or certificate that was shown; an address owns nothing."""
    caller: Caller = request.scope[CALLER_KEY]
    kind, _, name = caller.name.partition(":")
    return Owner(name if kind in {"token", "cert"} else "", is_admin=covers(caller.scope, "admin"))


async def list_leases(request: Request) -> Response:
    """The leases that hold now, oldest first."""
    if request.scope["query_string"]:
        check_query(request, ())
    agent: Agent = request.app.state.agent
    return Response(Leases(leases=agent.leases.list_leases()).model_dump_json(), media_type="application/json")


@router.get("/leases/{lease_id}", summary="A lease", responses=_UNKNOWN)
async def read_lease(agent: AgentHere, lease_id: LeaseId) -> Lease:
    """A lease that holds, with the seconds that it has left."""
    return await agent.leases.get(lease_id)


@router.delete(
    "/leases/{lease_id}", summary="End a lease", responses=_UNKNOWN | _OWNER_REFUSAL, openapi_extra=needs("operate")
)
async def end_lease(agent: AgentHere, lease_id: LeaseId, http: Request) -> Lease:
    """Ends a lease and returns it as it was; a second time it is not found."""
    lease = await agent.leases.end(lease_id, by=read_owner(http))
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
