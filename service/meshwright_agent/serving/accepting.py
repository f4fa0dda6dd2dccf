"""Sockets that listen, with a bound on what they have accepted: connections in the kernel's sense, with or without TLS.

Rule: what was accepted and is not closed counts, from the first moment: a TLS handshake that never ends is no
connection to the server's protocol, and holds a descriptor all the same. Up to the limit a connection is served; a few
more are told that there are too many (`connections`); beyond these one is closed as soon as it comes.
"""

from __future__ import annotations

import socket
import weakref
from dataclasses import dataclass
from typing import Any, Final

REFUSING: Final = 32
"""Connections above the limit that may be open at once, to be answered 503."""


@dataclass
class Room:
    """How many accepted sockets there may be, of all listeners together, and how many there are."""

    most: int
    taken: int = 0

    def leave(self) -> None:
        """Gives one place back."""
        self.taken -= 1


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
            raise ConnectionAbortedError("there is no room for another connection")
        return _Accepted.over(plain, self._room), address


class _Accepted(socket.socket):
    """A connection that gives its place back when it is closed, or forgotten."""

    _leave: weakref.finalize[[], _Accepted]

    @classmethod
    def over(cls, sock: socket.socket, room: Room) -> _Accepted:
        accepted = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        room.taken += 1
        accepted._leave = weakref.finalize(accepted, room.leave)
        accepted._leave.atexit = False
        return accepted

    def close(self) -> None:
        super().close()
        self._leave()
