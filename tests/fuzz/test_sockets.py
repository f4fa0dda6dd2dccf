"""Bytes on the socket that are HTTP, nearly HTTP, or nothing: no server error, no crash, and nothing left behind."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fuzz import scale
from tests.process.living import do_bench, list_open_files, read_rss_bytes

pytestmark = pytest.mark.exhaustive

BATCH = 16
"""Connections at once: each input has one of its own."""
EXAMPLES = 40
SILENCE_S = 0.05
SERVER_ERROR = re.compile(rb"^HTTP/1\.1 5\d\d", re.MULTILINE)
GROWTH_BYTES = 40_000_000

token = st.text("abcXYZ-_", min_size=1, max_size=12).map(str.encode)
path = st.sampled_from(
    [
        b"/healthz", b"/readyz", b"/devices", b"/mesh/plan?mesh=dp:2", b"/mesh/plan", b"/batch-size", b"/runs",
        b"/runs/x/events", b"/placement/bench", b"/metrics", b"/environment?memory_strategy=custom", b"*",
        b"http://evil/devices", b"//", b"/%00%ff",
    ]
)  # fmt: skip
method = st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"CONNECT", b"PRI"]) | token
version = st.sampled_from([b"HTTP/1.1"] * 4 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""])
header = st.sampled_from(
    [
        b"Host: localhost", b"Host: 127.0.0.1", b"Content-Type: application/json", b"Content-Length: 0",
        b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Content-Length: -1",
        b"Transfer-Encoding: chunked", b"Connection: close", b"Expect: 100-continue", b"Upgrade: h2c",
        b"Connection: upgrade", b"Connection: Upgrade, HTTP2-Settings", b"If-None-Match: *", b"Last-Event-ID: 9",
        b"A:\x00",
    ]
) | st.tuples(token, st.binary(max_size=30)).map(b": ".join)  # fmt: skip
body = st.sampled_from(
    [
        b"", b'{"mesh":"dp:2"}', b"{}", b"[", b"null", b"5\r\nhello\r\n0\r\n\r\n",
        b"5;name=value\r\nhello\r\n0\r\nHost: evil\r\nX-Trailer: 1\r\n\r\n", b"0\r\n" + b"X-Trailer: a\r\n" * 200,
        b"FFFFFFFFFFFFFFFF\r\n",
    ]
) | st.binary(max_size=80)  # fmt: skip


FRAMES: list[list[bytes]] = [
    [b"Host: localhost", b"Transfer-Encoding: chunked"],
    [b"Host: localhost", b"Connection: upgrade", b"Upgrade: h2c"],
    [b"Host: localhost", b"Connection: upgrade", b"Upgrade: websocket", b"Transfer-Encoding: chunked"],
    [b"Host: localhost", b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 5"],
    [b"Host: localhost", b"Host: 127.0.0.1"],
]
"""Headers that go together: lone ones seldom meet."""


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request, of which now and then a part is cut, doubled or overwritten; or bytes of no meaning."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(min_size=1, max_size=200))
    head = b" ".join((draw(method), draw(path), draw(version)))
    framed = draw(st.sampled_from(FRAMES)) if draw(st.integers(0, 3)) == 0 else []
    lines = [head, *framed, *draw(st.lists(header, max_size=5)), b"", draw(body)]
    text = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])).join(lines)
    start, length = draw(st.integers(0, len(text))), draw(st.integers(0, 12))
    match draw(st.integers(0, 5)):
        case 0:
            return text[:start] + text[start + length :]
        case 1:
            return text[:start] + draw(st.binary(max_size=12)) + text[start + length :]
        case 2:
            return text + text
    return text


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    with start_agent(cpu_devices=2) as agent:
        do_bench(agent)
        yield agent


def send_all(agent: RunningAgent, inputs: list[bytes]) -> list[bytes]:
    """Returns what came back on a connection of its own for each input, until all have been silent for a moment."""
    address = httpx.URL(agent.url)
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        answers = [bytearray() for _ in inputs]
        for number, data in enumerate(inputs):
            connection = stack.enter_context(socket.create_connection((address.host, address.port or 0), timeout=30))
            with contextlib.suppress(OSError):  # answered and closed before all was sent
                connection.sendall(data)
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, number)
        while selector.get_map() and (ready := selector.select(SILENCE_S)):
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                try:
                    piece = key.fileobj.recv(1 << 16)
                except OSError:
                    piece = b""
                if piece and len(answers[key.data]) < 1 << 20:
                    answers[key.data] += piece
                else:
                    selector.unregister(key.fileobj)
        return [bytes(answer) for answer in answers]


@pytest.mark.timeout(7200)
@settings(max_examples=scale(EXAMPLES), database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(inputs=st.lists(requests(), min_size=BATCH, max_size=BATCH))
def test_no_bytes_make_a_server_error(host: RunningAgent, inputs: list[bytes]) -> None:
    for data, answer in zip(inputs, send_all(host, inputs), strict=True):
        assert not SERVER_ERROR.search(answer), (data, answer)
    assert host.process.poll() is None


def test_the_agent_has_survived_it_and_holds_nothing_of_it(host: RunningAgent) -> None:
    wait_for(lambda: sum("socket:" in file for file in list_open_files(host.pid)) < 12, host, limit_s=60)
    before = read_rss_bytes(host.pid)
    began_s = time.monotonic()
    noise = [bytes([number]) * 2000 for number in range(256)]
    while time.monotonic() - began_s < 3:
        send_all(host, noise[:BATCH])
    assert read_rss_bytes(host.pid) - before < GROWTH_BYTES
    assert httpx.get(f"{host.url}/readyz").status_code == 200
    assert httpx.get(f"{host.url}/mesh/plan?mesh=dp:2").status_code == 200
    assert do_bench(host)
    assert "Traceback" not in host.log_text()
