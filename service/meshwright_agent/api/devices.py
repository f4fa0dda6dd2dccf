"""Device routes: the host's topology, as JSON from a cache of bytes or as text, and giving the devices back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from meshwright.errors import InvalidRequestError
from meshwright.topology.text import format_devices
from meshwright.wire.devices import Devices, Release, ReleaseRequest
from meshwright_agent.agent import Agent
from meshwright_agent.api.dependencies import (
    BODY_REFUSALS,
    STORE_REFUSALS,
    TEXT,
    AgentHere,
    needs,
    problems,
)
from meshwright_agent.api.gate import JsonRoute, PlainRoute, check_query

router = APIRouter(tags=["devices"], route_class=JsonRoute)

_FORMATS: Final = ("json", "text")


async def read_devices(request: Request) -> Response:
    """The host's topology: devices, links, granules, each fact with its basis and age. `?format=text` for people.

    With `If-None-Match`, 304 while nothing but ages and memory in use has changed.
    """
    agent: Agent = request.app.state.agent
    if request.scope["query_string"] and _read_format(request) == "text":
        return PlainTextResponse(format_devices(agent.picture.devices()))
    rendering: Rendering = request.app.state.rendering
    shown = rendering.read(agent)
    asked = request.headers.get("if-none-match")
    return shown.unchanged if asked is not None and _matches(asked, shown.etag) else shown.whole


@dataclass(frozen=True)
class Shown:
    """One state of `/devices`, ready to be sent as often as it is asked for."""

    key: object
    etag: str
    whole: Response
    unchanged: Response


class Rendering:
    """`/devices` as replies with a weak ETag: made anew when something changed, else once a second for the ages."""

    def __init__(self) -> None:
        self._shown: Shown | None = None

    def read(self, agent: Agent) -> Shown:
        """Returns the replies of this moment."""
        is_still = agent.host.is_still and not agent.registry.active()
        key = (agent.picture.key(), 0 if is_still else int(agent.clock.monotonic()))
        if self._shown is None or self._shown.key != key:
            self._shown = self._render(agent.picture.devices(), key)
        return self._shown

    def _render(self, devices: Devices, key: object) -> Shown:
        etag = build_etag(devices)
        headers = {"etag": etag, "cache-control": "no-cache"}
        whole = Response(devices.model_dump_json(), media_type="application/json", headers=headers)
        return Shown(key, etag, whole, Response(status_code=304, headers=headers))


_FLEETING: Final = frozenset({"observed_at", "age_s", "used_bytes", "available_bytes", "memory_stats", "expires_in_s"})
"""What changes at every look though nothing has happened that a plan would care for."""


def build_etag(devices: Devices) -> str:
    """Returns a weak ETag over what is said: not over when it was seen, nor over how much memory is in use."""
    document = _without_fleeting(devices.model_dump(mode="json"))
    return f'W/"{hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]}"'


def _without_fleeting(value: Any) -> Any:
    match value:
        case dict():
            return {k: _without_fleeting(v) for k, v in value.items() if k not in _FLEETING}
        case list():
            return [_without_fleeting(v) for v in value]
        case _:
            return value


def _read_format(request: Request) -> str:
    check_query(request, ("format",))
    form = request.query_params.get("format", "json")
    if form not in _FORMATS:
        message = f"format {form[:80]!r} is none of {', '.join(_FORMATS)}"
        raise InvalidRequestError(
            message, hint="/devices?format=text", errors=[{"field": "format", "message": message}]
        )
    return form


def _matches(asked: str, etag: str) -> bool:
    """RFC 9110 §13.1.2: weak comparison, `*` matches whatever is there."""
    tags = {tag.strip().removeprefix("W/") for tag in asked.split(",")}
    return asked.strip() == "*" or etag.removeprefix("W/") in tags


@router.post(
    "/devices/release",
    summary="Give the devices back",
    responses=STORE_REFUSALS | BODY_REFUSALS,
    openapi_extra=needs("operate"),
)
async def release_devices(agent: AgentHere, request: ReleaseRequest | None = None) -> Release:
    """Ends the device worker (and the bench it runs) within 2 s, and names what still holds a device.

    All devices or none: JAX lets go of what it opened only with its process. So the body, if there is one, is `{}`.
    """
    return await agent.release()


_PARAMETERS: Final[list[dict[str, Any]]] = [
    {
        "name": "format",
        "in": "query",
        "required": False,
        "schema": {"type": "string", "enum": list(_FORMATS), "default": "json"},
        "description": "text: one line per device and the link matrix, for a terminal",
    },
    {
        "name": "If-None-Match",
        "in": "header",
        "required": False,
        "schema": {"type": "string"},
        "description": "an ETag of before: 304 if nothing but ages and memory in use has changed since",
    },
]

PLAIN_ROUTES = (
    PlainRoute(
        "/devices",
        read_devices,
        tags=["devices"],
        summary="What is here",
        response_model=Devices,
        openapi_extra={"parameters": _PARAMETERS},
        responses={200: {"content": TEXT}, 304: {"description": "not modified"}}
        | problems(s422="unknown format", s503="nothing is known yet"),
    ),
)
