"""The one module that knows HTTP, over real sockets: TCP, unix, dropped connections, silence, streams as they come."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import pytest

from meshwright import AsyncClient, Client
from meshwright.errors import AgentConnectionError, AgentTimeoutError
from meshwright.wire.health import Health
from meshwright.wire.runs import Run, RunEvent, RunState
from tests.contract.client.both import Kind, ask_url, both
from tests.contract.client.sockets import STREAM_HEAD, Heard, answer, chunk, serve

HEALTH = answer(Health(state="healthy", components=()).model_dump_json().encode())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _healthy(heard: Heard, out: BinaryIO) -> bool:
    out.write(HEALTH)
    return True


@both
def test_a_kept_alive_connection_that_the_agent_dropped_is_replaced_without_a_retry(kind: Kind) -> None:
    def answer_first_of_each_connection(heard: Heard, out: BinaryIO) -> bool:
        if len(server.heard) == 2:
            return False  # hangs up on the second request: what a restart looks like
        out.write(HEALTH)
        return True

    async def ask_twice() -> list[str]:
        async with AsyncClient(server.url, max_retries=0) as client:
            return [(await client.health()).state for _ in range(2)]

    with serve(answer_first_of_each_connection) as server:
        if kind == "sync":
            with Client(server.url, max_retries=0) as client:
                states = [client.health().state for _ in range(2)]
        else:
            states = asyncio.run(ask_twice())
    assert states == ["healthy"] * 2
    assert [heard.connection for heard in server.heard] == [1, 1, 2]


@both
@pytest.mark.parametrize("reply", [HEALTH[:-5], b"HTTP/1.1 200 OK\r\nContent-Le", b"nonsense\r\n\r\n", b"\x00\xff" * 9])
def test_half_an_answer_and_noise_are_connection_errors(kind: Kind, reply: bytes) -> None:
    def act(heard: Heard, out: BinaryIO) -> bool:
        out.write(reply)
        return False

    with serve(act) as server, pytest.raises(AgentConnectionError):
        ask_url(kind, server.url, lambda c: c.health(), max_retries=0)


@both
@pytest.mark.filterwarnings("ignore:Exception ignored in.*socket")  # httpcore 1.0.9 leaves one to the collector
def test_nobody_there_is_a_connection_error_that_says_how_to_start_one(kind: Kind, tmp_path: Path) -> None:
    with serve(_healthy) as server:
        pass
    for url in (server.url, f"unix://{tmp_path}/absent.sock"):
        with pytest.raises(AgentConnectionError, match="meshwright-agent serve") as caught:
            ask_url(kind, url, lambda c: c.health(), max_retries=0)
        assert not isinstance(caught.value, AgentTimeoutError)
        assert caught.value.host == url
    del caught
    gc.collect()  # the socket that is left is collected here, not in whichever test comes later


@both
def test_no_proxy_of_the_environment_stands_before_loopback(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve(_healthy) as server:
        assert ask_url(kind, server.url, lambda c: c.health(), max_retries=0).state == "healthy"


# ---- streams


def _event(seq: int, state: RunState = "running") -> bytes:
    event = RunEvent(seq=seq, at=NOW, type="state", run_id="r", state=state)
    return chunk(f"id: {seq}\nevent: state\ndata: {event.model_dump_json()}\n\n".encode())


def _run(state: RunState) -> bytes:
    return answer(Run(id="r", kind="bench", state=state, created_at=NOW, request={}).model_dump_json().encode())


def test_events_are_there_as_soon_as_they_are_sent() -> None:
    seen = threading.Event()

    def act(heard: Heard, out: BinaryIO) -> bool:
        out.write(STREAM_HEAD + _event(1))
        out.flush()
        assert seen.wait(30), "the first event did not arrive before the second was sent"
        out.write(_event(2, "succeeded") + chunk(b""))
        return True

    with serve(act) as server, Client(server.url) as client:
        events = client.run_events("r")
        assert next(events).seq == 1
        seen.set()
        assert [event.seq for event in events] == [2]


@both
def test_waiting_on_a_silent_stream_ends_in_time(kind: Kind) -> None:
    released = threading.Event()

    def act(heard: Heard, out: BinaryIO) -> bool:
        if "/events" not in heard.line:
            out.write(_run("running"))
            return True
        out.write(STREAM_HEAD)
        out.flush()
        released.wait(30)
        return False

    with serve(act) as server:
        started = time.monotonic()
        with pytest.raises(AgentTimeoutError, match="is over; it was running"):
            ask_url(kind, server.url, lambda c: c.wait("r", timeout_s=0.6))
        assert 0.5 < time.monotonic() - started < 5
        released.set()


@both
@pytest.mark.parametrize("timeout_s", [float("inf"), 1e10, 9e9])
def test_a_time_limit_that_no_socket_can_have_is_none(kind: Kind, timeout_s: float) -> None:
    with serve(_healthy) as server:
        assert ask_url(kind, server.url, lambda c: c.health(), timeout=timeout_s).state == "healthy"
