"""An agent that answers from lists, and a clock that only its clients' pauses and its silence move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from meshwright import Client
from meshwright.errors import ProblemError
from meshwright.wire.problem import build_problem

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REFUSED, LOST, SILENT = httpx.ConnectError("no"), httpx.RemoteProtocolError("cut"), httpx.ReadTimeout("silence")
Outcome = BaseModel | ProblemError | httpx.Response | BaseException


class Script:
    """Answers requests from `replies` and streams from `streams`, in order; records requests and pauses."""

    def __init__(self, *replies: Outcome, streams: Sequence[Any] = (), ping_s: float | None = None) -> None:
        self.replies = list(replies)
        self.streams = list(streams)
        self.ping_s = ping_s  # set: streams never end, and say "I live" so often
        self.requests: list[httpx.Request] = []
        self.pauses_s: list[float] = []
        self.now_s = 0.0

    def client(self, monkeypatch: pytest.MonkeyPatch, max_retries: int = 2) -> Client:
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.pause)
        monkeypatch.setattr("meshwright._client.replies.time", clock)
        monkeypatch.setattr("meshwright._client.blocking.time", clock)
        monkeypatch.setattr("meshwright._client.replies.random", SimpleNamespace(random=lambda: 0.0))
        return Client("http://a", transport=httpx.MockTransport(self._respond), max_retries=max_retries)

    def pause(self, delay_s: float) -> None:
        self.pauses_s.append(delay_s)
        self.now_s += delay_s

    @property
    def asked(self) -> list[str]:
        return [f"{request.method} {request.url.path}" for request in self.requests]

    def _respond(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.headers["accept"] != "text/event-stream":
            return _write(self.replies.pop(0))
        found = self.streams.pop(0) if self.streams else []
        if isinstance(found, httpx.Response):
            return found
        window_s = request.extensions["timeout"]["read"]
        headers = {"content-type": "text/event-stream; charset=utf-8"}
        return httpx.Response(200, headers=headers, content=self._read(found, window_s))

    def _read(self, chunks: Sequence[Any], window_s: float) -> Iterator[bytes]:
        for chunk in chunks:
            if chunk is SILENT:
                self.now_s += window_s
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk
        while self.ping_s is not None:
            self.now_s += min(window_s, self.ping_s)
            if self.ping_s >= window_s:
                raise SILENT
            yield b": sign of life\n\n"


def _write(outcome: Outcome) -> httpx.Response:
    match outcome:
        case ProblemError():
            return httpx.Response(outcome.status, content=build_problem(outcome).model_dump_json())
        case BaseException():
            raise outcome
        case BaseModel():
            return httpx.Response(200, content=outcome.model_dump_json())
    return outcome
