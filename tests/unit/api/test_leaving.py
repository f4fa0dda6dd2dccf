"""Listeners who leave: FastAPI's own streams, asked by hand, with a reader who goes while an event waits to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.types import Message

from meshwright_agent.api.gate import CALLER_KEY, JsonRoute
from tests.unit.api.asgi import EVERYBODY, HOST, build_small_app

READ = 3


async def _stream() -> AsyncIterator[ServerSentEvent]:
    number = 0
    while True:
        number += 1
        yield ServerSentEvent(raw_data=str(number), id=str(number))


async def _stream_badly() -> AsyncIterator[ServerSentEvent]:
    yield ServerSentEvent(raw_data="1", id="1")
    raise RuntimeError("a bug of ours")


async def listen(path: str) -> int:
    """Reads some events and leaves, with more of them on their way; returns how many were read."""
    app, router = build_small_app(), APIRouter(route_class=JsonRoute)
    router.get("/endless", response_class=EventSourceResponse)(_stream)
    router.get("/bad", response_class=EventSourceResponse)(_stream_badly)
    app.include_router(router)
    left, read = asyncio.Event(), 0

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal read
        read += bool(message.get("body"))
        if read >= READ:
            await asyncio.sleep(0.05)  # the next event waits meanwhile, and one behind it
            left.set()
            await asyncio.sleep(30)

    scope: dict[str, Any] = {
        CALLER_KEY: EVERYBODY,
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", HOST.encode())],
        "server": (HOST, 80),
        "client": ("test", 1),
    }
    await asyncio.wait_for(app(scope, receive, send), 30)
    return read


def test_a_listener_who_leaves_while_events_wait_is_no_error() -> None:
    assert asyncio.run(listen("/endless")) >= READ


def test_a_bug_in_a_stream_is_still_told() -> None:
    with pytest.raises(BaseException) as caught:  # alone, or in a group
        asyncio.run(listen("/bad"))
    assert "a bug of ours" in repr(caught.value)
