"""Answers plans and searches: finds the hardware of a request, its model, and several targets side by side.

Rule: the agent's planner and `meshwright plan --offline` use this module, so that their answers are the same. Several
targets are answered independently. Independent of HTTP and processes; imports numpy only to price a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from meshwright.errors import InvalidRequestError, PlanInfeasibleError, RequestError
from meshwright.planning.device_selection import ANY_LEASE, Names, Pool, select_devices
from meshwright.planning.hardware import find_memory_fraction
from meshwright.planning.hf_config import UnsupportedModelError
from meshwright.planning.mesh_plan import leave_out_devices, plan_mesh
from meshwright.planning.models import fill_sequence_length, read_model, read_supported
from meshwright.planning.parallelism import check_divides, check_sequence, find_role
from meshwright.planning.tensors import count_parameters
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target, read_target
from meshwright.wire.base import DeviceSelection, Notice
from meshwright.wire.devices import Devices
from meshwright.wire.mesh import (
    EQUAL_WITHIN,
    EXPORT_LEFT_OUT,
    UNKNOWN_TARGET,
    ComparedTarget,
    ExportName,
    Plan,
    PlanRequest,
    Plans,
    SearchRequest,
)
from meshwright.wire.model import ModelFacts, ModelSpec, TrainingSpec

if TYPE_CHECKING:
    from meshwright.planning.search.candidates import Question
    from meshwright.planning.search.measured import Measurement
    from meshwright.wire.batch_size import BatchSizeRequest

_refuse = InvalidRequestError.of


@dataclass(frozen=True)
class Inventory:
    """The hardware to plan on.

    Attributes:
        target: the canonical text of the target; None: no target was given.
        health: the state of this host's devices, by place in the topology; a device without a state is assumed to be
            healthy.
        notices: warnings of every plan on it, such as missing chips of a slice.
        measured: bench results of this host, in the order in which they were written.
    """

    topology: Topology
    target: str | None = None
    health: Mapping[int, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    measured: tuple[Measurement, ...] = ()

    def select(self, devices: Names | DeviceSelection | None = None, lease: str | None = None) -> Pool:
        """Returns the devices that a request selects, at least one; errors as of `select_devices`."""
        return select_devices(devices, self.topology, self.health, lease)

    def ask(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        count: int,
        request: PlanRequest | SearchRequest | BatchSizeRequest,
        price_per_device_hour: float | None = None,
    ) -> Question:
        """Returns the question to price on `count` devices, with what was measured of those that a request selects;
        leases do not matter to the batch of a step.

        Raises:
            PlanInfeasibleError: no figures are known for such hardware.
            InvalidRequestError: sequences are longer than the model's learned positions.
        """
        from meshwright.planning.search.candidates import Hardware, Question  # here, for its numpy
        from meshwright.planning.search.measured import Measurements
        from meshwright.wire.batch_size import BatchSizeRequest

        if isinstance(request, BatchSizeRequest):
            pool = self.select(lease=ANY_LEASE)
        else:
            pool = self.select(request.devices, request.lease)
        measured = Measurements.of(self.measured, self.topology, pool.indices) if self.measured else None
        check_sequence(model, training)
        hardware = Hardware.of(self.topology, count, pool.indices, measured)
        fraction = find_memory_fraction(request.memory_strategy, trains=True)
        return Question(model, training, hardware, fraction, price_per_device_hour)

    def lay_out(self, request: PlanRequest) -> Plan:
        """Returns the plan of a mesh; errors as of `plan_mesh`."""
        return plan_mesh(request, self.topology, health=self.health, notices=self.notices, target=self.target)


def find_inventory(
    target: str | None, topology: Devices | tuple[Devices, ...] | None = None, here: Inventory | None = None
) -> Inventory:
    """Returns the hardware that a request selects.

    Args:
        target, topology: as the request names them.
        here: this host, used for a request that names neither; None: there is no host.

    Raises:
        InvalidRequestError: a target and a topology are both given; neither is, and there is no host; or the target is
            not valid.
        PlanInfeasibleError: such hardware does not exist, or the topology contradicts itself.
    """
    if target is not None and topology is not None:
        detail = f"target {target!r} stands beside a topology; a plan is made on one of them"
        raise _refuse("target", detail, "leave out the target, or leave out topology")
    if target is not None:
        return Inventory(build_target(target), str(read_target(target)))
    if topology is not None:
        from meshwright.topology.join import join_devices  # here, since targets do not need it

        joined = join_devices((topology,) if isinstance(topology, Devices) else topology)
        return Inventory(joined.topology, notices=joined.notices)
    if here is None:
        detail = "neither target nor topology is given, and there is no host here; a plan needs to know its devices"
        hint = 'give a target such as "v5p:4x4x4", or a topology: replies of agents\' GET /devices'
        raise _refuse("target", detail, hint)
    return here


def answer_request(request: PlanRequest | SearchRequest, here: Inventory | None = None) -> Plans:
    """Returns the answer of `POST /mesh/plan` or `POST /mesh/search`.

    Args:
        request: a mesh to lay out, or a model to find one for.
        here: this host; None: there is no host.

    Raises:
        InvalidRequestError: see `find_inventory`; a field is about a model's step, and no model is given; or the model
            is not valid.
        InvalidMeshError, PlanInfeasibleError: see `plan_mesh`.
        PlanInfeasibleError: an axis does not divide its dimension of the model.
    """
    if request.lease is not None and request.targets:
        detail = f"lease {request.lease} reserves devices of a host, and {request.targets[0]} is other hardware"
        raise _refuse("lease", detail, "leave out the lease, or the target")
    if isinstance(request, PlanRequest):
        return Plans(plans=(_answer_plan(request, here),))
    prices = _read_prices(request)
    if len(request.targets) > 1:
        return _compare_targets(request, prices)
    target = next(iter(request.targets), None)
    inventory = find_inventory(target, request.topology, here)
    hint = "plan a mesh (POST /mesh/plan), which is laid out without a price, or search for another model"
    model = read_supported(request.model, hint)
    filled = request.model_copy(update={"training": fill_sequence_length(model, request.training)})
    return _Search(filled, model, inventory, prices.get(target or "")).answer()


LISTED_MAX: Final = 4096
"""Devices that an agent lists in a plan: more take megabytes."""


def leave_out_all_devices(plans: Plans) -> Plans:
    """Returns the answer for `include_devices=false`."""
    bare = tuple(map(leave_out_devices, plans.plans))
    left = {"plans": tuple(map(leave_out_devices, plans.fallback.plans))} if plans.fallback else {}
    fallback = plans.fallback and plans.fallback.model_copy(update=left)
    return plans.model_copy(update={"plans": bare, "fallback": fallback})


def list_kept(request: PlanRequest | SearchRequest, plans: Plans) -> list[Plan]:
    """Returns the plans that an agent stores of an answer with devices: those whose devices it lists.

    Raises:
        InvalidRequestError: the request wants more devices listed than an agent lists.
    """
    made = (*plans.plans, *(plans.fallback.plans if plans.fallback else ()))
    most = max((len(plan.devices) for plan in made), default=0)
    if request.include_devices and most > LISTED_MAX:
        detail = f"the plan has {most:,} devices, and an agent lists at most {LISTED_MAX:,}"
        hint = 'POST it with "include_devices": false; or use --offline of the command line, which has no limit'
        raise _refuse("include_devices", detail, hint)
    return [plan for plan in made if len(plan.devices) <= LISTED_MAX]


# ---- a mesh that is given -------------------------------------------------------------------------------------------


def _answer_plan(request: PlanRequest, here: Inventory | None) -> Plan:
    _check_model(request)
    inventory = find_inventory(request.target, request.topology, here)
    plan = inventory.lay_out(request)
    if request.model is None:
        return plan
    try:
        model = read_model(request.model)
    except UnsupportedModelError as error:
        if request.exports:
            raise _refuse("exports", str(error), "leave them out, or name another model") from error
        notice = Notice(code="model_not_supported", message=str(error), hint="a model without it can be verified")
        return plan.model_copy(update={"warnings": (*plan.warnings, notice)})
    if request.training is not None:
        request = request.model_copy(update={"training": fill_sequence_length(model, request.training)})
    training = request.training
    if training is None:  # a batch and sequences that any mesh of these axes divides
        lengths = (size for name, size in plan.mesh_shape.items() if find_role(name) == "context")
        training = TrainingSpec(global_batch_size=math.prod(plan.mesh_shape.values()), seq_len=math.prod(lengths))
    check_divides(model, training, plan.mesh_shape)
    priced = plan if request.training is None else _price(plan, request, model, inventory)
    return _finish(priced, model, training, request)


def _check_model(request: PlanRequest) -> None:
    """Raises InvalidRequestError if a field is about a model or its training, and that is not given."""
    needs = {"training": "model", "exports": "training", "audit": "training"}
    for name, needed in needs.items():
        if getattr(request, name) and getattr(request, needed) is None:
            detail = f"{name} is about a model's step, and {needed} is not given"
            raise _refuse(name, detail, 'add "model": "llama3-8b", "training": {"global_batch_size": 64}')


def _price(plan: Plan, request: PlanRequest, model: ModelSpec, inventory: Inventory) -> Plan:
    """Returns the plan with the cost of its step, where figures are known for such hardware."""
    from meshwright.planning.search.search import audit_plan, build_nothing_fits, price_plan  # here, for its numpy

    assert request.training is not None
    try:
        question = inventory.ask(model, request.training, math.prod(plan.mesh_shape.values()), request)
    except PlanInfeasibleError as error:
        if plan.platform == "cpu" and request.compile and not request.audit:
            return plan  # has no price, and its compiler reports the memory
        message = f"memory and time of a step cannot be estimated: {error.errors[0]['message']}"
        notice = Notice(code="not_priced", message=message, hint="plan on a target, such as v5p:4x4x4")
        return plan.model_copy(update={"warnings": (*plan.warnings, notice)})
    priced = price_plan(plan, question)
    if not request.audit:
        return priced
    best = audit_plan(priced, question)
    warnings = priced.warnings if best else (*priced.warnings, build_nothing_fits(question))
    return priced.model_copy(update={"audit": best, "warnings": warnings})


def _finish(plan: Plan, model: ModelSpec, training: TrainingSpec, request: PlanRequest | SearchRequest) -> Plan:
    """Returns the plan with its facts of the model, and the requested exports.

    Raises:
        InvalidRequestError: an export cannot be written; of a mesh that a search found, a warning says so.
    """
    facts = ModelFacts(name=model.name, parameter_count=count_parameters(model))
    written: dict[ExportName, str] = {}
    left: list[Notice] = []
    for name in request.exports:
        from meshwright.planning.exports import write_export  # here, since few plans are exported

        try:
            written[name] = write_export(name, plan, model, training)
        except InvalidRequestError as error:
            if isinstance(request, PlanRequest):
                raise
            left.append(Notice(code=EXPORT_LEFT_OUT, message=error.detail, hint=error.hint))
    return plan.model_copy(update={"model": facts, "exports": written, "warnings": (*plan.warnings, *left)})


# ---- the best meshes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Search:
    """A search on one inventory; `price` is of one device and hour."""

    request: SearchRequest
    model: ModelSpec
    inventory: Inventory
    price: float | None

    def answer(self) -> Plans:
        from meshwright.planning.search.remaining import find_fallback, search_remaining
        from meshwright.planning.search.search import search_plans  # here, for its numpy

        topology = self.inventory.topology
        pool = self.inventory.select(self.request.devices, self.request.lease)
        try:
            plans = search_plans(self.request, self.ask(len(pool.indices)), self.lay_out)
        except PlanInfeasibleError:
            if not _is_reduced(self.request, pool):
                raise
            plans = search_remaining(self.request, topology, pool.indices, self.ask, self.lay_out)
        fallback = None
        if self.request.fallback and plans.plans:
            fallback = find_fallback(self.request, plans.plans[0], topology, pool, self.ask, self.lay_out)
            fallback = fallback.model_copy(update={"plans": self._finish(fallback.plans)})
        return plans.model_copy(update={"plans": self._finish(plans.plans), "fallback": fallback})

    def ask(self, devices: int) -> Question:
        """Returns the question for this number of devices."""
        return self.inventory.ask(self.model, self.request.training, devices, self.request, self.price)

    def lay_out(self, mesh: str, devices: DeviceSelection | None = None) -> Plan:
        """Returns the plan of a mesh on the request's devices, or on others."""
        request = PlanRequest.model_construct(
            mesh=mesh,
            devices=devices or self.request.devices,
            lease=self.request.lease,
            model=self.request.model,
            training=self.request.training,
            memory_strategy=self.request.memory_strategy,
            include_devices=self.request.include_devices,
            allow_unused=True,
        )
        return self.inventory.lay_out(request)

    def _finish(self, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
        return tuple(_finish(plan, self.model, self.request.training, self.request) for plan in plans)


def _is_reduced(request: SearchRequest, pool: Pool) -> bool:
    """Returns whether devices are missing that the request did not count out: failed, held, or excluded."""
    if request.devices is None:
        return bool(pool.left_out or pool.leased or pool.taken)
    return isinstance(request.devices, DeviceSelection) and request.devices.count is None


# ---- several targets ------------------------------------------------------------------------------------------------


def _compare_targets(request: SearchRequest, prices: Mapping[str, float]) -> Plans:
    """Returns the best plan of each target, best first, and the outcome of each."""
    named: dict[str, str] = {}
    for target in request.targets:
        other = named.setdefault(str(read_target(target)) if _is_known(target) else target, target)
        if prices.get(other) != prices.get(target):
            message = f"{other} and {target} are one target, and have two prices"
            raise _refuse("price_per_device_hour", message, f"leave out {other} or {target}")
    asked = [(name, _ask(request, target, prices)) for name, target in named.items()]
    answers = {target: found for target, found in asked if isinstance(found, Plans)}
    made = {target: found.plans[0] for target, found in answers.items() if found.plans}
    unpriced = [target for target, plan in made.items() if plan.price_per_million_tokens is None]
    least = math.inf if unpriced else min((plan.price_per_million_tokens or 0.0 for plan in made.values()), default=0.0)
    order = sorted(made, key=lambda target: _rank(made[target], least))
    best = made[order[0]] if order else None
    is_dearer = best is not None and (best.price_per_million_tokens or 0.0) > least
    same = f", the fastest within {EQUAL_WITHIN:.0%} of it" if is_dearer else ""
    verdict = "the best" if unpriced else f"the least price of tokens{same}"
    if unpriced and prices:
        verdict = f"the fastest; not compared by price of tokens: no price for {' and '.join(unpriced)}"
    lost = [_compare(target, found, best, verdict) for target, found in asked if target not in made]
    return Plans(
        plans=tuple(made[target] for target in order),
        comparison=(*(_compare(target, answers[target], best, verdict) for target in order), *lost),
        fallback=answers[order[0]].fallback if order else None,
        warnings=tuple(dict.fromkeys(notice for found in answers.values() for notice in found.warnings)),
    )


def _read_prices(request: SearchRequest) -> Mapping[str, float]:
    """Returns the price of each target, or of "", this host: one for all, or by target.

    Raises:
        InvalidRequestError: a price is of no target that is searched on.
    """
    price, targets = request.price_per_device_hour, request.targets or ("",)
    if not isinstance(price, dict):
        return {} if price is None else dict.fromkeys(targets, float(price))
    unknown = next((name for name in price if name not in request.targets), None)
    if unknown is not None:
        there = f"none of the targets {', '.join(targets)}" if request.targets else "no target of this search"
        message = f"price_per_device_hour has {unknown[:80]!r}, which is {there}"
        raise _refuse("price_per_device_hour", message, "name targets there as they are named in targets")
    return {name: float(value) for name, value in price.items()}


def _ask(request: SearchRequest, target: str, prices: Mapping[str, float]) -> Plans | RequestError:
    alone = {"targets": (target,), "price_per_device_hour": prices.get(target), "top": 1}
    try:
        return answer_request(request.model_copy(update=alone))
    except PlanInfeasibleError as error:  # may be wrong with one target and not with another
        return error


def _rank(plan: Plan, least: float) -> tuple[float, float]:
    """Returns what plans are sorted by: the price of tokens, where those near the least are equal; then the time of a
    step."""
    over = max(0.0, (plan.price_per_million_tokens or 0.0) - (1 + EQUAL_WITHIN) * least)
    return over, plan.step_time.total_s if plan.step_time else 0.0


def _compare(target: str, found: Plans | RequestError, best: Plan | None, verdict: str) -> ComparedTarget:
    if not isinstance(found, Plans):
        reason = found.code if _is_known(target) else UNKNOWN_TARGET
        hint = f"; {found.hint}" if found.hint else ""
        return ComparedTarget(target=target, reason=reason, message=f"{found.detail}{hint}")
    if not found.plans:
        message = "; ".join(notice.message for notice in found.warnings)
        return ComparedTarget(target=target, reason="nothing_fits", message=message, rejected=found.rejected)
    assert best is not None
    plan = found.plans[0]
    message = verdict if plan is best else _describe(plan, best)
    return ComparedTarget(target=plan.target or target, message=message, rejected=found.rejected)


def order_verified(statuses: Sequence[str]) -> list[int]:
    """Returns the places of plans: first those that fit by the compiler, last those that do not fit."""
    ranks = {"verified": 0, "does_not_fit": 2}
    return sorted(range(len(statuses)), key=lambda place: ranks.get(statuses[place], 1))


def reorder(plans: Plans, order: Sequence[int]) -> Plans:
    """Returns an answer with its plans in the order of `order_verified`; comparison and fallback follow."""
    moved = tuple(plans.plans[place] for place in order)
    if not plans.comparison or moved == plans.plans:
        return plans.model_copy(update={"plans": moved})
    rows = {row.target: row for row in plans.comparison}
    told = [rows.pop(plan.target or "").model_copy(update={"message": _describe(plan, moved[0])}) for plan in moved]
    told[0] = told[0].model_copy(update={"message": "the best of those that the compiler does not refuse"})
    fallback = plans.fallback if moved[0] is plans.plans[0] else None
    return plans.model_copy(update={"plans": moved, "comparison": (*told, *rows.values()), "fallback": fallback})


def _is_known(target: str) -> bool:
    try:
        read_target(target)
    except PlanInfeasibleError:
        return False
    return True


def _describe(plan: Plan, best: Plan) -> str:
    """Returns the comparison of a plan with the best: its step, its price, and whether they differ beyond the error."""
    step, other = plan.step_time, best.step_time
    if step is None or other is None:
        return ""
    said = [f"{step.total_s / other.total_s:.2f} times the step of {best.target}"]
    if plan.price_per_million_tokens and best.price_per_million_tokens:
        times = plan.price_per_million_tokens / best.price_per_million_tokens
        said.append(f"{times:.2f} times its price of tokens")
    if (step.low_s or math.inf) <= (other.high_s or 0) and (other.low_s or math.inf) <= (step.high_s or 0):
        said.append("their intervals overlap, so that a run may turn them round")
    return "; ".join(said)
