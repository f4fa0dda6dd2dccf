"""The calls of the client: from Python arguments to a request, and from its answer to the return value.

One function per method of `Client`. Pure: nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Unpack

from meshwright._calls import endpoints
from meshwright._calls.building import (
    Call,
    build,
    build_model,
    print_mesh,
    read_text,
    write_mesh,
    write_model,
    write_sequence,
)
from meshwright._calls.endpoints import Endpoint
from meshwright._calls.messages import Answer, Request
from meshwright._calls.options import (
    EnvironmentStrategy,
    MemoryStrategyName,
    ModelLike,
    PlanOptions,
    SearchOptions,
    TrainingLike,
)
from meshwright.errors import PlanInfeasibleError
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.batch_size import BatchSize
from meshwright.wire.bench import LatestBench
from meshwright.wire.devices import Devices, Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Component, Health, HealthEvents
from meshwright.wire.leases import Lease
from meshwright.wire.mesh import Plan, Plans, Rejected
from meshwright.wire.runs import Run, RunList
from meshwright.wire.targets import Targets

REASONS_MOST: Final = 3
"""Rejected meshes that an error names."""


@dataclass(frozen=True)
class Readiness:
    """The answer of `/readyz`: whether plans can be answered, and one line on why. True where `ready` is."""

    ready: bool
    line: str

    def __bool__(self) -> bool:
        return self.ready


def alive() -> Call[bool]:
    """`GET /healthz`."""
    return build(endpoints.ALIVE, lambda answer, host: True)


def ready() -> Call[Readiness]:
    """`GET /readyz`."""
    return build(endpoints.READY, lambda answer, host: Readiness(answer.status == 200, read_text(answer, host).strip()))


def health() -> Call[Health]:
    """`GET /health`."""
    return build_model(endpoints.HEALTH)


def devices() -> Call[Devices]:
    """`GET /devices`."""
    return build_model(endpoints.DEVICES)


def devices_text() -> Call[str]:
    """`GET /devices?format=text`."""
    return build(endpoints.DEVICES_TEXT, read_text, query={"format": "text"}, accept="text/plain")


def release() -> Call[Release]:
    """`POST /devices/release`."""
    return build_model(endpoints.RELEASE)


def plan(mesh: MeshLike | MeshSpec, **options: Unpack[PlanOptions]) -> Call[Plan]:
    """`POST /mesh/plan`; starts a run where it needs the compiler.

    Raises:
        InvalidRequestError: an argument has the wrong type.
    """
    return _take_best(_build_planned(endpoints.PLAN, {"mesh": write_mesh(mesh), **options}))


def search(model: ModelLike, training: TrainingLike, **options: Unpack[SearchOptions]) -> Call[Plans]:
    """`POST /mesh/search`; starts a run where it needs the compiler.

    Raises:
        InvalidRequestError: an argument has the wrong type.
    """
    return _build_planned(endpoints.SEARCH, {"model": model, "training": training, **options})


def _build_planned(endpoint: Endpoint[Plans], given: Mapping[str, Any]) -> Call[Plans]:
    fields = {name: _write_field(name, value) for name, value in given.items()}
    return build_model(endpoint, fields=fields, makes_run=bool(given.get("compile")))


def _write_field(name: str, value: object) -> object:
    if isinstance(value, Lease):
        return value.id
    return write_model(value) if name in ("model", "training") else write_sequence(value)


def stored_plan(fingerprint: str) -> Call[Plan]:
    """`GET /mesh/plan/{fingerprint}`."""
    return _take_best(build_model(endpoints.STORED_PLAN, parts={"fingerprint": fingerprint}))


def _take_best(call: Call[Plans]) -> Call[Plan]:
    """Returns the call that answers only the first plan, with the warnings on the request."""

    def read(answer: Answer, host: str) -> Plan:
        return take_best(call.read(answer, host), asked=str(call.request), host=host)

    return Call(call.endpoint, call.request, read, makes_run=call.makes_run)


def take_best(plans: Plans, *, asked: str, host: str = "") -> Plan:
    """Returns the best plan, with the warnings on its request.

    Raises:
        PlanInfeasibleError: there is no plan. The error says why each mesh was rejected.
    """
    if not plans.plans:
        told = [f"{_write_shape(each)} {each.message}" for each in plans.rejected[:REASONS_MOST]]
        told += [each.message for each in plans.comparison if each.message]
        reasons = "; ".join([*told, *(notice.message for notice in plans.warnings)]) or "no reason was given"
        raise PlanInfeasibleError(f"{asked}: no plan is possible: {reasons}", host=host)
    best = plans.plans[0]
    return best.model_copy(update={"warnings": (*best.warnings, *plans.warnings)}) if plans.warnings else best


def _write_shape(rejected: Rejected) -> str:
    return ",".join(f"{name}:{size}" for name, size in rejected.mesh_shape.items())


def batch_size(
    hardware: str | None,
    per_device_batch_size: int | None,
    *,
    model: ModelLike | None = None,
    training: TrainingLike | None = None,
    mesh: MeshLike | MeshSpec | None = None,
    target: str | None = None,
    plan: Plan | str | None = None,
    memory_strategy: MemoryStrategyName | None = None,
    compile: bool = False,
) -> Call[BatchSize]:
    """`POST /batch-size`; starts a run where it needs the compiler.

    Raises:
        InvalidRequestError: an argument has the wrong type, or the batch is < 1.
        InvalidMeshError: the mesh is not valid.
    """
    fields = {
        "hardware": hardware,
        "per_device_batch_size": per_device_batch_size,
        "model": write_model(model),
        "training": write_model(training),
        "mesh": print_mesh(mesh),
        "target": target,
        "plan": plan.fingerprint if isinstance(plan, Plan) else plan,
        "memory_strategy": memory_strategy,
        "compile": compile,
    }
    return build_model(endpoints.BATCH_SIZE, fields=fields, makes_run=compile)


def submit_bench(*, mesh: MeshLike | MeshSpec | None, **fields: object) -> Call[Run]:
    """`POST /placement/bench`.

    Raises:
        InvalidRequestError: an argument has the wrong type or is out of range.
        InvalidMeshError: the mesh is not valid.
    """
    asked = {name: value.id if isinstance(value, Lease) else write_sequence(value) for name, value in fields.items()}
    return build_model(endpoints.SUBMIT_BENCH, fields={**asked, "mesh": print_mesh(mesh)})


def latest_bench() -> Call[LatestBench]:
    """`GET /placement/bench`."""
    return build_model(endpoints.LATEST_BENCH)


def runs(limit: int | None, state: str | None) -> Call[RunList]:
    """`GET /runs`."""
    return build_model(endpoints.RUNS, query={"limit": limit, "state": state})


def run(run_id: str) -> Call[Run]:
    """`GET /runs/{id}`."""
    return build_model(endpoints.RUN, parts={"run_id": run_id})


def cancel_run(run_id: str) -> Call[Run]:
    """`DELETE /runs/{id}`."""
    return build_model(endpoints.CANCEL_RUN, parts={"run_id": run_id})


def run_events(run_id: str, after: int) -> Call[str]:
    """`GET /runs/{id}/events`, from the event after `after`; `flows.follow` reads the stream."""
    return _build_stream(build(endpoints.RUN_EVENTS, read_text, parts={"run_id": run_id}), after or None)


def _build_stream(call: Call[str], after: int | None) -> Call[str]:
    resumed = {} if after is None else {"Last-Event-ID": str(after)}
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", **resumed}
    return Call(call.endpoint, Request("GET", call.request.path, headers), call.read)


def events(
    component: str | None, after: int | None, limit: int | None, since: datetime | None = None
) -> Call[HealthEvents]:
    """`GET /events`; a `since` without a zone is UTC."""
    at = None if since is None else (since if since.tzinfo else since.replace(tzinfo=UTC)).isoformat()
    return build_model(endpoints.EVENTS, query={"component": component, "after": after, "limit": limit, "since": at})


def event_stream(after: int) -> Call[str]:
    """`GET /events/stream`, from the event after `after`; `watching.follow_health` reads the stream.

    The number is sent also where it is 0: without one, the agent begins with news.
    """
    return _build_stream(build(endpoints.EVENT_STREAM, read_text), after)


def acknowledge(component: str, reason: str) -> Call[Component]:
    """`POST /health/acknowledge`.

    Raises:
        InvalidRequestError: a text that is empty or too long.
    """
    return build_model(endpoints.ACKNOWLEDGE, fields={"component": component, "reason": reason})


def environment(memory_strategy: EnvironmentStrategy | None, memory_fraction: float | None) -> Call[Environment]:
    """`GET /environment`."""
    query = {"memory_strategy": memory_strategy, "memory_fraction": memory_fraction}
    return build_model(endpoints.ENVIRONMENT, query=query)


def targets(chip: str | None) -> Call[Targets]:
    """`GET /targets`."""
    return build_model(endpoints.TARGETS, query={"chip": chip})


def metrics() -> Call[str]:
    """`GET /metrics`."""
    return build(endpoints.METRICS, read_text, accept="text/plain")
