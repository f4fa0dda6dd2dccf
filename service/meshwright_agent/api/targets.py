"""Target route: the chips, hosts and slices that plans can be made on without having them. The same on every host."""

from __future__ import annotations

import functools
import hashlib
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from meshwright.topology.targets import list_targets
from meshwright.wire.targets import Targets
from meshwright_agent.api.dependencies import problems
from meshwright_agent.api.gate import JsonRoute

router = APIRouter(tags=["mesh"], route_class=JsonRoute)

_REFUSALS = problems(s422="unknown_hardware (with near names) or an unknown query parameter")
_CACHE_SIZE = 64
"""More than there are chips; asked for by any of their names."""


@router.get(
    "/targets",
    summary="What can be planned on",
    response_model=Targets,
    responses=_REFUSALS | {304: {"description": "not modified"}},
)
async def read_targets(
    chip: Annotated[str | None, Query(max_length=80, description="one chip by any of its names")] = None,
    if_none_match: Annotated[str | None, Header(description="an ETag of before")] = None,
) -> Response:
    """Known chips, the hosts of GPUs, the named TPU slices: what `target` in a plan may say. Tables, not this host."""
    body, etag = _render(chip)
    headers = {"etag": etag, "cache-control": "no-cache"}
    if if_none_match is not None and etag in {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _render(chip: str | None) -> tuple[bytes, str]:
    body = list_targets(chip).model_dump_json().encode()
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'
