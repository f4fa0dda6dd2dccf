"""Plan requests: which hardware a request means, and the answer to it.

Rule: a target, a topology, or this host; the request says which, and nothing is guessed. The agent's planner,
`meshwright-agent plan` and `meshwright plan --local` all go this way, so that they answer alike. Knows no HTTP
and no process; who owns a host hands it in as `here`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.planning.axis_names import find_role
from meshwright.planning.divisibility import check_divides
from meshwright.planning.mesh import plan_mesh
from meshwright.planning.models import UnsupportedModelError, read_model
from meshwright.planning.parameters import count_parameters
from meshwright.planning.selection import select_devices
from meshwright.topology.assemble import build_target, read_target
from meshwright.topology.join import join_devices
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice, Request
from meshwright.wire.devices import Devices
from meshwright.wire.mesh import Plan, PlanRequest, Plans
from meshwright.wire.model import ModelFacts, TrainingSpec

Here = Callable[[], Topology] | Topology | None
"""This host, or how to look at it; None where there is none, as in a command that asks no agent."""

_WAYS: Final = (
    'give a target such as "v5p:4x4x4", or a topology: replies of agents\' GET /devices; `meshwright-agent plan` looks '
    "at this host"
)


@dataclass(frozen=True)
class Found:
    """What a request is planned on.

    Attributes:
        topology: the devices.
        target: the target as it is written canonically; None: no target was named.
        notices: what is to be known of the topology, such as chips that a slice lacks.
        is_here: it is this host's, so that what is known of this host's health holds.
    """

    topology: Topology
    target: str | None = None
    notices: tuple[Notice, ...] = ()
    is_here: bool = False


def find_topology(request: PlanRequest, here: Here = None) -> Found:
    """Returns the hardware that a request means; looks at this host only if it means this host.

    Raises:
        InvalidRequestError: a target and a topology are both given; neither is, and there is no host; or the target
            is none.
        PlanInfeasibleError: no such hardware can be, or the topology contradicts itself.
    """
    match request.target, request.topology:
        case None, None:
            return Found(_look(here), is_here=True)
        case str(text), None:
            return Found(build_target(text), str(read_target(text)))
        case None, Devices() as reply:
            return _join((reply,))
        case None, tuple(replies):
            return _join(replies)
        case _:
            raise _refuse(
                "target",
                f"target {request.target!r} stands beside a topology; a plan is made on one of them",
                "leave out target, or leave out topology",
            )


def _join(replies: tuple[Devices, ...]) -> Found:
    joined = join_devices(replies)
    return Found(joined.topology, notices=joined.notices)


def _look(here: Here) -> Topology:
    if here is None:
        message = "neither target nor topology is given, and there is no host here; a plan needs to know its devices"
        raise _refuse("target", message, _WAYS)
    return here if isinstance(here, Topology) else here()


def answer_request(
    request: PlanRequest,
    here: Here = None,
    *,
    health: Mapping[int, str] | None = None,
    notices: tuple[Notice, ...] = (),
) -> Plans:
    """Returns what `POST /mesh/plan` answers.

    Args:
        request: the mesh, and what to plan it on.
        here: this host.
        health: the state of this host's devices, by place in its topology.
        notices: what every plan on this host should say.

    Raises:
        InvalidRequestError: see `find_topology`.
        InvalidMeshError, PlanInfeasibleError, DevicesUnusedError: see `plan_mesh`.
        DoesNotDivideError: an axis does not divide what it cuts of the model.
    """
    _check_asked(request)
    found = find_topology(request, here)

    def plan(mesh: object) -> Plans:
        return plan_mesh(
            request.model_copy(update={"mesh": mesh, "allow_unused": request.mesh is None or request.allow_unused}),
            found.topology,
            health=health if found.is_here else None,
            notices=found.notices + (notices if found.is_here else ()),
            target=found.target,
        )

    plans = _search(request, found, health, plan) if request.mesh is None else plan(request.mesh)
    if request.model is not None:
        plans = plans.model_copy(update={"plans": tuple(_tell_model(each, request) for each in plans.plans)})
        if request.mesh is not None:
            plans = plans.model_copy(update={"plans": tuple(_price(each, request, found) for each in plans.plans)})
    ignored = tell_ignored(request)
    return plans.model_copy(update={"warnings": (*plans.warnings, *ignored)}) if ignored else plans


def _check_asked(request: PlanRequest) -> None:
    """Passes over a request that says either the mesh, or the model and training to find one for.

    Raises:
        InvalidRequestError: neither, or only a part; or a search beside a mesh.
    """
    if request.mesh is not None:
        if request.search is not None and request.search.model_fields_set - {"price_per_device_hour"}:
            raise _refuse_part("search", "a mesh is given, so that there is nothing to choose", "leave out mesh")
        return
    for field in ("model", "training"):
        if getattr(request, field) is None:
            raise _refuse_part(
                field,
                f"neither mesh nor {field} is given; a plan is made for a mesh, or for a model and its training",
                'give "mesh": "dp:2,tp:4", or "model": "llama3-8b", "training": {"global_batch": 64}',
            )
    if request.device_order == "given" or request.dcn is not None or request.axis_types not in (None, "auto"):
        raise _refuse_part("mesh", "device_order, dcn and axis_types are of a mesh, and none is given", "name a mesh")


def _refuse_part(field: str, message: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(message, hint=hint, errors=[{"field": field, "message": message}])


def _search(
    request: PlanRequest, found: Found, health: Mapping[int, str] | None, plan: Callable[[object], Plans]
) -> Plans:
    """Returns the best meshes for the request's model, on the devices that are well and free."""
    from meshwright.planning.search.request import build_question, search_plans  # here, for its numpy

    assert request.model is not None
    assert request.training is not None
    try:
        model = read_model(request.model)
    except UnsupportedModelError as error:
        raise _refuse("model", str(error), "give a mesh, which is planned without a price, or another model") from error
    pool = select_devices(request.devices, found.topology, (health or {}) if found.is_here else {})
    question = build_question(request, model, request.training, found.topology, len(pool.indices))
    return search_plans(request, question, plan)


def _price(plan: Plan, request: PlanRequest, found: Found) -> Plan:
    """Returns a plan for the request's own mesh with what it costs, where a model, training and figures are known."""
    if plan.model is None or request.training is None or request.model is None:
        return plan
    from meshwright.planning.search.request import build_question, price_plan  # here, for its numpy

    try:
        question = build_question(
            request, read_model(request.model), request.training, found.topology, math.prod(plan.mesh_shape.values())
        )
    except PlanInfeasibleError as error:
        if plan.platform == "cpu":
            return plan  # nobody expects a price of it, and its compiler tells the memory
        message = f"neither memory nor time of a step is reckoned: {error.errors[0]['message']}"
        notice = Notice(code="not_priced", message=message, hint="plan on a target, such as v5p:4x4x4")
        return plan.model_copy(update={"warnings": (*plan.warnings, notice)})
    return price_plan(plan, question)


def _tell_model(plan: Plan, request: PlanRequest) -> Plan:
    """Returns the plan with what it says of the model; of one that the step cannot express, that and why."""
    assert request.model is not None
    try:
        model = read_model(request.model)
    except UnsupportedModelError as error:
        notice = Notice(code="model_not_supported", message=str(error), hint="a model without it can be verified")
        return plan.model_copy(update={"warnings": (*plan.warnings, notice)})
    check_divides(model, request.training or _build_dividing(plan), plan.mesh_shape)
    count = count_parameters(model)
    facts = ModelFacts(name=model.name, parameter_count=count.total, active_parameter_count=count.active)
    return plan.model_copy(update={"model": facts})


def _build_dividing(plan: Plan) -> TrainingSpec:
    """Returns a batch and sequences that any mesh of these axes divides, for a request that says nothing of either."""
    cut = {name: size for name, size in plan.mesh_shape.items() if find_role(name) == "context"}
    return TrainingSpec(global_batch=math.prod(plan.mesh_shape.values()), sequence_length=math.prod(cut.values()))


def tell_ignored(request: Request) -> tuple[Notice, ...]:
    """Returns the warning about fields that a newer client sent and this release does not know."""
    if not request.ignored_fields:
        return ()
    names = ", ".join(request.ignored_fields)
    message = f"the request speaks schema_version {request.schema_version}; these fields were ignored: {names}"
    return (Notice(code="fields_ignored", message=message, hint="upgrade the agent to have them taken into account"),)


def parse_importance(text: str) -> dict[str, float]:
    """Returns how much traffic each axis has, as "tp:8,dp:1" says it: {"tp": 8.0, "dp": 1.0}.

    Raises:
        InvalidRequestError: an entry is no name:number, a number is negative or not finite, or a name stands twice.
    """
    found: dict[str, float] = {}
    for entry in text.split(","):
        name, _, number = (part.strip() for part in entry.partition(":"))
        weight = _parse_weight(number)
        if not name or weight is None or name in found:
            rule = f"{entry.strip()!r} is no axis:number; each axis stands once, with a number of 0 or more"
            raise _refuse("importance", f"importance {text[:80]!r}: {rule}", "write tp:8,dp:1")
        found[name] = weight
    return found


def _parse_weight(text: str) -> float | None:
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if math.isfinite(weight) and weight >= 0 else None


def _refuse(field: str, detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(detail, hint=hint, errors=[{"field": field, "message": detail.rpartition("; ")[2]}])
