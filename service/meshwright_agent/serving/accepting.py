"""Sockets that listen, with a bound on what they have accepted: connections in the kernel's sense, with or without TLS.

Rule: what was accepted and is not closed counts, from the first moment: a TLS handshake that never ends is no
connection to the server's protocol, and holds a descriptor all the same. Up to the limit a connection is served; a few
more are told that there are too many (`connections`); beyond these one is closed as soon as it comes. What is closed
before the server's protocol has begun is a handshake that failed: asyncio tells nobody of it.
"""

from __future__ import annotations

import socket
import weakref
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from meshwright_agent.serving.refused import RefusalLines, RefusedConnections

REFUSING: Final = 32
"""Connections above the limit that may be open at once, to be answered 503."""
ACCEPTED_FROM: Final[ContextVar[str]] = ContextVar("accepted_from", default="addr:unknown")
"""Who is at the other end. asyncio makes a task of each connection as it is accepted: so each has its own, in its TLS
handshake too, which knows of no address."""


@dataclass
class Room:
    """How many accepted sockets there may be, of all listeners together, and how many there are.

    Attributes:
        refused: where is counted what ended without a request.
        lines: what the log is told of it.
    """

    most: int
    refused: RefusedConnections = field(default_factory=Counter)
    lines: RefusalLines = field(default_factory=RefusalLines)
    taken: int = 0
    _shaking: set[int] = field(default_factory=set)
    """Descriptors of those whose protocol has not begun."""

    def take(self, descriptor: int) -> None:
        """Gives a place to a socket that was accepted."""
        self.taken += 1
        self._shaking.add(descriptor)

    def begin(self, descriptor: int) -> None:
        """Notes that the server's protocol has begun on a socket: with TLS, that the handshake is done."""
        self._shaking.discard(descriptor)

    def leave(self, descriptor: int) -> None:
        """Takes the place of a socket back."""
        self.taken -= 1
        if descriptor in self._shaking:
            self._shaking.remove(descriptor)
            self.refused["handshake"] += 1


class Listener(socket.socket):
    """A socket that listens, and closes at once what there is no room for."""

    _room: Room

    @classmethod
    def over(cls, sock: socket.socket, room: Room) -> Listener:
        """Returns the same socket as one that counts; the one that was given is detached."""
        listener = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        listener._room = room
        return listener

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns a connection, as `socket.accept`.

        Raises:
            ConnectionAbortedError: there is no room, and it was closed: asyncio passes over it.
            OSError: see accept(2).
        """
        plain, address = super().accept()
        if self._room.taken >= self._room.most:
            plain.close()
            self._room.refused["no_room"] += 1
            raise ConnectionAbortedError("there is no room for another connection")
        ACCEPTED_FROM.set(f"addr:{address[0]}" if isinstance(address, tuple) else "addr:unix")
        return _Accepted.over(plain, self._room), address


class _Accepted(socket.socket):
    """A connection that gives its place back when it is closed, or forgotten."""

    _leave: weakref.finalize[[int], _Accepted]

    @classmethod
    def over(cls, sock: socket.socket, room: Room) -> _Accepted:
        accepted = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        room.take(accepted.fileno())
        accepted._leave = weakref.finalize(accepted, room.leave, accepted.fileno())
        accepted._leave.atexit = False
        return accepted

    def close(self) -> None:
        super().close()
        self._leave()
