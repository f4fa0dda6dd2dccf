"""Lease routes: create, read, renew and end leases."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from meshwright.wire.base import DeviceSelection
from meshwright.wire.leases import LEASE_ID_PATTERN, LEASE_ID_RULE, Lease, LeaseRequest, Leases, Verdict, VerdictRequest
from meshwright_agent.auth import NEEDS_READ, Operator, note
from meshwright_agent.routes.shared import AgentHere, StrictRoute, owner_of

router = APIRouter(tags=["leases"], route_class=StrictRoute)

LeaseId = Annotated[str, Path(max_length=128)]
NewLeaseId = Annotated[
    str, Path(pattern=LEASE_ID_PATTERN, description=f"made by the client, such as slurm-4711: {LEASE_ID_RULE}")
]


@router.put(
    "/leases/{lease_id}",
    status_code=201,
    summary="Reserve devices, or renew a lease",
    responses={200: {"description": "the lease was renewed", "model": Lease}},
)
async def put_lease(
    agent: AgentHere, lease_id: NewLeaseId, request: LeaseRequest, caller: Operator, http: Request, response: Response
) -> Lease:
    """Reserves devices: until the lease ends, no bench opens them and no plan takes them unless it is told to.

    Unless `preemptible`, it takes devices over from preemptible leases and from benches, and the agent's own worker is
    off them when the answer comes. Other processes are not touched: `POST /devices/release` names them.

    While a lease of this id holds, the same owner renews it: it ends `ttl_s` from now, and `purpose` may change. The id
    of a lease that has ended may be used again.
    """
    asked = request.devices
    note(http, f"count:{asked.count}" if isinstance(asked, DeviceSelection) else asked)
    lease, is_new = await agent.leases.put(lease_id, request, by=owner_of(caller))
    if isinstance(asked, DeviceSelection):
        _record_devices(http, lease)
    note(http, lease=lease.id)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/leases/{lease.id}"
    return lease


@router.get("/leases", summary="Leases that hold", dependencies=[NEEDS_READ])
async def list_leases(agent: AgentHere) -> Leases:
    """The leases that hold now, oldest first."""
    return Leases(leases=agent.leases.list_leases())


@router.get("/leases/{lease_id}", summary="A lease", dependencies=[NEEDS_READ])
async def get_lease(agent: AgentHere, lease_id: LeaseId) -> Lease:
    """A lease that holds, with the seconds that it has left."""
    return await agent.leases.get(lease_id)


@router.delete("/leases/{lease_id}", summary="End a lease")
async def end_lease(agent: AgentHere, lease_id: LeaseId, caller: Operator, http: Request) -> Lease:
    """Ends a lease and returns it as it was; a second time it is not found."""
    lease = await agent.leases.end(lease_id, by=owner_of(caller))
    _record_devices(http, lease)
    return lease


@router.put("/leases/{lease_id}/verdict", summary="Tell a host its verdict")
async def put_verdict(
    agent: AgentHere, lease_id: LeaseId, request: VerdictRequest, caller: Operator, http: Request
) -> Verdict:
    """Keeps what the preflight under a lease found on this host, until the lease ends."""
    note(http, lease=lease_id)
    return await agent.leases.put_verdict(lease_id, Verdict(**request.model_dump()), by=owner_of(caller))


@router.get("/leases/{lease_id}/verdict", summary="The verdict on a host", dependencies=[NEEDS_READ])
async def get_verdict(agent: AgentHere, lease_id: LeaseId) -> Verdict:
    """What the last preflight under a lease found on this host; 404 until there is one."""
    return await agent.leases.get_verdict(lease_id)


def _record_devices(request: Request, lease: Lease) -> None:
    note(request, [device.local_index for device in lease.devices])
