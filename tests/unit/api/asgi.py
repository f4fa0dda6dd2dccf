"""An ASGI application asked by hand: what no HTTP library sends (bodies in pieces, endless ones, wild headers)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message

from meshwright_agent.access.callers import Caller
from meshwright_agent.access.doorkeeper import Doorkeeper
from meshwright_agent.api.gate import CALLER_KEY
from meshwright_agent.api.problem import install_handlers
from meshwright_agent.clock import SystemClock
from meshwright_agent.settings import Settings

LIMIT_BYTES = 1024
JSON = {"content-type": "application/json"}
HOST = "agent"
EVERYBODY = Caller("addr:test", "admin")
"""Whom the gate would have let in: for applications that are asked without one."""


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
    path, _, query = target.partition("?")
    if isinstance(headers, Mapping):
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    headers = list(headers)
    headers += [(b"host", HOST.encode())] * (b"host" not in dict(headers))
    whole = {
        CALLER_KEY: EVERYBODY,
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": headers,
        "server": (HOST, 80),
        "client": ("test", 1),
        **scope,
    }
    return asyncio.run(_serve(app, whole, iter(pieces)))


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


def build_doorkeeper(**settings: Any) -> Doorkeeper:
    """Returns the doorkeeper of an agent with these settings."""
    return Doorkeeper(Settings(**settings), SystemClock())


def build_small_app(limit_bytes: int = LIMIT_BYTES) -> FastAPI:
    """Returns an app with our problem handlers and nothing else, for routes of the test's own."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.agent = SimpleNamespace(settings=Settings(body_limit_bytes=limit_bytes))
    install_handlers(app)
    return app
