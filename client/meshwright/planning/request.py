"""Plan requests, and the answer to them.

Rule: the agent's planner and `meshwright plan --local` go this way, so that they answer
alike. What hardware a request means is `request_topology`'s, what is said of a model `model_request`'s. Knows no HTTP
and no process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.errors import InvalidRequestError
from meshwright.planning.mesh import plan_mesh
from meshwright.planning.request_topology import Here, find_topology
from meshwright.planning.search.measured import Measurement
from meshwright.wire.base import Notice
from meshwright.wire.mesh import DeviceSelection, PlanRequest, Plans

_refuse = InvalidRequestError.of


def answer_request(
    request: PlanRequest,
    here: Here = None,
    *,
    health: Mapping[int, str] | None = None,
    notices: tuple[Notice, ...] = (),
    measured: Sequence[Measurement] = (),
) -> Plans:
    """Returns what `POST /mesh/plan` answers.

    Args:
        request: the mesh or the model, and what to plan it on.
        here: this host.
        health: the state of this host's devices, by place in its topology.
        notices: what every plan on this host should say.
        measured: what benches found of this host, in the order in which it was written.

    Raises:
        InvalidRequestError: see `find_topology`; or the request says too little or too much to be one question.
        InvalidMeshError, PlanInfeasibleError, DevicesUnusedError: see `plan_mesh`.
        DoesNotDivideError: an axis does not divide what it cuts of the model.
    """
    check_asked(request)
    if request.targets is not None:
        from meshwright.planning.comparison import compare_targets  # here, since few requests compare

        return compare_targets(request, answer_request)
    return _answer(request, here, health or {}, notices, measured)


def _answer(
    request: PlanRequest,
    here: Here,
    health: Mapping[int, str],
    notices: tuple[Notice, ...],
    measured: Sequence[Measurement],
) -> Plans:
    found = find_topology(request, here)

    def plan(mesh: object, devices: DeviceSelection | None = None) -> Plans:
        chosen = {"mesh": mesh, "allow_unused": request.mesh is None or request.allow_unused}
        return plan_mesh(
            request.model_copy(update=chosen if devices is None else {**chosen, "devices": devices}),
            found.topology,
            health=health if found.is_here else None,
            notices=found.notices + (notices if found.is_here else ()),
            target=found.target,
        )

    if request.model is None:
        return plan(request.mesh)
    from meshwright.planning.model_request import ModelRequest  # here, since a mesh alone needs none of it

    is_here = found.is_here
    asked = ModelRequest(request, found.topology, health if is_here else {}, tuple(measured) if is_here else ())
    return asked.answer(plan)


def check_asked(request: PlanRequest) -> None:
    """Passes over a request that says either the mesh, or the model and training to find one for.

    Raises:
        InvalidRequestError: neither, or only a part; or what needs a model, or none, stands without it or beside it.
    """
    if request.targets is not None:
        _check_alone(request)
    for field in ("audit", "exports"):
        if getattr(request, field) and request.model is None:
            raise _refuse(field, f"{field} is about a model's step, and model is not given", 'add "model": "…"')
    if request.audit and (request.mesh is None or request.training is None):
        missing = "mesh" if request.mesh is None else "training"
        raise _refuse("audit", f"audit judges a mesh and a training that are there; {missing} is not given", _ADD)
    if request.mesh is not None:
        _check_given(request)
        return
    for field in ("model", "training"):
        if getattr(request, field) is None:
            raise _refuse(
                field,
                f"neither mesh nor {field} is given; a plan is made for a mesh, or for a model and its training",
                'give "mesh": "dp:2,tp:4", or "model": "llama3-8b", "training": {"global_batch": 64}',
            )
    if request.device_order == "given" or request.dcn is not None or request.axis_types not in (None, "auto"):
        raise _refuse("mesh", "device_order, dcn and axis_types are of a mesh, and none is given", "name a mesh")


_ADD = 'give "mesh": "fsdp:8", "model": "llama3-8b", "training": {"global_batch": 64}'


def _check_given(request: PlanRequest) -> None:
    if request.search is not None and request.search.model_fields_set - {"price_per_device_hour"}:
        raise _refuse("search", "a mesh is given, so that there is nothing to choose", "leave out mesh")
    if request.fallback:
        message = "fallback finds another mesh where a device fails, and a mesh is given"
        raise _refuse("fallback", message, "leave out mesh, or ask again for the mesh that is left")


def _check_alone(request: PlanRequest) -> None:
    for field in ("target", "topology", "fallback"):
        if getattr(request, field):
            message = f"{field} stands beside targets; a comparison plans on each of its targets, as it is"
            raise _refuse(field, message, f"leave out {field}, or leave out targets")
    if request.devices is not None and not isinstance(request.devices, DeviceSelection):
        message = "devices are named, and the targets have other ones each"
        raise _refuse("devices", message, 'choose by number: "devices": {"count": 64}')
    targets = request.targets or ()
    doubled = next((target for target in targets if targets.count(target) > 1), None)
    if doubled is not None:
        raise _refuse("targets", f"target {doubled!r} stands twice; each is compared once", "name each once")
