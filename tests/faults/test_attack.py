"""512 clients that do harm at once: endless headers and bodies, answers read slowly or never, silence, listening."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.living import read_rss_bytes

pytestmark = pytest.mark.exhaustive

CLIENTS = 512
ATTACK_S = 12.0
CALM_S = 30.0
MAX_ATTACKED_BYTES = 300_000_000
MAX_CALM_BYTES = 150_000_000
HOST = b"Host: localhost\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _send_forever(streams: Streams, head: bytes, piece: bytes) -> None:
    writer = streams[1]
    writer.write(head)
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)


async def send_headers(streams: Streams) -> None:
    await _send_forever(streams, b"GET /devices HTTP/1.1\r\n" + HOST, b"X-Line: " + b"x" * 4000 + b"\r\n")


async def send_body(streams: Streams) -> None:
    head = b"POST /mesh/plan HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n" + HOST
    await _send_forever(streams, head + b"\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n")


async def read_slowly(streams: Streams) -> None:
    streams[1].write((b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n") * 100)
    for _ in range(int(ATTACK_S / 0.1)):
        await streams[0].readexactly(64)
        await asyncio.sleep(0.1)


async def read_nothing(streams: Streams) -> None:
    streams[1].write((b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n") * 100)
    await asyncio.sleep(ATTACK_S)


async def say_nothing(streams: Streams) -> None:
    await asyncio.sleep(ATTACK_S)


async def listen(streams: Streams) -> None:
    streams[1].write(b"GET /events/stream?after=0 HTTP/1.1\r\n" + HOST + b"\r\n")
    await asyncio.sleep(ATTACK_S)


KINDS: tuple[Callable[[Streams], Awaitable[None]], ...] = (
    send_headers, send_body, read_slowly, read_nothing, say_nothing, listen,
)  # fmt: skip


async def attack(url: httpx.URL, kind: Callable[[Streams], Awaitable[None]], end_s: float) -> None:
    """Connects again whenever the agent ends the connection, until the attack is over."""
    while time.monotonic() < end_s:
        writer: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, TimeoutError, EOFError):
            async with asyncio.timeout(end_s - time.monotonic()):
                reader, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
                await kind((reader, writer))
        if writer is not None:
            writer.transport.abort()
        await asyncio.sleep(0.05)


async def attack_together(agent: RunningAgent) -> tuple[int, list[float]]:
    """Returns the largest memory of the agent meanwhile, and how long each probe by the unix socket took."""
    end_s, most, duration_s = time.monotonic() + ATTACK_S, 0, list[float]()
    clients = [attack(httpx.URL(agent.url), KINDS[number % len(KINDS)], end_s) for number in range(CLIENTS)]
    attacking = asyncio.gather(*clients)
    transport = httpx.AsyncHTTPTransport(uds=str(agent.uds))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=20) as probe:
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            assert (await probe.get("/healthz")).status_code == 200
            assert (await probe.get("/devices")).status_code == 200
            duration_s.append(time.monotonic() - began_s)
            most = max(most, read_rss_bytes(agent.pid))
            await asyncio.sleep(0.2)
    await attacking
    return most, duration_s


def count_descriptors(agent: RunningAgent) -> int:
    return len(list(Path(f"/proc/{agent.pid}/fd").iterdir()))


def test_512_bad_clients_take_no_memory_and_leave_the_socket_to_others() -> None:
    with start_agent(cpu_devices=2) as agent:
        httpx.get(f"{agent.url}/openapi.json", timeout=30)
        before = count_descriptors(agent)
        most, duration_s = asyncio.run(attack_together(agent))
        assert most < MAX_ATTACKED_BYTES
        assert sorted(duration_s)[len(duration_s) // 2] < 2.0
        wait_for(lambda: httpx.get(f"{agent.url}/healthz").status_code == 200, agent, limit_s=30)
        ended_s = time.monotonic()
        wait_for(lambda: count_descriptors(agent) <= before + 4, agent, limit_s=CALM_S)
        left_s = CALM_S - (time.monotonic() - ended_s)
        wait_for(lambda: read_rss_bytes(agent.pid) < MAX_CALM_BYTES, agent, limit_s=left_s)
        assert "Traceback" not in agent.log_text()
