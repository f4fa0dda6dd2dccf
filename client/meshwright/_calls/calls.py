"""The calls of the client: from Python arguments to a request, and from its answer to what is returned.

One function per method of `Client`. Pure: nothing is sent here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack

from pydantic import BaseModel

from meshwright._calls import endpoints
from meshwright._calls.endpoints import Endpoint
from meshwright._calls.messages import Answer, Request
from meshwright._calls.outcomes import build_request_model, read_reply
from meshwright.errors import AgentConnectionError, PlanInfeasibleError
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.base import SCHEMA_VERSION
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest
from meshwright.wire.bench import LatestBench
from meshwright.wire.cost import SearchSpec
from meshwright.wire.devices import Devices, Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Health
from meshwright.wire.mesh import DeviceSelection, Plan, PlanRequest, Plans, Rejected
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.runs import Run, RunList
from meshwright.wire.targets import Targets

T = TypeVar("T")
R = TypeVar("R")

DevicesLike = Sequence[int | str] | DeviceSelection | Mapping[str, Any]
"""Local indices, uuids or PCI bus ids; or a selection such as {"count": 4, "policy": "packed"}."""
TopologyLike = Devices | Mapping[str, Any] | Sequence[Devices | Mapping[str, Any]]
"""What the agents' `devices()` returned, of one host or of several; or the same as JSON."""
ModelLike = str | ModelSpec | Mapping[str, Any]
"""A preset's name, the content of a config.json, or dimensions by the same names."""
TrainingLike = TrainingSpec | Mapping[str, Any]
"""How it is trained, such as {"global_batch": 64, "sequence_length": 8192}."""
SearchLike = SearchSpec | Mapping[str, Any]
"""What a search for a mesh may choose, such as {"axes": {"tp": 8}, "at_most": {"pp": 1}}."""
Verify = Literal["none", "compile"]
AxisTypesLike = str | Sequence[str] | Mapping[str, str]
MemoryStrategyName = Literal["conservative", "balanced", "aggressive"]
REASONS_MOST: Final = 3
"""Rejected meshes that an error names."""
ExportName = Literal["jax", "maxtext"]
EnvironmentStrategy = Literal["conservative", "balanced", "aggressive", "custom"]
ExportFormat = Literal["nccl-tests", "nvbandwidth"]


@dataclass(frozen=True)
class Readiness:
    """What `/readyz` says: whether plans can be answered, and one line on why. True where `ready` is."""

    ready: bool
    line: str

    def __bool__(self) -> bool:
        return self.ready


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read: `read(answer, host)`."""

    endpoint: Endpoint[Any]
    request: Request
    read: Callable[[Answer, str], T]

    @property
    def statuses(self) -> frozenset[int]:
        """The statuses that are answers."""
        return self.endpoint.statuses


def alive() -> Call[bool]:
    """`GET /healthz`."""
    return _build(endpoints.ALIVE, lambda answer, host: True)


def ready() -> Call[Readiness]:
    """`GET /readyz`."""
    return _build(endpoints.READY, lambda answer, host: Readiness(answer.status == 200, _text(answer, host).strip()))


def health() -> Call[Health]:
    """`GET /health`."""
    return _build_model(endpoints.HEALTH)


def devices() -> Call[Devices]:
    """`GET /devices`."""
    return _build_model(endpoints.DEVICES)


def devices_text() -> Call[str]:
    """`GET /devices?format=text`."""
    return _build(endpoints.DEVICES_TEXT, _text, query={"format": "text"}, accept="text/plain")


def release() -> Call[Release]:
    """`POST /devices/release`."""
    return _build_model(endpoints.RELEASE)


class PlanOptions(TypedDict, total=False):
    """What may be said of a plan besides its mesh. Each as the request's field of that name; left out: its default.

    Attributes:
        devices: local indices, uuids or PCI bus ids, or a selection such as {"count": 4}; None: all.
        device_order: "planned" looks for the best order, "given" takes the one of `devices`, row-major.
        axis_types: "auto", "explicit" or "manual": one for all, one an axis, or by name; None: auto.
        allow_unused: a mesh smaller than the host is a warning and not an error.
        include_devices: False leaves the list of devices out of the reply.
        memory_strategy: how much memory the job's JAX may take; goes into the plan's environment.
        target: plan on hardware that need not be here, such as "v5p:4x4x28" or "64*h100:8"; None: the agent's host.
        targets: compare these: the best plan on each.
        topology: plan on these hosts: what their agents' `devices()` returned.
        dcn: how axes are split over slices or hosts, such as "dp:4"; None: as the score has it.
        importance: how much traffic each axis has, such as {"tp": 8, "dp": 1}; None: by the axes' names.
        model: what is trained: a preset such as "llama3-70b", the content of a config.json, or dimensions.
        training: how, such as {"global_batch": 64, "sequence_length": 8192}.
        search: without a mesh, what may be chosen, such as {"at_most": {"tp": 8}}.
        top: without a mesh, how many plans are told.
        audit: with mesh and model, tell in `plan.audit` what the step is spent on, and what would save most.
        fallback: without a mesh, also plan for what is left when a device fails, in `plans.fallback`.
        exports: write "jax" (mesh and PartitionSpecs) or "maxtext" (flags) into `plan.exports`.
        verify: "compile" asks XLA's compiler whether the step fits, and waits for its word, in `plan.verification`.
            A compile goes on, and its answer is kept, when the waiting ends early.
    """

    devices: DevicesLike | None
    device_order: Literal["planned", "given"]
    axis_types: AxisTypesLike | None
    allow_unused: bool
    include_devices: bool
    memory_strategy: MemoryStrategyName
    target: str | None
    targets: Sequence[str] | None
    topology: TopologyLike | None
    dcn: str | Mapping[str, int] | None
    importance: Mapping[str, float] | None
    model: ModelLike | None
    training: TrainingLike | None
    search: SearchLike | None
    top: int
    audit: bool
    fallback: bool
    exports: Sequence[ExportName]
    verify: Verify


def plans(mesh: MeshLike | MeshSpec | None, **options: Unpack[PlanOptions]) -> Call[Plans]:
    """`POST /mesh/plan`; where it asks the compiler, with an Idempotency-Key made here, once per call.

    Raises:
        InvalidRequestError: an argument has the wrong type.
    """
    said = {name: _write_model(value) if name in _MODELS else _write_sequence(value) for name, value in options.items()}
    fields = {"mesh": None if mesh is None else _write_mesh(mesh), **said}
    return _build_model(endpoints.PLAN, fields=fields, is_keyed=options.get("verify", "none") != "none")


_MODELS: Final = ("model", "training", "search")
"""Options that may be a wire model."""


def parse_plan_request(call: Call[Plans]) -> PlanRequest:
    """Returns the request that such a call sends, as its receiver reads it: for a plan in this process."""
    return PlanRequest.model_validate_json(call.request.body or b"")


def stored_plan(fingerprint: str) -> Call[Plans]:
    """`GET /mesh/plan/{fingerprint}`."""
    return _build_model(endpoints.STORED_PLAN, parts={"fingerprint": fingerprint})


def best_plan(call: Call[Plans]) -> Call[Plan]:
    """Returns the call that answers the first plan only; it takes over the warnings on the request."""

    def read(answer: Answer, host: str) -> Plan:
        return take_best(call.read(answer, host), asked=str(call.request), host=host)

    return Call(call.endpoint, call.request, read)


def take_best(plans: Plans, *, asked: str, host: str = "") -> Plan:
    """Returns the best plan, with the warnings on its request.

    Raises:
        PlanInfeasibleError: there is none; says why each mesh was rejected.
    """
    if not plans.plans:
        told = [f"{_write_shape(each)} {each.message}" for each in plans.rejected[:REASONS_MOST]]
        reasons = "; ".join([*told, *(notice.message for notice in plans.warnings)]) or "no reason was given"
        raise PlanInfeasibleError(f"{asked}: no plan is possible: {reasons}", host=host)
    best = plans.plans[0]
    return best.model_copy(update={"warnings": (*best.warnings, *plans.warnings)}) if plans.warnings else best


def _write_shape(rejected: Rejected) -> str:
    return ",".join(f"{name}:{size}" for name, size in rejected.mesh_shape.items())


def batch_size(
    hardware: str | None,
    batch: int | None,
    *,
    model: ModelLike | None = None,
    training: TrainingLike | None = None,
    mesh: MeshLike | MeshSpec | None = None,
    target: str | None = None,
    plan: Plan | str | None = None,
    memory_strategy: MemoryStrategyName = "balanced",
    verify: Verify = "none",
) -> Call[BatchSize]:
    """`POST /batch-size`; where it asks the compiler, with an Idempotency-Key made here, once per call.

    Raises:
        InvalidRequestError: an argument has the wrong type, or the batch is < 1.
        InvalidMeshError: the mesh is none.
    """
    fields = {
        "hardware": hardware,
        "batch": batch,
        "model": _write_model(model),
        "training": _write_model(training),
        "mesh": _print_mesh(mesh),
        "target": target,
        "plan": plan.fingerprint if isinstance(plan, Plan) else plan,
        "memory_strategy": memory_strategy,
        "verify": verify,
    }
    return _build_model(endpoints.BATCH_SIZE, fields=fields, is_keyed=verify != "none")


def parse_batch_size_request(call: Call[BatchSize]) -> BatchSizeRequest:
    """Returns the request that such a call sends, as its receiver reads it: for an answer in this process."""
    return BatchSizeRequest.model_validate_json(call.request.body or b"")


def submit_bench(*, mesh: MeshLike | MeshSpec | None, **fields: object) -> Call[Run]:
    """`POST /placement/bench`, with an Idempotency-Key made here, once per call.

    Raises:
        InvalidRequestError: an argument has the wrong type or is out of range.
        InvalidMeshError: the mesh is none.
    """
    asked = {name: _write_sequence(value) for name, value in fields.items()}
    return _build_model(endpoints.SUBMIT_BENCH, fields={**asked, "mesh": _print_mesh(mesh)})


def latest_bench() -> Call[LatestBench]:
    """`GET /placement/bench`."""
    return _build_model(endpoints.LATEST_BENCH)


def latest_bench_as(format: ExportFormat) -> Call[dict[str, Any]]:  # noqa: A002
    """`GET /placement/bench?format=…`."""
    return _build(endpoints.LATEST_BENCH_AS, _read_json_object, query={"format": format})


def runs(limit: int | None, state: str | None) -> Call[RunList]:
    """`GET /runs`."""
    return _build_model(endpoints.RUNS, query={"limit": limit, "state": state})


def run(run_id: str) -> Call[Run]:
    """`GET /runs/{id}`."""
    return _build_model(endpoints.RUN, parts={"run_id": run_id})


def cancel_run(run_id: str) -> Call[Run]:
    """`DELETE /runs/{id}`."""
    return _build_model(endpoints.CANCEL_RUN, parts={"run_id": run_id})


def run_events(run_id: str, after: int) -> Call[str]:
    """`GET /runs/{id}/events`, from the event after `after`; `flows.follow` reads the stream."""
    call = _build(endpoints.RUN_EVENTS, _text, parts={"run_id": run_id}, accept="text/event-stream")
    headers = {**call.request.headers, "Cache-Control": "no-store"}
    resumed = {"Last-Event-ID": str(after)} if after else {}
    return Call(call.endpoint, Request("GET", call.request.path, {**headers, **resumed}), call.read)


def environment(memory_strategy: EnvironmentStrategy | None, memory_fraction: float | None) -> Call[Environment]:
    """`GET /environment`."""
    query = {"memory_strategy": memory_strategy, "memory_fraction": memory_fraction}
    return _build_model(endpoints.ENVIRONMENT, query=query)


def targets(chip: str | None) -> Call[Targets]:
    """`GET /targets`."""
    return _build_model(endpoints.TARGETS, query={"chip": chip})


def metrics() -> Call[str]:
    """`GET /metrics`."""
    return _build(endpoints.METRICS, _text, accept="text/plain")


def _build(
    endpoint: Endpoint[Any],
    read: Callable[[Answer, str], T],
    *,
    parts: dict[str, str] | None = None,
    query: Mapping[str, object] | None = None,
    accept: str = "application/json",
) -> Call[T]:
    path = endpoint.build_path(parts or {}, query or {})
    return Call(endpoint, Request(endpoint.method, path, {"Accept": accept}), read)


def _build_model(
    endpoint: Endpoint[R],
    *,
    fields: Mapping[str, Any] | None = None,
    parts: dict[str, str] | None = None,
    query: Mapping[str, object] | None = None,
    is_keyed: bool = False,
) -> Call[R]:
    model: Any = endpoint.reply
    path = endpoint.build_path(parts or {}, query or {})
    headers = {"Accept": "application/json"}
    body = None
    if endpoint.request is not None:
        headers["Content-Type"] = "application/json"
        body = _write_body(build_request_model(endpoint.request, fields or {}))
    if endpoint.is_keyed or is_keyed:
        headers["Idempotency-Key"] = uuid.uuid4().hex
    request = Request(endpoint.method, path, headers, body)
    return Call(endpoint, request, lambda answer, host: read_reply(model, answer, request, host))


def _write_body(request: BaseModel) -> bytes:
    """Only what differs from the defaults: an older agent is not sent fields that nobody asked for."""
    said = request.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({"schema_version": SCHEMA_VERSION, **said}, ensure_ascii=False).encode()


def _write_mesh(mesh: MeshLike | MeshSpec) -> object:
    return str(mesh) if isinstance(mesh, MeshSpec) else _write_sequence(mesh)


def _print_mesh(mesh: MeshLike | MeshSpec | None) -> str | None:
    if mesh is None or isinstance(mesh, str):
        return mesh
    return str(mesh if isinstance(mesh, MeshSpec) else MeshSpec.parse(mesh))


def _write_model(value: object) -> object:
    """A model or a training as JSON says it: only what differs from the defaults."""
    return (
        value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else _write_sequence(value)
    )


def _write_sequence(value: object) -> object:
    """Sequences as the tuples that the wire models take, mappings as plain dicts."""
    match value:
        case str() | bytes() | BaseModel():
            return value
        case Mapping():
            return dict(value)
        case Sequence():
            return tuple(value)
    return value


def _text(answer: Answer, host: str) -> str:
    return answer.body.decode("utf-8", "replace")


def _read_json_object(answer: Answer, host: str) -> dict[str, Any]:
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise AgentConnectionError(
            f"what {host} answered is not a JSON object",
            host=host,
            hint="is the address that of a meshwright agent?",
        )
    return document
