"""Carrying out the core's flows, waiting for each step. Its twin is `awaiting.driving`.

Knows no endpoint and no HTTP library: `_calls` says what is sent, `_http` sends it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from meshwright import _http
from meshwright._calls import flows
from meshwright._calls.building import Call
from meshwright._calls.flows import Flow, Observer, Open, Pause, ReadChunk, Send, Step
from meshwright._client.connection import DEFAULT_TIMEOUT_S, Connection, advance
from meshwright.wire.runs import Progress

T = TypeVar("T")


class Driver(Connection):
    """What all calls of `Client` go through: its connections, and the loop that carries a flow out."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        max_retries: int = 2,
        http_client: _http.HttpClient | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(base_url, token, max_retries, _http.find_address(http_client) if http_client else "")
        self._owns_http = http_client is None
        self._http = http_client or _http.build_client(self._settings, timeout)
        self._pause = pause or time.sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; a `http_client` that was given stays open."""
        if self._owns_http:
            self._http.close()

    def _ask(self, call: Call[T]) -> T:
        return self._drive(flows.exchange(call, self._link))

    def _complete(self, call: Call[T], on_progress: Callable[[Progress], object] | None, timeout_s: float | None) -> T:
        return self._drive(flows.complete(call, self._link, Observer(on_progress), timeout_s))

    def _drive(self, flow: Flow[T], pause: Callable[[float], None] | None = None) -> T:
        sender = _http.Sender(self._http, self._shared)
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
                    outcome, interruption = self._do(step, sender, pause or self._pause), None
                except BaseException as error:
                    interruption = error
        finally:
            sender.close()

    def _iterate(self, flow: Flow[None], events: deque[T]) -> Iterator[T]:
        sender = _http.Sender(self._http, self._shared)
        outcome: Any = None
        try:
            while (step := advance(flow, outcome)) is not None:
                while events:
                    yield events.popleft()
                outcome = self._do(step, sender, self._pause)
            while events:
                yield events.popleft()
        finally:
            sender.close()

    def _do(self, step: Step, sender: _http.Sender, pause: Callable[[float], None]) -> Any:
        match step:
            case Send(request, timeout_s):
                return sender.send(request, timeout_s)
            case Open(request, silence_s):
                return sender.open(request, silence_s)
            case ReadChunk():
                return sender.read_chunk()
            case Pause(delay_s):
                return pause(delay_s)
