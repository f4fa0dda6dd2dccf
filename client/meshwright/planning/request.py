"""Plan requests and their answers: the hardware that a request means, its model, several targets side by side.

Rule: the agent's planner and `meshwright plan --local` go this way, so that they answer alike. Each target of several
is asked as if alone. Knows no HTTP and no process; imports numpy only where something is priced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.planning.device_selection import Pool, select_devices
from meshwright.planning.models import UnsupportedModelError, read_model
from meshwright.planning.parallelism import check_divides, find_role
from meshwright.planning.search.measured import Measurement, Measurements
from meshwright.planning.tensors import count_parameters
from meshwright.topology.join import join_devices
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target, read_target
from meshwright.wire.base import Notice
from meshwright.wire.devices import Devices
from meshwright.wire.mesh import DeviceSelection, Plan, PlanRequest, Plans
from meshwright.wire.model import ModelFacts, ModelSpec, TrainingSpec

if TYPE_CHECKING:
    from meshwright.planning.search.search import Question
from collections.abc import Sequence
from typing import Any

from meshwright.errors import (
    DevicesUnusedError,
    DoesNotDivideError,
    RequestError,
)
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.wire.cost import SearchSpec
from meshwright.wire.mesh import UNKNOWN_TARGET, ComparedTarget

Here = Callable[[], Topology] | Topology | None
"""This host, or how to look at it; None where there is none, as in a command that asks no agent."""

_WAYS: Final = 'give a target such as "v5p:4x4x4", or a topology: replies of agents\' GET /devices'


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
            raise _refuse_hardware(
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
        raise _refuse_hardware("target", message, _WAYS)
    return here if isinstance(here, Topology) else here()


def _refuse_hardware(field: str, detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError.of(field, detail, hint, detail.rpartition("; ")[2])


class MakePlan(Protocol):
    """Makes the plan of one mesh, on the request's devices or on others."""

    def __call__(self, mesh: object, devices: DeviceSelection | None = None) -> Plans:
        """Returns the plan, alone."""


@dataclass(frozen=True)
class ModelRequest:
    """A request that names a model.

    Attributes:
        request: as it came.
        topology: what to plan on.
        health: of its devices, by place; empty where they are not this host's.
        measured: what benches found of this host; empty where the devices are not its own.
    """

    request: PlanRequest
    topology: Topology
    health: Mapping[int, str]
    measured: tuple[Measurement, ...] = ()

    def answer(self, make: MakePlan) -> Plans:
        """Returns the best plans for the model, or the one for the mesh that is given, with what it costs.

        Raises:
            InvalidRequestError, PlanInfeasibleError, DoesNotDivideError: see `request.answer_request`.
        """
        if self.request.mesh is None:
            plans = self._search(make)
            return plans.model_copy(update={"plans": tuple(map(self._finish, plans.plans))})
        plans = make(self.request.mesh)
        return plans.model_copy(update={"plans": tuple(self._finish(self._price(each)) for each in plans.plans)})

    # ---- the best meshes -------------------------------------------------------------------------------

    def _search(self, make: MakePlan) -> Plans:
        from meshwright.planning.search.search import search_plans  # here, for its numpy

        model = self._read_wanted_model()
        pool = select_devices(self.request.devices, self.topology, self.health, self.request.lease)
        try:
            plans = search_plans(self.request, self._ask(model, len(pool.indices)), make)
        except PlanInfeasibleError:
            if not _is_reduced(self.request, pool):
                raise
            plans = self._search_remaining(model, pool, make)
        if not self.request.fallback or not plans.plans:
            return plans
        from meshwright.planning.search.remaining import find_fallback

        fallback = find_fallback(self.request, plans.plans[0], self.topology, pool, self._asker(model), make)
        told = tuple(map(self._finish, fallback.plans))
        return plans.model_copy(update={"fallback": fallback.model_copy(update={"plans": told})})

    def _search_remaining(self, model: ModelSpec, pool: Pool, make: MakePlan) -> Plans:
        """Returns plans on as many of the devices that are well as some mesh cuts, where none cuts all of them."""
        from meshwright.planning.search.remaining import search_remaining

        return search_remaining(self.request, self.topology, pool.indices, self._asker(model), make)

    def _asker(self, model: ModelSpec) -> Callable[[int], Question]:
        return lambda devices: self._ask(model, devices)

    def _ask(self, model: ModelSpec, devices: int) -> Question:
        from meshwright.planning.search.search import build_question  # here, for its numpy

        assert self.request.training is not None
        measured = self._choose_measured()
        return build_question(self.request, model, self.request.training, self.topology, devices, measured)

    def _choose_measured(self) -> Measurements | None:
        """Returns what was measured of the devices that the request means, where anything was."""
        if not self.measured:
            return None
        pool = select_devices(self.request.devices, self.topology, self.health, self.request.lease)
        return Measurements.of(self.measured, self.topology, pool.indices)

    def _read_wanted_model(self) -> ModelSpec:
        assert self.request.model is not None
        try:
            return read_model(self.request.model)
        except UnsupportedModelError as error:
            hint = "give a mesh, which is planned without a price, or another model"
            raise InvalidRequestError.of("model", str(error), hint, str(error).rpartition("; ")[2]) from error

    # ---- a mesh that is given --------------------------------------------------------------------------

    def _price(self, plan: Plan) -> Plan:
        """Returns a plan for the request's own mesh with what it costs, where training and figures are known."""
        told = self._read_model(plan)
        if isinstance(told, Plan):
            return plan
        check_divides(told, self.request.training or _build_dividing(plan), plan.mesh_shape)
        if self.request.training is None:
            return plan
        from meshwright.planning.search.search import price_plan  # here, for its numpy

        try:
            question = self._ask(told, math.prod(plan.mesh_shape.values()))
        except PlanInfeasibleError as error:
            if plan.platform == "cpu" and not self.request.audit:
                return plan  # nobody expects a price of it, and its compiler tells the memory
            message = f"neither memory nor time of a step is reckoned: {error.errors[0]['message']}"
            notice = Notice(code="not_priced", message=message, hint="plan on a target, such as v5p:4x4x4")
            return plan.model_copy(update={"warnings": (*plan.warnings, notice)})
        priced = price_plan(plan, question)
        if not self.request.audit:
            return priced
        from meshwright.planning.search.audit import audit_plan

        return priced.model_copy(update={"audit": audit_plan(priced, question)})

    # ---- what is said of every plan --------------------------------------------------------------------

    def _finish(self, plan: Plan) -> Plan:
        """Returns the plan with what it says of the model; of one that the step cannot express, that and why."""
        model = self._read_model(plan)
        if isinstance(model, Plan):
            return model
        training = self.request.training or _build_dividing(plan)
        return self._export(plan.model_copy(update={"model": _tell_model(model)}), model, training)

    def _export(self, plan: Plan, model: ModelSpec, training: TrainingSpec) -> Plan:
        if not self.request.exports:
            return plan
        from meshwright.planning.exports import write_exports  # here, since few plans are exported

        return plan.model_copy(update={"exports": write_exports(self.request.exports, plan, model, training)})

    def _read_model(self, plan: Plan) -> ModelSpec | Plan:
        """Returns the model; of one that the step cannot express the plan with a warning of that."""
        assert self.request.model is not None
        try:
            return read_model(self.request.model)
        except UnsupportedModelError as error:
            notice = Notice(code="model_not_supported", message=str(error), hint="a model without it can be verified")
            return plan.model_copy(update={"warnings": (*plan.warnings, notice)})


def _tell_model(model: ModelSpec) -> ModelFacts:
    count = count_parameters(model)
    return ModelFacts(name=model.name, parameter_count=count.total, active_parameter_count=count.active)


def _is_reduced(request: PlanRequest, pool: Pool) -> bool:
    """Returns whether devices are missing that the request did not count out: failed, held, or excluded."""
    match request.devices:
        case None:
            return bool(pool.left_out or pool.held)
        case DeviceSelection():
            return request.devices.count is None
        case _:
            return False


def _build_dividing(plan: Plan) -> TrainingSpec:
    """Returns a batch and sequences that any mesh of these axes divides, for a request that says nothing of either."""
    cut = {name: size for name, size in plan.mesh_shape.items() if find_role(name) == "context"}
    return TrainingSpec(global_batch=math.prod(plan.mesh_shape.values()), sequence_length=math.prod(cut.values()))


_OF_ONE: Final = (PlanInfeasibleError, DoesNotDivideError, DevicesUnusedError)
"""What may be wrong with one target and not with another."""


def compare_targets(request: PlanRequest, answer: Callable[[PlanRequest], Plans]) -> Plans:
    """Returns the best plan of each target, best first, and what each came to.

    Args:
        request: has `targets`.
        answer: answers a request on one target.

    Raises:
        InvalidRequestError: a target is none, or a price is of none of them; or as `answer`.
    """
    targets = request.targets or ()
    prices = _read_prices(request)
    asked = [(target, _ask(request, target, prices, answer)) for target in targets]
    made = {target: found.plans[0] for target, found in asked if isinstance(found, Plans) and found.plans}
    order = sorted(made, key=_sort_by(tuple(made.values()), made))
    best = made[order[0]] if order else None
    compared = [_compare(target, found, best) for target, found in asked]
    compared.sort(key=lambda each: order.index(each.target) if each.target in made else len(order))
    named = [each.model_copy(update={"target": _name(each.target, made)}) for each in compared]
    warnings = tuple(
        dict.fromkeys(notice for _, found in asked if isinstance(found, Plans) for notice in found.warnings)
    )
    return Plans(plans=tuple(made[target] for target in order), comparison=tuple(named), warnings=warnings)


def _read_prices(request: PlanRequest) -> Mapping[str, float]:
    """Returns the price of each target: one for all, or by target.

    Raises:
        InvalidRequestError: a price is of no target that is compared.
    """
    price = request.search.price_per_device_hour if request.search else None
    targets = request.targets or ()
    if not isinstance(price, dict):
        return {} if price is None else dict.fromkeys(targets, float(price))
    unknown = next((name for name in price if name not in targets), None)
    if unknown is not None:
        message = f"price_per_device_hour has {unknown[:80]!r}, which is none of the targets {', '.join(targets)}"
        errors = [{"field": "search.price_per_device_hour", "message": message}]
        raise InvalidRequestError(message, hint="name targets there as they are named in targets", errors=errors)
    return {name: float(value) for name, value in price.items()}


def _ask(
    request: PlanRequest, target: str, prices: Mapping[str, float], answer: Callable[[PlanRequest], Plans]
) -> Plans | RequestError:
    search = request.search
    if search is not None or target in prices:
        search = (search or SearchSpec()).model_copy(update={"price_per_device_hour": prices.get(target)})
    alone = {"targets": None, "target": target, "search": search, "top": 1}
    try:
        return answer(request.model_copy(update=alone))
    except _OF_ONE as error:
        return error


def _sort_by(plans: tuple[Plan, ...], made: Mapping[str, Plan]) -> Callable[[str], float]:
    if plans and all(plan.price_per_million_tokens is not None for plan in plans):
        return lambda target: made[target].price_per_million_tokens or 0.0
    return lambda target: _read_step(made[target])


def _read_step(plan: Plan) -> float:
    return plan.step_time.total_s if plan.step_time else 0.0


def _compare(target: str, found: Plans | RequestError, best: Plan | None) -> ComparedTarget:
    if not isinstance(found, Plans):
        reason = found.code if _is_known(target) else UNKNOWN_TARGET
        hint = f"; {found.hint}" if found.hint else ""
        return ComparedTarget(target=target, reason=reason, message=f"{found.detail}{hint}")
    if not found.plans:
        message = "; ".join(notice.message for notice in found.warnings)
        return ComparedTarget(target=target, reason="nothing_fits", message=message, rejected=found.rejected)
    assert best is not None
    plan = found.plans[0]
    told: dict[str, Any] = {
        "device_count": sum(granule.device_count for granule in plan.granules) or None,
        "fingerprint": plan.fingerprint,
        "tokens_per_s": plan.tokens_per_s,
        "mfu_ratio": plan.mfu_ratio,
        "price_per_million_tokens": plan.price_per_million_tokens,
        "rejected": found.rejected,
        "message": _tell(plan, best),
    }
    if plan.step_time is not None:
        step = plan.step_time
        told |= {"step_s": step.total_s, "low_s": step.low_s, "high_s": step.high_s}
    return ComparedTarget(target=target, **told)


def _is_known(target: str) -> bool:
    try:
        read_target(target)
    except PlanInfeasibleError:
        return False
    return True


def _tell(plan: Plan, best: Plan) -> str:
    """Returns how a plan compares with the best: its step, its price, and whether the model can tell them apart."""
    if plan.step_time is None or best.step_time is None:
        return ""
    if plan is best:
        return "the best" if plan.price_per_million_tokens is None else "the least price of tokens"
    ratio = plan.step_time.total_s / best.step_time.total_s
    said = [f"{ratio:.2f} times the step of {best.target}"]
    if plan.price_per_million_tokens and best.price_per_million_tokens:
        times = plan.price_per_million_tokens / best.price_per_million_tokens
        said.append(f"{times:.2f} times its price of tokens")
    if _overlap(plan, best):
        said.append("their intervals overlap, so that a run may turn them round")
    return "; ".join(said)


def _overlap(plan: Plan, best: Plan) -> bool:
    one, other = plan.step_time, best.step_time
    if one is None or other is None or None in (one.low_s, one.high_s, other.low_s, other.high_s):
        return False
    return bool((one.low_s or 0) <= (other.high_s or 0) and (other.low_s or 0) <= (one.high_s or 0))


def _name(target: str, made: Mapping[str, Plan]) -> str:
    return (made[target].target or target) if target in made else target


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
