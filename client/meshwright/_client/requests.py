"""Requests of the client: the options that callers may use, and the wire models that they become. Sends nothing."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypedDict, TypeVar, Union
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from meshwright import wire
from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.base import DeviceSelection, RequestPart
from meshwright.wire.problem import translate_validation

M = TypeVar("M", bound=RequestPart)

DeviceNames = Sequence[int | str]
"""Local indices, host/index, uuids or PCI bus ids."""
DevicesLike = Sequence[int | str] | DeviceSelection | Mapping[str, Any]
"""Local indices, uuids or PCI bus ids; or a selection such as {"count": 4, "exclude": [0]}."""
_HostTopology = Union["wire.devices.Devices", Mapping[str, Any]]
TopologyLike = _HostTopology | Sequence[_HostTopology]
"""What the agents' `devices()` returned, of one host or of several; or the same as JSON."""
ModelLike = Union[str, "wire.model.ModelSpec", Mapping[str, Any]]
"""A preset's name, the content of a config.json, or dimensions by the same names."""
TrainingLike = Union["wire.model.TrainingSpec", Mapping[str, Any]]
"""The training, such as {"global_batch_size": 64, "seq_len": 8192}."""
LeasedLike = Union[Literal["all"], DeviceNames, Mapping[str, int], "wire.mesh.Plan"]
"""Local indices, host/index, uuids or PCI bus ids; "all": every device of the host; {"count": 4}: so many that are
free; a plan: those that it uses."""
AxisTypesLike = str | Sequence[str] | Mapping[str, str]
MemoryStrategyName = Literal["conservative", "balanced", "aggressive"]
EnvironmentStrategy = Literal["conservative", "balanced", "aggressive", "custom"]

REASONS_MOST: Final = 3
"""Rejected meshes that an error names."""


class _MeshOptions(TypedDict, total=False):
    """Optional settings of a plan and of a search. Each is the request's field of the same name.

    Attributes:
        devices: local indices, uuids or PCI bus ids, or a selection such as {"count": 4}; None: all.
        lease: the job's own lease: plans on its devices, and not on devices of other leases.
        topology: plan on these hosts: the results of their agents' `devices()`.
        include_devices: False leaves the list of devices out: `plan.devices` is empty.
        memory_strategy: the part of a GPU's memory that the job's JAX may take, as `plan.environment` has it; None:
            0.92 where a model is trained, else 0.75.
        exports: write "jax" (mesh and PartitionSpecs) or "maxtext" (flags) into `plan.exports`; needs a model.
        compile: asks XLA's compiler whether the step fits, and waits for the result in `plan.verification`. If
            the waiting ends early, the compile continues and its result is stored.
    """

    devices: DevicesLike | None
    lease: wire.leases.Lease | str | None
    topology: TopologyLike | None
    include_devices: bool
    memory_strategy: MemoryStrategyName | None
    exports: Sequence[wire.mesh.ExportName]
    compile: bool


class PlanOptions(_MeshOptions, total=False):
    """Optional settings of a plan only, besides its mesh.

    Attributes:
        target: plan on hardware that need not be present, such as "v5p:4x4x28" or "64*h100:8"; None: the agent's host.
        device_order: "planned" searches the best order, "given" takes the one of `devices`, row-major.
        axis_types: "auto", "explicit" or "manual": one for all, one an axis, or by name; None: auto.
        allow_unused: a mesh smaller than the host causes a warning instead of an error.
        dcn: how axes are split over slices or hosts, such as "dp:4"; None: by the score.
        importance: the traffic of each axis, such as {"tp": 8, "dp": 1}; None: by the axes' names.
        model: the trained model: a preset such as "llama3-70b", the content of a config.json, or dimensions.
        training: its training, such as {"global_batch_size": 64, "seq_len": 8192}: prices the step.
        audit: with model and training, report the best mesh of its devices in `plan.audit`.
    """

    target: str | None
    device_order: Literal["planned", "given"]
    axis_types: AxisTypesLike | None
    allow_unused: bool
    dcn: str | Mapping[str, int] | None
    importance: Mapping[str, float] | None
    model: ModelLike | None
    training: TrainingLike | None
    audit: bool


class BenchOptions(TypedDict, total=False):
    """Optional settings of a bench.

    Attributes:
        suite: "quick" (the default) takes up to 20 s; "full" has more sizes and samples.
        cases: the measured cases; None: all.
        devices: local indices; None: all.
        mesh: the mesh that collectives run on; None: one axis over the devices.
        axis: the axis that they run over; None: each in turn.
        sizes_bytes: sizes of transfers and collectives; None: the suite's.
        matmul_size: n of the n×n×n matmul; None: the suite's.
        dtype: None: float32 on CPU, bfloat16 elsewhere.
        samples: their number per measurement, at least 3; None: the suite's.
        max_s: the time limit of the run on the agent.
        lease: the caller's own lease, whose devices may be measured.
    """

    suite: Literal["quick", "full"]
    cases: Sequence[wire.bench.BenchCase] | None
    devices: Sequence[int] | None
    mesh: MeshLike | MeshSpec | None
    axis: str | None
    sizes_bytes: Sequence[int] | None
    matmul_size: int | None
    dtype: wire.bench.Dtype | None
    samples: int | None
    max_s: float | None
    lease: wire.leases.Lease | str | None


class SearchOptions(_MeshOptions, total=False):
    """Optional settings of a search only, besides its model and training.

    Attributes:
        targets: hardware that need not be present, such as ["64*h100:8"]; for several, the best plan on each.
        axes: fixed sizes, such as {"tp": 8}.
        at_most: greatest sizes, such as {"pp": 1}.
        remat: "none", "minimal", "full", "offload": to choose from; empty: all, or that of the training.
        moment_dtypes: of AdamW's moments, to choose from; empty: those of the training.
        price_per_device_hour: of one device (half a chip of v2, v3 and tpu7x), in any currency; one for all, or by
            target: plans report the cost of tokens.
        top: the number of plans of one target.
        fallback: also plan for the remaining devices when a device fails, in `plans.fallback`.
    """

    targets: Sequence[str]
    axes: Mapping[wire.mesh.SearchAxis, int]
    at_most: Mapping[wire.mesh.SearchAxis, int]
    remat: Sequence[wire.model.Remat]
    moment_dtypes: Sequence[wire.model.WeightDtype]
    price_per_device_hour: float | Mapping[str, float] | None
    top: int
    fallback: bool


@dataclass(frozen=True)
class Readiness:
    """The answer of `/readyz`: whether plans can be answered, and one line on why. True where `ready` is."""

    ready: bool
    line: str

    def __bool__(self) -> bool:
        return self.ready


def build_request(model: type[M], given: object, fields: Mapping[str, Any]) -> M:
    """Returns a request: `given` where it is one, else the model of the fields that are not None.

    `given` may be among the fields too, as the value of the one that a caller may give without a whole request.

    Raises:
        InvalidRequestError: a field is wrong (one entry for each, in the agent's format), or stands beside a request.
    """
    values = {name: _write_field(value) for name, value in fields.items() if value is not None}
    if isinstance(given, model):
        known = model.model_fields
        others = {name: value for name, value in values.items() if value is not given}
        beside = [name for name, value in others.items() if name not in known or value != known[name].default]
        if beside:
            raise InvalidRequestError.of(
                beside[0],
                f"a {model.__name__} was given, and {beside[0]} beside it; a request has all of its fields itself",
                f"set {beside[0]} in the {model.__name__}, or give the fields without it",
            )
        return given
    try:
        return model(**values)
    except ValidationError as error:
        raise translate_validation(error.errors()) from error


def build_bench(request: wire.bench.BenchRequest | None, options: BenchOptions) -> wire.bench.BenchRequest:
    """Returns the request for a bench; errors as of `build_request` and `print_mesh`."""
    fields = {**options, "request": request, "mesh": print_mesh(options.get("mesh"))}
    return build_request(wire.bench.BenchRequest, request, fields)


def _write_field(value: object) -> object:
    """Returns the argument as the wire models take it."""
    match value:
        case wire.leases.Lease():
            return value.id
        case wire.mesh.Plan():
            return value.fingerprint
        case MeshSpec():
            return str(value)
        case wire.model.ModelSpec() | wire.model.TrainingSpec():
            return value.model_dump(mode="json", exclude_unset=True)
        case str() | bytes() | BaseModel():
            return value
        case Mapping():
            return dict(value)
        case Sequence():
            return tuple(value)
    return value


def print_mesh(mesh: MeshLike | MeshSpec | None) -> str | None:
    """Returns a mesh as text.

    Raises:
        InvalidMeshError: it is not a valid mesh.
    """
    if mesh is None or isinstance(mesh, str):
        return mesh
    return str(mesh if isinstance(mesh, MeshSpec) else MeshSpec.parse(mesh))


def print_time(time: datetime | None) -> str | None:
    """Returns a time as text; one without a zone is UTC."""
    return None if time is None else (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def quote_part(name: str, part: str) -> str:
    """Returns a name or an id as one part of a path.

    Raises:
        InvalidRequestError: it is empty or not text.
    """
    try:
        quoted = quote(part, safe="")
    except UnicodeEncodeError:
        quoted = ""
    if not quoted:
        raise InvalidRequestError.of(name, f"{name} {part!r} is no name: it is empty, or not text")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted  # "." and ".." are not parts of a path


def take_best(plans: wire.mesh.Plans, *, asked: str, host: str = "") -> wire.mesh.Plan:
    """Returns the best plan, with the warnings on its request.

    Raises:
        PlanInfeasibleError: there is no plan. The error says why each mesh was rejected.
    """
    if not plans.plans:
        reasons = [f"{_write_shape(each)} {each.message}" for each in plans.rejected[:REASONS_MOST]]
        reasons += [each.message for each in plans.comparison if each.message]
        text = "; ".join([*reasons, *(notice.message for notice in plans.warnings)]) or "no reason was given"
        hint = "; ".join(notice.hint for notice in plans.warnings if notice.hint)
        raise PlanInfeasibleError(f"{asked}: no plan is possible: {text}", hint=hint, host=host)
    best = plans.plans[0]
    return best.model_copy(update={"warnings": (*best.warnings, *plans.warnings)}) if plans.warnings else best


def _write_shape(rejected: wire.mesh.Rejected) -> str:
    return ",".join(f"{name}:{size}" for name, size in rejected.mesh_shape.items())


def build_lease(devices: LeasedLike, *, purpose: str, ttl_s: float, preemptible: bool) -> wire.leases.LeaseRequest:
    """Returns the request for a lease.

    Raises:
        InvalidRequestError: an argument has the wrong type or is out of range, or the plan is for other hardware.
    """
    if devices is None:  # a plan's "all", and easily a mistake here
        raise _refuse("devices is None; a lease names what it reserves", 'use "all", [0, 1] or {"count": 2}')
    named = name_devices(devices) if isinstance(devices, wire.mesh.Plan) else devices
    fields = {"devices": named, "purpose": purpose, "ttl_s": ttl_s, "preemptible": preemptible}
    return build_request(wire.leases.LeaseRequest, None, fields)


def build_renewal(lease: wire.leases.Lease, ttl_s: float) -> wire.leases.LeaseRequest:
    """Returns the request with all that the lease has, and another time.

    Raises:
        InvalidRequestError: a time that is out of range.
    """
    devices = tuple(each.uuid or each.local_index for each in lease.devices)
    return build_lease(devices, purpose=lease.purpose, ttl_s=ttl_s, preemptible=lease.preemptible)


def name_lease(lease: wire.leases.Lease | str) -> str:
    """Returns the path of a lease.

    Raises:
        InvalidRequestError: the id is empty or not text.
    """
    return f"/leases/{quote_part('lease_id', lease.id if isinstance(lease, wire.leases.Lease) else lease)}"


def name_new_lease(lease_id: str | None) -> str:
    """Returns the path of a lease that is made; None: an id is made too.

    Raises:
        InvalidRequestError: no lease can have this id.
    """
    if lease_id is None:
        return f"/leases/lease-{secrets.token_hex(8)}"
    if re.fullmatch(wire.leases.LEASE_ID_PATTERN, lease_id) is None:
        raise _refuse(
            f"lease_id {lease_id[:80]!r} is not an id of a lease; it is {wire.leases.LEASE_ID_RULE}",
            'name the job, such as "slurm-4711"',
            field="lease_id",
        )
    return f"/leases/{lease_id}"


def name_devices(plan: wire.mesh.Plan) -> tuple[int | str, ...]:
    """Returns the names of a plan's devices, the same for any order of them: uuids, or host/index where there are none.

    Raises:
        InvalidRequestError: they are a target's or of several hosts, or the plan does not list them.
    """
    if plan.target is not None:
        raise _refuse(
            f"plan {plan.fingerprint} is on the target {plan.target}, hardware that need not be here; a lease reserves "
            "devices of the agent's own host",
            "plan without `target`, on the agent of the host that shall run it",
        )
    if not plan.devices:
        raise _refuse(
            f"plan {plan.fingerprint} does not list its devices, so that none can be reserved",
            "plan with include_devices=True",
        )
    hosts = sorted({device.host for device in plan.devices})
    if len(hosts) > 1:
        raise _refuse(
            f"plan {plan.fingerprint} has devices of {len(hosts)} hosts ({', '.join(hosts[:3])}"
            f"{', …' if len(hosts) > 3 else ''}); an agent leases devices of its own host",
            "ask each host's agent for its own: lease([each.local_index for each in plan.devices if each.host == …])",
        )
    devices = sorted(plan.devices, key=lambda each: each.local_index)
    return tuple(each.uuid or f"{each.host}/{each.local_index}" for each in devices)


def _refuse(detail: str, hint: str, *, field: str = "devices") -> InvalidRequestError:
    return InvalidRequestError.of(field, detail, hint, detail.rpartition("; ")[2])
