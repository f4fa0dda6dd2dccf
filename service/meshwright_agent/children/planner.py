"""The planner: plans that the event loop cannot wait for. `python -m meshwright_agent.children.planner`, a child.

Rule: JSON in, JSON out; the agent passes a plan on as it comes and never parses it again. Pure but for a cache of
targets, so a planner may die and be started anew at any time. Imports no jax.
"""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from meshwright.compiling.worker import lower_priority
from meshwright.errors import InvalidRequestError, NotReadyError
from meshwright.planning.request import Inventory, answer_request
from meshwright.planning.search.measured import LEFT_OUT, Measurement
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.base import Notice
from meshwright.wire.batch_size import BatchSizeRequest
from meshwright.wire.devices import DeviceLease, Devices
from meshwright.wire.mesh import Plan, PlanRequest, Plans, SearchRequest
from meshwright_agent.bodies import shorten_large
from meshwright_agent.children.child import CallContext, serve

KIND: Final = "planner"
MEMORY_LIMIT_BYTES: Final = 4 * 2**30
"""131,072 devices take 1.2 GB. A body of 16 MiB that is no topology could take all there is, and a trainer with it."""
OF_THE_MODEL: Final = (
    "model_not_supported",
    "memory_does_not_fit",
    "not_priced",
    "priced_in_16_bits",
    LEFT_OUT,
)
"""Warnings of a plan that are about its request's model."""
OF_THE_TRAINING: Final = (
    "memory",
    "step_time",
    "schedule",
    "mfu_ratio",
    "tokens_per_s",
    "price_per_million_tokens",
    "largest_batch",
    "audit",
)
"""Fields of a plan that say what the request's training costs on it."""
NICENESS: Final = 5
"""So that on few cores the agent answers, and a job runs, before a plan is made."""


def prepare() -> None:
    """Bounds the planner's memory, and lets others go first; what planning needs is imported by now."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    lower_priority(NICENESS)


def plan(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Lays out a mesh: {"request": its JSON text, "here": what `parse_here` takes} in, `write_plans` out.

    Raises:
        ProblemError: the request is refused, or takes more memory than there is.
    """
    return _answer(PlanRequest, arguments)


def search(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Finds the best meshes for a model; arguments, answer and errors as of `plan`."""
    return _answer(SearchRequest, arguments)


def _answer(kind: type[PlanRequest | SearchRequest], arguments: Mapping[str, Any]) -> dict[str, Any]:
    told = arguments["here"]
    try:
        request = kind.model_validate_json(arguments["request"])
        return write_plans(request, None if told is None else parse_here(told))
    except MemoryError:
        detail = f"the request takes more than the {MEMORY_LIMIT_BYTES} bytes of memory that the planner may have"
        raise InvalidRequestError(
            detail, status=413, hint="plan on fewer hosts, or with `meshwright plan --offline`"
        ) from None


def fit(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Returns the task of finding the largest batch: {"request", "plan": a stored one or null, "here"} in, JSON texts.

    Raises:
        ProblemError: the request is refused.
    """
    from meshwright_agent.children.compile_tasks import build_fit_task

    request, plan, here = _parse_batch(arguments)
    return asdict(build_fit_task(request, plan, here))


def estimate(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Returns the estimated batch of a model's step as JSON text: {"estimated": …}; takes what `fit` takes.

    Raises:
        ProblemError: the request is refused.
    """
    from meshwright.planning.batch_request import estimate_request  # here: most requests are plans

    request, plan, here = _parse_batch(arguments)
    estimated = estimate_request(request, here, stored=plan)
    return {"estimated": estimated.model_dump_json()}


def _parse_batch(arguments: Mapping[str, Any]) -> tuple[BatchSizeRequest, Plan | None, Inventory | None]:
    request = BatchSizeRequest.model_validate_json(arguments["request"])
    plan = None if arguments["plan"] is None else Plan.model_validate_json(arguments["plan"])
    return request, plan, None if arguments["here"] is None else parse_here(arguments["here"])


def parse_here(told: Mapping[str, Any]) -> Inventory:
    """Returns this host, of {"target": …} or {"devices": the text of GET /devices} and what else an inventory has.

    Raises:
        NotReadyError: {"problem": …} stands there: the agent does not know its devices.
    """
    if "problem" in told:
        raise NotReadyError(told["problem"], hint="wait until GET /readyz answers 200, or name a target")
    if "target" in told:
        topology = build_target(told["target"])
    else:
        topology = Topology.of(Devices.model_validate_json(told["devices"]))
    if leased := told.get("leased"):
        topology = _mark_leased(topology, leased)
    health = {int(place): str(state) for place, state in told["health"].items()}
    notices = tuple(Notice.model_validate(notice) for notice in told["notices"])
    measured = tuple(map(Measurement.model_validate, told.get("measured", ())))
    return Inventory(topology, health=health, notices=notices, measured=measured)


def _mark_leased(topology: Topology, leased: Mapping[str, Any]) -> Topology:
    """Returns a target's topology with the leases that the agent has given on it: place → lease."""
    covers = {int(place): DeviceLease.model_validate(lease) for place, lease in leased.items()}
    devices = tuple(
        device.model_copy(update={"lease": covers[place]}) if place in covers else device
        for place, device in enumerate(topology.devices)
    )
    return replace(topology, devices=devices)


def write_plans(request: PlanRequest | SearchRequest, here: Inventory | None) -> dict[str, Any]:
    """Returns the answer to a request in pieces of JSON text, as `answers.plans.PlanAnswer` takes them.

    Plans are written with their devices, since those are kept for the ranks of a job; what is shown may lack them. What
    is said of a model is shown and not kept: the fingerprint is the mesh's, whatever is trained on it. Plans that are
    shown as they are kept are written once: the devices of a large one come to megabytes.

    Raises:
        ProblemError: the request is refused.
    """
    plans = answer_request(request.model_copy(update={"include_devices": True}), here)
    kept = [_forget_model(each) for each in (*plans.plans, *(plans.fallback.plans if plans.fallback else ()))]
    shown = plans.plans if request.include_devices else tuple(map(_leave_out, plans.plans))
    written: dict[str, Any] = {
        "frame": _write_frame(request, plans),
        "fingerprints": [each.fingerprint for each in kept],
        "kept": _write(kept),
        "shown": None if list(shown) == kept else _write(shown),
    }
    return written | (_write_tasks(request, plans) if request.verify == "compile" else {})


def _write(plans: Iterable[Plan]) -> list[str]:
    return [each.model_dump_json() for each in plans]


def _write_frame(request: PlanRequest | SearchRequest, plans: Plans) -> str:
    """Returns the reply without its plans; that of the fallback is in it, with devices where they are wanted."""
    fallback = plans.fallback
    if fallback is not None and not request.include_devices:
        fallback = fallback.model_copy(update={"plans": tuple(map(_leave_out, fallback.plans))})
    return plans.model_copy(update={"plans": (), "fallback": fallback}).model_dump_json()


def _forget_model(plan: Plan) -> Plan:
    warnings = tuple(notice for notice in plan.warnings if notice.code not in OF_THE_MODEL)
    nothing: dict[str, Any] = {**dict.fromkeys(OF_THE_TRAINING), "model": None, "measured": (), "exports": {}}
    return plan.model_copy(update={**nothing, "warnings": warnings})


def _write_tasks(request: PlanRequest | SearchRequest, plans: Plans) -> dict[str, Any]:
    """Returns what is to be compiled for each plan, the plans without devices, and the request as its run shows it."""
    from meshwright_agent.children.compile_tasks import build_verify_task  # here: most plans are not compiled

    tasks = [asdict(build_verify_task(each, request)) for each in plans.plans]
    bare = _write(map(_leave_out, plans.plans))
    return {"tasks": tasks, "bare": bare, "request": json.dumps(describe_request(request))}


def describe_request(request: PlanRequest | SearchRequest) -> dict[str, Any]:
    """Returns the request as JSON, defaults filled in; hosts that it brings, and what is large, by their digest."""
    said = shorten_large(request.model_dump(mode="json", exclude={"topology"}))
    if request.topology is None:
        return {**said, "topology": None}
    text = request.model_dump_json(include={"topology"})
    return {**said, "topology": {"sha256": hashlib.sha256(text.encode()).hexdigest()}}


def _leave_out(plan: Plan) -> Plan:
    """Returns the plan as `include_devices=false` wants it: without what grows with the number of devices."""
    granules = tuple(granule.model_copy(update={"used_positions": None}) for granule in plan.granules)
    return plan.model_copy(update={"devices": (), "granules": granules})


if __name__ == "__main__":
    serve(KIND, prepare, {"plan": plan, "search": search, "fit": fit, "estimate": estimate})
