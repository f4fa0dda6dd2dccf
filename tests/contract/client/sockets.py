"""A server of real sockets that does exactly what a test says, byte for byte: TCP or unix."""

from __future__ import annotations

import contextlib
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

Act = Callable[["Heard", BinaryIO], bool]
"""Answers one request; returns whether the connection stays open."""


@dataclass(frozen=True)
class Heard:
    """One request, and on which connection it came (counted from 1)."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class Server:
    """A server under way: its address, and what it heard."""

    url: str
    heard: list[Heard] = field(default_factory=list)


def answer(body: bytes, *, status: str = "200 OK", media_type: str = "application/json") -> bytes:
    """Returns a whole reply that keeps the connection open."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Returns one HTTP chunk."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@contextlib.contextmanager
def serve(act: Act, uds: Path | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Yields a server on a free loopback port, or on a unix socket."""
    server = Server(f"unix://{uds}" if uds else "")
    connections = iter(range(1, 1000))

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            number = next(connections)
            with contextlib.suppress(OSError):
                while heard := _read_request(self.rfile, number):
                    server.heard.append(heard)
                    stays = act(heard, self.wfile)
                    self.wfile.flush()
                    if not stays:
                        return

    class Tcp(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        allow_reuse_address = True

    class Unix(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        block_on_close = False

    listener = Unix(str(uds), Handler) if uds else Tcp(("127.0.0.1", 0), Handler)
    if not uds:
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.server_address[1]}"
    if tls:
        listener.socket = tls.wrap_socket(listener.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def _read_request(file: BinaryIO, connection: int) -> Heard | None:
    line = file.readline().decode().strip()
    if not line:
        return None
    headers = {}
    while text := file.readline().decode().strip():
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    return Heard(line, headers, file.read(int(headers.get("content-length", "0"))), connection)
