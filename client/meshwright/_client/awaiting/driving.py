"""Carries out the core's flows: sends their requests, and returns the outcomes to them.

Independent of endpoints and of the HTTP library: `_calls` builds requests, `_http` sends them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from meshwright import _http
from meshwright._calls import flows
from meshwright._calls.building import Call
from meshwright._calls.flows import Flow, Observer, Open, Pause, ReadChunk, Send, Step
from meshwright._client.connection import DEFAULT_TIMEOUT_S, Connection, advance
from meshwright.wire.runs import Progress

T = TypeVar("T")


class AsyncDriver(Connection):
    """What all calls of `AsyncClient` go through: its connections, and the loop that carries a flow out."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        max_retries: int = 2,
        transport: httpx.AsyncBaseTransport | None = None,
        http_client: _http.AsyncHttpClient | None = None,
        pause: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(base_url, token, max_retries, _http.find_address(http_client) if http_client else "")
        self._owns_http = http_client is None
        self._http = http_client or _http.build_async_client(self._settings, timeout, transport)
        self._pause = pause or asyncio.sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a `http_client` that was given stays open."""
        if self._owns_http:
            await self._http.aclose()

    async def _ask(self, call: Call[T]) -> T:
        return await self._drive(flows.exchange(call, self._link))

    async def _complete(
        self, call: Call[T], on_progress: Callable[[Progress], object] | None, timeout_s: float | None
    ) -> T:
        return await self._drive(flows.complete(call, self._link, Observer(on_progress), timeout_s))

    async def _drive(self, flow: Flow[T], pause: Callable[[float], Awaitable[None]] | None = None) -> T:
        sender = _http.AsyncSender(self._http, self._shared)
        outcome: Any = None
        interruption: BaseException | None = None
        try:
            while True:
                try:
                    step = flow.throw(interruption) if interruption else flow.send(outcome)
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                try:
                    outcome, interruption = await self._do(step, sender, pause or self._pause), None
                except BaseException as error:
                    interruption = error
        finally:
            await sender.close()

    async def _iterate(self, flow: Flow[None], events: deque[T]) -> AsyncIterator[T]:
        sender = _http.AsyncSender(self._http, self._shared)
        outcome: Any = None
        try:
            while (step := advance(flow, outcome)) is not None:
                while events:
                    yield events.popleft()
                outcome = await self._do(step, sender, self._pause)
            while events:
                yield events.popleft()
        finally:
            await sender.close()

    async def _do(self, step: Step, sender: _http.AsyncSender, pause: Callable[[float], Awaitable[None]]) -> Any:
        match step:
            case Send(request, timeout_s):
                return await sender.send(request, timeout_s)
            case Open(request, silence_s):
                return await sender.open(request, silence_s)
            case ReadChunk():
                return await sender.read_chunk()
            case Pause(delay_s):
                return await pause(delay_s)
