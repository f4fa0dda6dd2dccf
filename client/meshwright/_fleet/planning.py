"""Plans on a fleet: what is asked, as the request that an agent would get, and the answer to it, made here. Pure."""

from __future__ import annotations

from typing import Any

from meshwright._calls.outcomes import build_request_model
from meshwright._fleet.state import FleetState
from meshwright.errors import RequestError
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.mesh import PlanRequest, Plans


def build_request(mesh: MeshLike | MeshSpec, **fields: Any) -> PlanRequest:
    """Returns the request; fields that are None are left out.

    Raises:
        InvalidRequestError, InvalidMeshError: an argument has the wrong type.
    """
    return build_request_model(PlanRequest, {"mesh": str(mesh) if isinstance(mesh, MeshSpec) else mesh, **fields})


def plan_fleet(request: PlanRequest, state: FleetState) -> Plans:
    """Returns the plans on the hosts that answered, with the health of their devices; warnings name the others.

    Raises:
        FleetIncompleteError: no host answered.
        RequestError: the classes that `Client.plan` raises, for the same reasons.
    """
    from meshwright.planning.mesh import plan_mesh  # here, so that asking a fleet need not wait for numpy

    try:
        return plan_mesh(request, state.topology, health=state.health, notices=state.notices)
    except RequestError as error:
        if state.failed:
            error.hint = f"{error.hint}; {state.missing}"
        raise
