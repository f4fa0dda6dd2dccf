"""A load of one kept-alive connection by raw sockets: little enough client that the server is what is measured.

All traffic goes to loopback; every round has a fixed number of requests.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Rate:
    """What came out: requests/s in the median round, latencies over all rounds in seconds."""

    requests_per_s: float
    p50_s: float
    p99_s: float
    rounds: tuple[float, ...]


def fetch(target: Target) -> bytes:
    """Returns the body of one answer."""
    with socket.create_connection(("127.0.0.1", target.port)) as sock:
        sock.sendall(target.request)
        head, body = _read_answer(sock)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{target.name}: {head[:200]!r}")
        return body


def measure_rates(targets: Sequence[Target], *, rounds: int = 21, requests: int = 500) -> list[Rate]:
    """Returns a rate for each target; the rounds take turns, so that a noisy moment hits all of them."""
    latencies: list[list[float]] = [[] for _ in targets]
    rates: list[list[float]] = [[] for _ in targets]
    for target in targets:
        _run_round(target, 200)
    for _ in range(rounds):
        for index, target in enumerate(targets):
            began_s = time.perf_counter()
            latencies[index] += _run_round(target, requests)
            rates[index].append(requests / (time.perf_counter() - began_s))
    return [
        Rate(statistics.median(r), statistics.median(lat), statistics.quantiles(lat, n=100)[98], tuple(r))
        for r, lat in zip(rates, latencies, strict=True)
    ]


def _run_round(target: Target, requests: int) -> list[float]:
    latencies = []
    with socket.create_connection(("127.0.0.1", target.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = target.request
        for _ in range(requests):
            began_s = time.perf_counter()
            sock.sendall(request)
            _read_answer(sock)
            latencies.append(time.perf_counter() - began_s)
    return latencies


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
