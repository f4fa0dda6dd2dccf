"""One request by a raw socket: little enough client that the server is what is measured."""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One request, repeated."""

    name: str
    port: int
    path: str
    body: bytes = b""

    @property
    def request(self) -> bytes:
        """The request as bytes."""
        method = "POST" if self.body else "GET"
        head = f"{method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        if self.body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n"
        return head.encode() + b"\r\n" + self.body


def fetch(target: Target) -> bytes:
    """Returns the body of one answer."""
    with socket.create_connection(("127.0.0.1", target.port)) as sock:
        sock.sendall(target.request)
        head, body = _read_answer(sock)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{target.name}: {head[:200]!r}")
        return body


def _read_answer(sock: socket.socket) -> tuple[bytes, bytes]:
    data = sock.recv(1 << 18)
    while b"\r\n\r\n" not in data:
        data += _receive(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += _receive(sock)
    return head, body


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 18)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data
