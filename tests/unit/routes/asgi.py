"""An ASGI application asked by hand: what no HTTP library sends (bodies in pieces, endless ones, wild headers)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message

from meshwright_agent.agent import Agent
from meshwright_agent.app import Wrapper, build_api
from meshwright_agent.auth import Authenticator
from meshwright_agent.clock import SystemClock
from meshwright_agent.settings import Settings
from tests.unit.store.opening import build_closed_store

JSON = {"content-type": "application/json"}
HOST = "agent"


@dataclass
class Heard:
    """An answer, and how many pieces of the body were taken for it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    pieces_taken: int = 0

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def ask(
    app: ASGIApp,
    method: str = "GET",
    target: str = "/",
    *,
    headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]] = (),
    pieces: Iterable[bytes] = (b"",),
    **scope: Any,
) -> Heard:
    """Returns the answer to one request, its body sent in the given pieces."""
    if isinstance(headers, Mapping):
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    headers = list(headers)
    headers += [(b"host", HOST.encode())] * (b"host" not in dict(headers))
    return asyncio.run(_serve(app, build_scope(method, target, headers) | scope, iter(pieces)))


def build_scope(method: str, target: str, headers: Iterable[tuple[bytes, bytes]] = ((b"host", b"agent"),)) -> Any:
    """Returns what a server tells of a request."""
    path, _, query = target.partition("?")
    return {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "root_path": "", "query_string": query.encode(), "headers": list(headers),
        "server": (HOST, 80), "client": ("test", 1),
    }  # fmt: skip


async def _serve(app: ASGIApp, scope: dict[str, Any], pieces: Iterator[bytes]) -> Heard:
    heard = Heard()
    following: list[bytes] = [next(pieces, b"")]

    async def receive() -> Message:
        piece = following.pop()
        ahead = next(pieces, None)
        following.append(b"" if ahead is None else ahead)
        heard.pieces_taken += 1
        return {"type": "http.request", "body": piece, "more_body": ahead is not None}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            heard.status = message["status"]
            heard.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            heard.body += message.get("body", b"")

    await app(scope, receive, send)
    return heard


def build_api_alone(**settings: Any) -> FastAPI:
    """Returns the API on an agent that was not started and whose store is closed; everybody is admin."""
    chosen = Settings(**{"insecure": True, "allowed_hosts": HOST, **settings})
    return build_api(Agent(chosen, build_closed_store()), Authenticator(chosen, SystemClock()))


def wrap(api: FastAPI) -> Wrapper:
    """Returns the API as the server runs it."""
    return Wrapper(api, api.state.authenticator)
