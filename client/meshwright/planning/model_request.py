"""What a plan request gets for its model: the best meshes or the price of a given one, and what is said of both.

Rule: each part of the answer is made by one room (search, audit, exports, remaining) and put together here. Imports
numpy only where something is priced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.planning.device_selection import Pool, select_devices
from meshwright.planning.models import UnsupportedModelError, read_model
from meshwright.planning.parallelism import check_divides, find_role
from meshwright.planning.search.measured import Measurement, Measurements
from meshwright.planning.tensors import count_parameters
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.mesh import DeviceSelection, Plan, PlanRequest, Plans
from meshwright.wire.model import ModelFacts, ModelSpec, TrainingSpec

if TYPE_CHECKING:
    from meshwright.planning.search.answer import Question


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
        from meshwright.planning.search.request import search_plans  # here, for its numpy

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
        from meshwright.planning.search.request import build_question  # here, for its numpy

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
        from meshwright.planning.search.request import price_plan  # here, for its numpy

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
