"""The planner: plans that would block the event loop. A child, `python -m meshwright_agent.children.planner`.

Rule: JSON in, JSON out. The agent forwards a plan without parsing it. Pure except for a cache of targets, so that a
planner may be restarted at any time. Does not import jax.
"""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from meshwright.compiling.worker import lower_priority
from meshwright.errors import InvalidRequestError, UnavailableError
from meshwright.planning.request import Inventory, answer_request, leave_out_all_devices, list_kept
from meshwright.planning.search.measured import LEFT_OUT, Measurement
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.base import Notice
from meshwright.wire.batch_size import BatchSizeRequest
from meshwright.wire.devices import Devices
from meshwright.wire.leases import Lease
from meshwright.wire.mesh import EXPORT_LEFT_OUT, Plan, PlanRequest, SearchRequest
from meshwright_agent.bodies import shorten_large
from meshwright_agent.children.child import CallContext, serve

MEMORY_LIMIT_BYTES: Final = 4 * 2**30
"""131,072 devices take 1.2 GB. Without a limit, a malformed body of 16 MiB could exhaust the memory and kill a
trainer."""
OF_THE_MODEL: Final = (
    *("model_not_supported", "memory_does_not_fit", "not_priced", "priced_in_16_bits"),
    *(EXPORT_LEFT_OUT, LEFT_OUT),
)
"""Warnings of a plan that are about its request's model."""
OF_THE_TRAINING: Final = (
    "memory",
    "step_time",
    "schedule",
    "mfu",
    "tokens_per_s",
    "price_per_million_tokens",
    "largest_batch",
    "audit",
)
"""Fields of a plan with the cost of the request's training."""
NICENESS: Final = 5
"""Gives the agent and jobs priority over a plan on few cores."""


def prepare() -> None:
    """Limits the planner's memory and lowers its priority. The imports are complete at this point."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    lower_priority(NICENESS)


def plan(
    kind: type[PlanRequest | SearchRequest], arguments: Mapping[str, Any], _context: CallContext
) -> dict[str, Any]:
    """Plans meshes. Takes {"request": its JSON text, "here": input of `parse_here`}; returns `write_plans`.

    Raises:
        ProblemError: the request is rejected, or needs too much memory.
    """
    payload = arguments["here"]
    try:
        request = kind.model_validate_json(arguments["request"])
        return write_plans(request, None if payload is None else parse_here(payload))
    except MemoryError:
        detail = f"the request takes more than the {MEMORY_LIMIT_BYTES} bytes of memory that the planner may have"
        raise InvalidRequestError(
            detail, status=413, hint="plan on fewer hosts, or with `meshwright plan --offline`"
        ) from None


def fit(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Returns the compile task of the largest batch. Takes {"request", "plan": stored plan or null, "here"} as JSON.

    Raises:
        ProblemError: the request is rejected.
    """
    from meshwright_agent.children.compile_tasks import build_fit_task

    request, plan, here = _parse_batch(arguments)
    return asdict(build_fit_task(request, plan, here))


def estimate(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Returns the estimated batch of a model's step as JSON text: {"estimated": …}. Takes the arguments of `fit`.

    Raises:
        ProblemError: the request is rejected.
    """
    from meshwright.planning.batch_request import estimate_request  # here: most requests are plans

    request, plan, here = _parse_batch(arguments)
    estimated = estimate_request(request, here, stored=plan)
    return {"estimated": estimated.model_dump_json()}


def _parse_batch(arguments: Mapping[str, Any]) -> tuple[BatchSizeRequest, Plan | None, Inventory | None]:
    request = BatchSizeRequest.model_validate_json(arguments["request"])
    plan = None if arguments["plan"] is None else Plan.model_validate_json(arguments["plan"])
    return request, plan, None if arguments["here"] is None else parse_here(arguments["here"])


def parse_here(payload: Mapping[str, Any]) -> Inventory:
    """Returns this host from {"target": …} or {"devices": text of GET /devices}, with the other fields of an inventory.

    Raises:
        UnavailableError: the input is {"problem": …}, because the agent does not know its devices.
    """
    if "problem" in payload:
        raise UnavailableError(payload["problem"], hint="wait until GET /readyz answers 200, or name a target")
    if "target" in payload:
        topology = build_target(payload["target"])
    else:
        topology = Topology.of(Devices.model_validate_json(payload["devices"]))
    if leased := payload.get("leased"):
        topology = _mark_leased(topology, leased)
    health = {int(place): str(state) for place, state in payload["health"].items()}
    notices = tuple(Notice.model_validate(notice) for notice in payload["notices"])
    measured = tuple(map(Measurement.model_validate, payload.get("measured", ())))
    return Inventory(topology, health=health, notices=notices, measured=measured)


def _mark_leased(topology: Topology, leased: Mapping[str, Any]) -> Topology:
    """Returns a target's topology with the agent's leases on it: place → lease."""
    covers = {int(place): Lease.model_validate(lease) for place, lease in leased.items()}
    devices = tuple(
        device.model_copy(update={"lease": covers[place]}) if place in covers else device
        for place, device in enumerate(topology.devices)
    )
    return replace(topology, devices=devices)


def write_plans(request: PlanRequest | SearchRequest, here: Inventory | None) -> dict[str, Any]:
    """Returns the answer to a request as JSON text, the fields of `answers.plans.PlanAnswer`.

    Stored plans include their devices, for the ranks of a job. Replies may omit the devices. Results about a model are
    returned but not stored, because the fingerprint belongs to the mesh. Of a compile, there are also the task of each
    plan and the request as shown in its run.

    Raises:
        ProblemError: the request is rejected.
    """
    plans = answer_request(request.model_copy(update={"include_devices": True}), here)
    kept = [_forget_model(each) for each in list_kept(request, plans)]
    shown = plans if request.include_devices else leave_out_all_devices(plans)
    written = {"text": shown.model_dump_json(), "kept": [(each.fingerprint, each.model_dump_json()) for each in kept]}
    if not request.compile:
        return written
    from meshwright_agent.children.compile_tasks import build_verify_task  # here: most plans are not compiled

    tasks = [asdict(build_verify_task(each, request)) for each in plans.plans]
    return {**written, "tasks": tasks, "request": json.dumps(describe_request(request))}


def _forget_model(plan: Plan) -> Plan:
    warnings = tuple(notice for notice in plan.warnings if notice.code not in OF_THE_MODEL)
    nothing: dict[str, Any] = {**dict.fromkeys(OF_THE_TRAINING), "model": None, "measured": (), "exports": {}}
    return plan.model_copy(update={**nothing, "warnings": warnings})


def describe_request(request: PlanRequest | SearchRequest) -> dict[str, Any]:
    """Returns the request as JSON with defaults filled in. Included hosts and large fields are replaced by digests."""
    body = shorten_large(request.model_dump(mode="json", exclude={"topology"}))
    if request.topology is None:
        return {**body, "topology": None}
    text = request.model_dump_json(include={"topology"})
    return {**body, "topology": {"sha256": hashlib.sha256(text.encode()).hexdigest()}}


if __name__ == "__main__":
    serve(
        "planner",
        prepare,
        {"plan": partial(plan, PlanRequest), "search": partial(plan, SearchRequest), "fit": fit, "estimate": estimate},
    )
