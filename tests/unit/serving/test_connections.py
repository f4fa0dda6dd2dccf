"""How connections end, with and without a request, and that each end without one counts once.

On real sockets, with limits that run out.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from meshwright_agent.serving.accepting import Listener, Room
from meshwright_agent.serving.connections import LINGER_S, MOST_PIPELINED, Connection, Limits

LIMIT_BYTES = 1024
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
LARGE = GET + b"X-Long: " + b"x" * (2 * LIMIT_BYTES)
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright_agent.serving.connections.MAX_HEADER_BYTES", LIMIT_BYTES)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers when it has the whole body."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def converse(
    talk: Talk, *, limit_s: float = 30.0, connections: int = 8, app: Any = answer, made: list[Connection] | None = None
) -> tuple[bytes, Room]:
    """Returns what was heard of a server, and the room that it had; `made` gets its connections."""
    room = Room(connections + 1)
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=75)
    config.load()
    make_one = functools.partial(
        Connection,
        config=config,
        server_state=ServerState(),
        app_state={},
        limits=Limits(connections, limit_s, limit_s),
        room=room,
    )

    def make() -> Connection:
        connection = make_one()
        if made is not None:
            made.append(connection)
        return connection

    async def run() -> bytes:
        listener = Listener.over(socket.create_server(("127.0.0.1", 0)), room)
        server = await asyncio.get_running_loop().create_server(make, sock=listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        heard = await talk(reader, writer)
        writer.close()
        server.close()
        return heard

    return asyncio.run(asyncio.wait_for(run(), 60)), room


def sending(data: bytes) -> Talk:
    """Sends, and returns what comes until the other side closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 30)
        except TimeoutError:
            pytest.fail(f"the server still has the connection open 30 s after {data[:60]!r}")

    return talk


@pytest.mark.parametrize(
    ("sent", "limit_s", "status", "reason"),
    [
        (b"", 0.05, b"", "silent"),
        (b"G", 0.05, b"408", "slow_headers"),
        (GET, 0.05, b"408", "slow_headers"),
        (LARGE, 30.0, b"431", "headers_too_large"),
        (LARGE + b"\r\n\r\n", 30.0, b"431", "headers_too_large"),
        (GET + b"a: \r\n" * 120 + b"\r\n", 30.0, b"431", "headers_too_large"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 30.0, b"400", "not_http"),
        (GET + b"Broken\r\n\r\n", 30.0, b"400", "not_http"),
        (GET + b"\r\n" + b"nonsense\r\n\r\n", 30.0, b"", "not_http"),
    ],
)
def test_an_end_without_a_request_counts_once_by_its_reason(
    sent: bytes, limit_s: float, status: bytes, reason: str
) -> None:
    heard, room = converse(sending(sent), limit_s=limit_s)
    assert heard.partition(b" ")[2][:3] == status
    assert room.refused == {reason: 1}


def test_a_request_that_is_answered_counts_nothing() -> None:
    heard, room = converse(sending(GET + b"Connection: close\r\n\r\n"))
    assert heard.startswith(b"HTTP/1.1 204 ")
    assert room.refused == {}


@pytest.mark.parametrize(
    ("body", "limit_s"), [(b"Content-Length: 9\r\n\r\n{", 0.05), (b"Transfer-Encoding: chunked\r\n\r\nno size", 30.0)]
)
def test_a_body_that_is_slow_or_broken_is_its_routes_to_count(body: bytes, limit_s: float) -> None:
    _, room = converse(sending(b"POST / HTTP/1.1\r\nHost: a\r\n" + body), limit_s=limit_s)
    assert room.refused == {}


def test_one_connection_too_many_counts_and_is_told_so() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET + b"\r\n")
        assert await reader.readuntil(b"\r\n\r\n")
        other, second = await asyncio.open_connection(*writer.get_extra_info("peername"))
        told = await other.read()
        second.close()
        return told

    heard, room = converse(talk, connections=1)
    assert heard.startswith(b"HTTP/1.1 503 ")
    assert room.refused == {"too_many_connections": 1}


# ---- trailers, and bodies whose request is answered -----------------------------------------------------------------

CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b"x-a: " + b"a" * 200 + b"\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with method and body, when it has the whole."""
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        more = message["more_body"]
    told = f"{scope['method']} {scope['path']} ".encode() + body
    headers = [(b"content-length", b"%d" % len(told)), (b"x-headers", b"%d" % len(scope["headers"]))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": told})


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers without a look at the body."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def pouring(head: bytes, piece: bytes) -> Talk:
    """Sends `head`, then pieces until they are more than the limit of headers; returns what comes until the end."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(head)
        for _ in range(LIMIT_BYTES // len(piece) + 1):
            await asyncio.sleep(0.01)
            writer.write(piece)
        return await reader.read()

    return talk


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (CHUNKED + b"2\r\n{}\r\n0\r\n", PIECE),
        (CHUNKED + b"2\r\n{}\r\n0\r\nx-long: ", b"a" * 200),
        (CHUNKED + b"2;", b"a" * 200),
    ],
)
def test_trailers_and_chunk_extensions_without_end_are_answered_431_and_cut_off(head: bytes, piece: bytes) -> None:
    heard, _ = converse(pouring(head, piece), app=echo)
    assert heard.startswith(b"HTTP/1.1 431 ")
    assert heard.count(b"HTTP/1.1 ") == 1


def test_trailers_behind_an_answer_end_the_connection_and_are_not_answered_again() -> None:
    began_s = time.monotonic()
    heard, _ = converse(pouring(CHUNKED + b"2\r\n{}\r\n0\r\n", PIECE), app=refuse)
    assert heard.count(b"HTTP/1.1 ") == heard.count(b"HTTP/1.1 401 ") == 1
    assert time.monotonic() - began_s < LINGER_S


def test_trailers_are_no_headers() -> None:
    ended = CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close") + b"2\r\n{}\r\n0\r\nHost: b\r\nX-A: b\r\n\r\n"
    heard, _ = converse(sending(ended), app=echo)
    assert heard.endswith(b"POST / {}")
    assert b"x-headers: 3\r\n" in heard


def test_a_long_body_in_many_chunks_is_not_cut_off_by_the_limit_of_headers() -> None:
    close = CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(close)
        for _ in range(64):
            writer.write(b"1\r\nx\r\n" * (LIMIT_BYTES // 16))
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")
        return await reader.read()

    heard, _ = converse(talk, app=echo)
    assert heard.endswith(b"POST / " + b"x" * 4 * LIMIT_BYTES)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_body_whose_request_is_answered_is_waited_for_shortly_and_not_spoken_of(method: bytes) -> None:
    began_s = time.monotonic()
    heard, room = converse(sending(method + b" / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"), app=refuse)
    assert heard.count(b"HTTP/1.1 ") == heard.count(b"HTTP/1.1 401 ") == 1
    assert LINGER_S <= time.monotonic() - began_s < 5 * LINGER_S
    assert room.refused == {}


def test_a_body_that_ends_soon_after_its_answer_leaves_the_connection_as_it_was() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")
        first = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"67890")
        await asyncio.sleep(0.05)
        writer.write(GET + b"Connection: close\r\n\r\n")
        return first + await reader.read()

    heard, room = converse(talk, app=refuse)
    assert heard.count(b"HTTP/1.1 401 ") == 2
    assert room.refused == {}


@pytest.mark.parametrize("rest", [b"67890", b"67890\r\n"])
def test_a_connection_that_is_idle_after_an_answer_is_closed_without_another(rest: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")
        first = await reader.readuntil(b"\r\n\r\n")
        writer.write(rest)
        return first + await reader.read()

    heard, room = converse(talk, limit_s=0.2, app=refuse)
    assert heard.count(b"HTTP/1.1 ") == 1
    assert room.refused == {}


def test_a_broken_chunk_is_answered_400() -> None:
    heard, _ = converse(sending(CHUNKED + b"no size\r\n"), app=echo)
    assert heard.startswith(b"HTTP/1.1 400 ")


# ---- upgrades -------------------------------------------------------------------------------------------------------

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = b"Connection: upgrade\r\nUpgrade: websocket\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
UPGRADING = {
    "GET": (b"GET /get HTTP/1.1\r\nHost: a\r\n%b\r\n", b"GET /get "),
    "GET with a body": (b"GET /get HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n%b\r\n{}", b"GET /get {}"),
    "POST": (b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n%b\r\n[12]", b"POST /a [12]"),
    "POST of nothing": (b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n%b\r\n", b"POST /a "),
    "chunked": (
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n%b\r\n2\r\n[1\r\n2\r\n2]\r\n0\r\n\r\n",
        b"POST /a [12]",
    ),
}


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET])
@pytest.mark.parametrize("in_single_bytes", [False, True])
@pytest.mark.parametrize("name", UPGRADING)
def test_an_upgrade_is_ignored_the_body_arrives_and_so_does_the_request_behind_it(
    name: str, in_single_bytes: bool, upgrade: bytes
) -> None:
    request, told = UPGRADING[name]
    data = request % upgrade * 2 + LAST

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (data[i : i + 1] for i in range(len(data))) if in_single_bytes else (data,):
            writer.write(piece)
            await asyncio.sleep(0)
        return await reader.read()

    heard, room = converse(talk, app=echo)
    assert re.findall(rb"\r\n\r\n([^\r]*?)(?=HTTP/1.1|$)", heard) == [told, told, b"GET /last "]
    assert room.refused == {}


@pytest.mark.parametrize("target", [b"a:1", b"/"])
def test_what_follows_a_connect_is_no_request(target: bytes) -> None:
    heard, _ = converse(sending(b"CONNECT " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n" + LAST), app=refuse)
    assert heard.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in heard


# ---- targets --------------------------------------------------------------------------------------------------------


async def tell_host(scope: Any, receive: Any, send: Any) -> None:
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    body = b"%b %b %b" % (scope["raw_path"], scope["query_string"], b"+".join(hosts))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (b"/a?b", b"/a b here"),
        (b"http://evil.example/a?b", b"/a b evil.example"),
        (b"http://evil.example:80/?b", b"/ b evil.example:80"),
        (b"HTTP://u:p@[::1]:8790/a", b"/a  [::1]:8790"),
    ],
)
def test_a_target_that_names_a_host_is_judged_by_that_and_not_by_the_header(target: bytes, told: bytes) -> None:
    request = b"GET %b HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n" % target
    heard, _ = converse(sending(request), app=tell_host)
    assert heard.partition(b"\r\n\r\n")[2] == told


# ---- the log --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"BLAH\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n" + WEBSOCKET + b"\r\n"])
def test_strangers_who_speak_no_http_or_ask_for_another_do_not_fill_the_log(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        for _ in range(40):
            one, other = await asyncio.open_connection(*writer.get_extra_info("peername"))
            other.write(sent)
            assert await one.readuntil(b"\r\n\r\n")
            other.close()
        return b""

    with caplog.at_level(logging.INFO):
        _, room = converse(talk)
    lines = [record.getMessage() for record in caplog.records if record.name != "asyncio"]
    if sent.startswith(b"BLAH"):
        assert room.refused["not_http"] == 40
        assert lines == ["no request of addr:127.0.0.1: not_http"] * 10
    else:
        assert lines == []


# ---- answers that nobody reads --------------------------------------------------------------------------------------

LONG = b"x" * (32 << 20)


async def answer_long(scope: Any, receive: Any, send: Any) -> None:
    """An application whose answer is more than any socket takes."""
    headers = [(b"content-length", b"%d" % len(LONG))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": LONG})


async def answer_without_end(scope: Any, receive: Any, send: Any) -> None:
    """An application that streams for as long as it is heard."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    listening = asyncio.create_task(receive_end(receive))
    while not listening.done():
        await send({"type": "http.response.body", "body": b"x" * 4096, "more_body": True})
        await asyncio.sleep(0)


async def receive_end(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("app", [answer_long, answer_without_end])
def test_an_answer_of_which_nothing_is_read_is_given_up(app: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        with socket.create_connection(writer.get_extra_info("peername")) as deaf:
            deaf.sendall(GET + b"\r\n")
            await asyncio.sleep(0.2)
            assert not made[1].transport.is_closing()
            await asyncio.sleep(1.0)
            assert made[1].transport.is_closing()
            assert made[1].transport.get_write_buffer_size() == 0
        return b""

    made: list[Connection] = []
    assert converse(talk, limit_s=0.4, app=app, made=made)[0] == b""


def test_an_answer_that_is_read_slowly_arrives_whole() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET + b"Connection: close\r\n\r\n")
        size = 0
        while piece := await reader.read(4 << 20):
            size += len(piece)
            await asyncio.sleep(0.01)
        return b"%d" % size

    heard, _ = converse(talk, limit_s=0.2, app=answer_long)
    assert int(heard) > len(LONG)


# ---- requests behind a request --------------------------------------------------------------------------------------


def test_a_connection_that_sends_more_requests_than_may_wait_is_ended_and_counted() -> None:
    made: list[Connection] = []

    async def never(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    heard, room = converse(sending((GET + b"\r\n") * (MOST_PIPELINED + 2)), app=never, made=made)
    assert (heard, room.refused) == (b"", {"pipelined": 1})
    assert len(made[0].pipeline) == MOST_PIPELINED


def test_requests_that_wait_do_not_become_more_with_each_answer_and_each_is_answered() -> None:
    made: list[Connection] = []
    most = 0

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        nonlocal most
        most = max(most, len(made[0].pipeline))
        await asyncio.sleep(0.002)
        await answer(scope, receive, send)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        heard = b""
        for _ in range(40):  # faster than they are answered: 4 a read, where 1 is answered
            writer.write((GET + b"\r\n") * 4)
            await asyncio.sleep(0.002)
        while heard.count(b"204 No Content") < 160:
            heard += await asyncio.wait_for(reader.read(1 << 16), 30)
        return heard

    heard, room = converse(talk, app=slow, made=made)
    assert (heard.count(b"204 No Content"), room.refused) == (160, {})
    assert most < MOST_PIPELINED
