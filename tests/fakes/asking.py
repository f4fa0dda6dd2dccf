"""Requests as tests write them: fields that name a mesh are a plan's, others are a search's."""

from __future__ import annotations

from typing import Any

from meshwright.planning.request import Inventory, answer_request
from meshwright.wire.mesh import PlanRequest, Plans, SearchRequest


def build_request(**fields: Any) -> PlanRequest | SearchRequest:
    """Returns the request of these fields; `target` is the one target of a search."""
    if fields.get("mesh") is not None:
        return PlanRequest.model_validate(fields)
    fields.pop("mesh", None)
    target = fields.pop("target", None)
    return SearchRequest.model_validate({**fields, **({} if target is None else {"targets": (target,)})})


def ask_planner(here: Inventory | None = None, **fields: Any) -> Plans:
    """Returns the answer to a request of these fields."""
    return answer_request(build_request(**fields), here)
