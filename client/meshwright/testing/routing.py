"""Requests to routes, and replies to bytes, for the fake agent: checked against the models of the real one.

Uses the client's own table of endpoints. Has no state.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from meshwright._calls.endpoints import ENDPOINTS, Endpoint
from meshwright._calls.messages import Answer, Request
from meshwright.errors import NotFoundError, ProblemError
from meshwright.wire.health import HealthEvent
from meshwright.wire.problem import build_problem, translate_validation
from meshwright.wire.runs import RunEvent

Served = tuple[Answer, Iterator[bytes]]
"""The head of a reply, and the chunks of its body."""


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a reply, for a client of either kind."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


@dataclass(frozen=True)
class Asked:
    """A request in the form of a route: parts of the path and query by name, the body as its model, the caller."""

    request: Request
    parts: dict[str, str]
    query: dict[str, str]
    body: Any = None
    caller: str = ""

    @property
    def after(self) -> int | None:
        """The number of the last known event; None: not given."""
        said = self.request.headers.get("last-event-id") or self.query.get("after")
        return None if said is None else int(said)


def find_route(request: Request) -> tuple[Endpoint[Any], Asked]:
    """Returns the endpoint of a request, and the parsed request.

    Raises:
        ProblemError: the route does not exist or does not have this method, or the body is not valid.
    """
    url = urlsplit(request.path)
    found = [(endpoint, match) for endpoint in ENDPOINTS if (match := _match(endpoint.path, url.path))]
    if not found:
        raise NotFoundError(f"there is no route {url.path}", hint="GET /openapi.json lists them")
    for endpoint, match in found:
        if endpoint.method == request.method:
            parts = {name: unquote(part) for name, part in match.groupdict().items()}
            return endpoint, Asked(request, parts, dict(parse_qsl(url.query)), _read_body(endpoint, request))
    raise NotFoundError(f"{url.path} takes {', '.join(e.method for e, _ in found)}, not {request.method}", status=405)


def _match(template: str, path: str) -> re.Match[str] | None:
    return re.fullmatch(re.sub(r"\\?\{(\w+)\\?\}", r"(?P<\1>[^/]+)", template), path)


def _read_body(endpoint: Endpoint[Any], request: Request) -> BaseModel | None:
    if endpoint.request is None:
        return None
    try:
        return endpoint.request.model_validate_json(request.body or b"{}")
    except ValidationError as error:
        raise translate_validation(error.errors()) from error


def write(reply: Any) -> Served:
    """Returns a model, text, dict or whole answer as bytes."""
    match reply:
        case (Answer() as head, chunks):
            return head, chunks
        case Answer():
            return reply, iter((reply.body,))
        case BaseModel():
            return Answer(200, {"content-type": "application/json"}), iter((reply.model_dump_json().encode(),))
        case str():
            return Answer(200, {"content-type": "text/plain; charset=utf-8"}), iter((reply.encode(),))
        case _:
            return Answer(200, {"content-type": "application/json"}), iter((json.dumps(reply).encode(),))


def write_problem(error: ProblemError) -> Served:
    """Returns an error as a problem document."""
    headers = {"content-type": "application/problem+json", "x-request-id": "fake-request"}
    if error.retry_after_s is not None:
        headers["retry-after"] = f"{error.retry_after_s:g}"
    body = build_problem(error, request_id="fake-request").model_dump_json()
    return Answer(error.status, headers), iter((body.encode(),))


def write_stream(events: Sequence[RunEvent | HealthEvent], cut: int | None) -> Served:
    """Returns events as a stream of server-sent events, which breaks after `cut` events, unless `cut` is None."""
    return Answer(200, {"content-type": "text/event-stream; charset=utf-8"}), _write_events(events, cut)


def _write_events(events: Sequence[RunEvent | HealthEvent], cut: int | None) -> Iterator[bytes]:
    yield b": the agent's sign of life\n\n"
    for count, event in enumerate(events):
        if count == cut:
            raise httpx.RemoteProtocolError("the stream was cut, as the test asked for")
        kind = event.type if isinstance(event, RunEvent) else event.kind
        yield f"id: {event.seq}\nevent: {kind}\ndata: {event.model_dump_json()}\n\n".encode()
    if cut is not None and cut >= len(events):
        raise httpx.RemoteProtocolError("the stream was cut, as the test asked for")
