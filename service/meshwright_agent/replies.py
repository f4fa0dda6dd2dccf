"""What is added to an answer after it was made: notices about the request, and fields that were not wanted. Pure."""

from __future__ import annotations

from typing import Any

from meshwright.wire.base import Notice, Request
from meshwright.wire.mesh import PlanRequest, Plans


def notices_of(request: Request) -> tuple[Notice, ...]:
    """Returns the warning about fields that a newer client sent and this agent does not know."""
    if not request.ignored_fields:
        return ()
    names = ", ".join(request.ignored_fields)
    message = f"the request speaks schema_version {request.schema_version}; these fields were ignored: {names}"
    return (Notice(code="fields_ignored", message=message, hint="upgrade the agent to have them taken into account"),)


def shape_reply(plans: Plans, request: PlanRequest) -> Plans:
    """Returns what is sent: without the list of devices if it was not wanted, with the notice on ignored fields."""
    changes: dict[str, Any] = {}
    if not request.include_devices:
        changes["plans"] = tuple(plan.model_copy(update={"devices": None}) for plan in plans.plans)
    if notices := notices_of(request):
        changes["warnings"] = (*plans.warnings, *notices)
    return plans.model_copy(update=changes) if changes else plans
