"""Connections that do harm: too many, too slow, never read. Whoever asks as usual is answered all the same."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from meshwright.wire.runs import Progress, Run, RunEvent
from tests.agents import RunningAgent, start_agent, wait_for
from tests.faults.causing import WATCHFUL, connect_many, count_descriptors, limit_descriptors, read_cpu_s
from tests.process.kept import keep_runs
from tests.process.living import ask, await_state, do_bench, read_rss_bytes
from tests.tokens import add_token

pytestmark = pytest.mark.exhaustive

SLOW_CLIENTS = 200
CLIENTS = 1000
REQUESTS_EACH = 3
DEAF_CLIENTS = 20
EVENTS = 9_000
WORDS = "x" * 900
"""A progress message: a run's history of 40,000 of them has more than 10 MB."""
DEAF_GROWTH_BYTES = 60_000_000


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    with start_agent(cpu_devices=2, **WATCHFUL) as agent:
        yield agent


# ---- descriptors ----------------------------------------------------------------------------------------------------


def test_without_descriptors_those_who_are_connected_are_answered_and_all_is_well_when_some_are_free() -> None:
    with start_agent(cpu_devices=2, **WATCHFUL) as agent, httpx.Client(base_url=agent.url, timeout=60) as kept:
        assert kept.get("/readyz").status_code == 200
        assert kept.get("/mesh/plan?mesh=dp:2").status_code == 200  # the first plan reads tables from files
        do_bench(agent)
        await_state(agent, "driver", "healthy")
        with limit_descriptors(agent, spare=5):
            with connect_many(agent, 60, b"GET /healthz HTTP/1.1\r\n"):
                wait_for(lambda: kept.get("/health").json()["state"] != "healthy", agent, limit_s=30)  # no probe starts
                began_s, used_s = time.monotonic(), read_cpu_s(agent.pid)
                while time.monotonic() - began_s < 3:
                    assert kept.get("/healthz").status_code == 200
                    assert kept.get("/mesh/plan?mesh=dp:2").status_code == 200
                    time.sleep(0.1)
                assert read_cpu_s(agent.pid) - used_s < 0.5 * (
                    time.monotonic() - began_s
                )  # it waits, and does not spin
            assert agent.log_text().count("out of system resource") < 100
            wait_for(lambda: httpx.get(f"{agent.url}/healthz").status_code == 200, agent, limit_s=30)
        for name in ("driver", "store", "worker"):
            await_state(agent, name, "healthy", limit_s=60)
        assert do_bench(agent)


# ---- slow and many --------------------------------------------------------------------------------------------------


def test_clients_that_never_finish_their_request_keep_nobody_waiting(host: RunningAgent) -> None:
    with connect_many(host, SLOW_CLIENTS, b"POST /mesh/plan HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") as slow:
        took_s = []
        for letter in range(20):
            slow[letter].sendall(b"a")
            began_s = time.perf_counter()
            assert httpx.get(f"{host.url}/healthz").status_code == 200
            assert httpx.get(f"{host.url}/devices").status_code == 200
            took_s.append(time.perf_counter() - began_s)
        assert sorted(took_s)[10] < 2.0
    wait_for(lambda: count_descriptors(host) < SLOW_CLIENTS, host, limit_s=30)


async def ask_often(url: httpx.URL, count: int) -> int:
    """Returns how many of `count` requests over one connection were answered with 200."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    answered = 0
    for _ in range(count):
        writer.write(b"GET /devices HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        answered += head.startswith(b"HTTP/1.1 200 ")
    writer.close()
    return answered


def test_a_thousand_clients_at_once_are_all_answered(host: RunningAgent) -> None:
    async def crowd() -> list[int]:
        return await asyncio.gather(*(ask_often(httpx.URL(host.url), REQUESTS_EACH) for _ in range(CLIENTS)))

    before = count_descriptors(host)
    assert asyncio.run(crowd()) == [REQUESTS_EACH] * CLIENTS
    wait_for(lambda: count_descriptors(host) <= before + 20, host, limit_s=30)
    assert do_bench(host)
    assert "Traceback" not in host.log_text()


# ---- trailers, and answers that nobody reads -------------------------------------------------------------------------


def test_trailers_without_end_take_no_memory_and_end_the_connection(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    add_token(tokens, "somebody", "read")
    head = b"POST /mesh/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with start_agent(cpu_devices=2, ready=False, MESHWRIGHT_TOKENS_FILE=str(tokens)) as agent:
        wait_for(lambda: httpx.get(f"{agent.url}/readyz").status_code == 200, agent)
        before, began_s = read_rss_bytes(agent.pid), time.monotonic()
        with connect_many(agent, 1, head) as (stranger,), contextlib.suppress(ConnectionError):
            while time.monotonic() - began_s < 20:
                stranger.sendall(b"".join(b"x-%d: %b\r\n" % (number, b"a" * 8000) for number in range(100)))
        assert time.monotonic() - began_s < 20
        assert read_rss_bytes(agent.pid) - before < DEAF_GROWTH_BYTES


def test_clients_that_never_read_a_long_answer_hold_neither_memory_nor_their_connections() -> None:
    long = {"MESHWRIGHT_SIMULATE": "1024*h100:8", "MESHWRIGHT_BODY_TIMEOUT_S": "3"}
    with start_agent(cpu_devices=None, **long) as agent:
        size = len(httpx.get(f"{agent.url}/devices", timeout=60).content)
        before, open_before = read_rss_bytes(agent.pid), count_descriptors(agent)
        with connect_many(agent, 4 * DEAF_CLIENTS, b"GET /devices HTTP/1.1\r\nHost: localhost\r\n\r\n") as deaf:
            assert deaf[-1].recv(15) == b"HTTP/1.1 200 OK"
            assert read_rss_bytes(agent.pid) - before < DEAF_GROWTH_BYTES < len(deaf) * size
            wait_for(lambda: count_descriptors(agent) <= open_before + 2, agent, limit_s=30)
        assert httpx.get(f"{agent.url}/devices", timeout=60).status_code == 200


# ---- listeners that do not listen -----------------------------------------------------------------------------------


def write_long_history(state_dir: Path) -> str:
    """Returns the id of a run that has ended and has `EVENTS` events in the store."""
    now = datetime.now(UTC)
    run = Run(id="run-00000000000a" + "0" * 20, kind="bench", state="succeeded", created_at=now, request={})
    progress = Progress(done=0, total=1, message=WORDS)
    events = [
        RunEvent(seq=seq, at=now, type="progress", run_id=run.id, state="running", progress=progress)
        for seq in range(1, EVENTS + 1)
    ]
    keep_runs(state_dir, [run], events)
    return run.id


def test_clients_that_never_read_their_event_stream_cost_no_memory_and_leave_nothing(tmp_path: Path) -> None:
    run_id = write_long_history(tmp_path)
    with start_agent(cpu_devices=2, state_dir=tmp_path) as agent:
        do_bench(agent)
        before, open_before = read_rss_bytes(agent.pid), count_descriptors(agent)
        request = f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with connect_many(agent, DEAF_CLIENTS, request) as deaf:
            assert deaf[0].recv(15) == b"HTTP/1.1 200 OK"
            began_s = time.monotonic()
            while time.monotonic() - began_s < 5:
                assert httpx.get(f"{agent.url}/devices").status_code == 200
                assert read_rss_bytes(agent.pid) - before < DEAF_GROWTH_BYTES
                time.sleep(0.2)
            waiting = [count_unread(connection) for connection in deaf[1:]]
            assert all(0 < unread < EVENTS * len(WORDS) for unread in waiting)  # they were begun, and not poured out
            assert ask(agent, f"/runs/{run_id}")["state"] == "succeeded"
        wait_for(lambda: count_descriptors(agent) <= open_before + 2, agent, limit_s=30)
        assert do_bench(agent)


def count_unread(connection: socket.socket) -> int:
    """Returns how many bytes wait in a socket for its reader."""
    import array
    import fcntl
    import termios

    waiting = array.array("i", [0])
    fcntl.ioctl(connection.fileno(), termios.FIONREAD, waiting)
    return waiting[0]
