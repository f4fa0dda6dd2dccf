"""A plan as a compiler is asked about it: read from whatever holds it, and its hardware found.

Rule: the hardware is the plan's own, or one that the caller names; what a plan does not say is not guessed. Knows no
jax.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from meshwright.errors import PlanInfeasibleError, SettingsError
from meshwright.planning.compile_job import build_compile_mesh, build_compile_target, find_capacity
from meshwright.planning.mesh import list_granules
from meshwright.topology.targets import build_target
from meshwright.wire.compiling import CompileMesh, CompileTarget
from meshwright.wire.mesh import Plan, Plans

PlanLike = Plan | Plans | Mapping[str, Any] | str | bytes | os.PathLike[str]
"""A plan, an agent's whole answer (its first plan counts), the same as a mapping or JSON, or a file that holds it."""

_EITHER: Final = TypeAdapter[Plans | Plan](Plans | Plan)
_RULE: Final = "give what Client().plan() returns, its JSON, or a file: `meshwright plan … -o plan.json`"


def read_plan(plan: PlanLike) -> Plan:
    """Returns the plan.

    Raises:
        SettingsError: it is none, or a file that cannot be read.
        PlanInfeasibleError: an answer that holds no plan.
    """
    found = plan if isinstance(plan, Plan | Plans) else _parse(plan)
    if isinstance(found, Plan):
        return found
    if not found.plans:
        reasons = "; ".join(rejected.message for rejected in found.rejected) or "no reason was given"
        raise PlanInfeasibleError(f"the answer holds no plan: {reasons}", hint="ask for another mesh")
    return found.plans[0]


def _parse(plan: Mapping[str, Any] | str | bytes | os.PathLike[str]) -> Plan | Plans:
    try:
        if isinstance(plan, Mapping):
            return _EITHER.validate_python(plan)
        return _EITHER.validate_json(_read(plan))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise SettingsError(f"this is no plan: {first['msg']}; {_RULE}") from error


def _read(plan: str | bytes | os.PathLike[str]) -> str | bytes:
    if isinstance(plan, bytes) or (isinstance(plan, str) and plan.lstrip().startswith("{")):
        return plan
    try:
        return Path(plan).read_bytes()
    except (OSError, ValueError) as error:
        raise SettingsError(f"plan {os.fspath(plan)!r} is no file that can be read ({error}); {_RULE}") from error


def find_hardware(plan: Plan, target: str | None) -> tuple[CompileTarget, CompileMesh, int | None]:
    """Returns the plan's hardware and mesh as a compiler describes them, and the bytes of a device that a job may use.

    Args:
        plan: with its devices.
        target: the hardware, where that is not the plan's own; None: what the plan says.

    Raises:
        NotCompiledError: no compiler can be asked about it.
        SettingsError: `target` is other hardware.
        InvalidRequestError, PlanInfeasibleError: `target` is none.
    """
    mesh = build_compile_mesh(plan)
    if target is not None:
        plan = _move(plan, mesh, target)
    return build_compile_target(plan), mesh, find_capacity(plan)


def _move(plan: Plan, mesh: CompileMesh, target: str) -> Plan:
    """Returns the plan as one on other hardware, that has a device for each of its places."""
    topology = build_target(target)
    counts = Counter(device.granule for device in topology.devices)
    if topology.platform != plan.platform or any(place >= counts[granule] for granule, place in mesh.places):
        raise SettingsError(
            f"the plan stands on {_describe(plan)}; target {target} is {len(counts)} granules of {counts[0]} "
            f"{topology.platform} devices; name hardware that has them all"
        )
    return plan.model_copy(update={"target": target, "granules": list_granules(topology)})


def _describe(plan: Plan) -> str:
    granules = f"{len(plan.granules)} granules" if len(plan.granules) != 1 else "1 granule"
    return f"{len(plan.devices or ())} {plan.platform} devices of {granules}"
