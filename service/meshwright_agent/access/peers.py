"""Who is at the other end of a connection, as the kernel and TLS know it: an address, a user id, a certificate."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

LATE_KEY: Final = "meshwright.late"
"""True in an ASGI scope whose body the connection no longer waits for."""

LONGEST_NAME: Final = 256

_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)."""


@dataclass(frozen=True)
class Peer:
    """One end of a connection.

    Attributes:
        name: `addr:10.0.0.7`, `uid:1000`, or `cert:…` with the name in a client certificate that was verified.
        is_unix: it came by the unix socket.
        has_certificate: it showed a client certificate that the agent's CA has signed.
    """

    name: str
    is_unix: bool = False
    has_certificate: bool = False


UNKNOWN: Final = Peer("addr:unknown")


def read_peer(transport: asyncio.BaseTransport) -> Peer:
    """Returns who is at the other end; asks the kernel, and TLS."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        return Peer(f"uid:{_read_uid(sock)}", is_unix=True)
    if certificate := transport.get_extra_info("peercert"):
        return Peer(f"cert:{name_certificate(certificate)}", has_certificate=True)
    address = transport.get_extra_info("peername")
    return Peer(f"addr:{address[0]}") if isinstance(address, tuple) else UNKNOWN


def _read_uid(sock: Any) -> int | str:
    try:
        _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except OSError:
        return "unknown"
    return int(uid)


def name_certificate(certificate: dict[str, Any]) -> str:
    """Returns the name in a certificate (of `SSLObject.getpeercert`): its common name, else its first other name.

    As one word of at most 256 letters: it stands in lines of the log, whose form no certificate may change.
    """
    name = "".join(letter if letter.isprintable() and letter != " " else "?" for letter in _find_name(certificate))
    return name[:LONGEST_NAME]


def _find_name(certificate: dict[str, Any]) -> str:
    for attribute in certificate.get("subject", ()):
        for key, value in attribute:
            if key == "commonName":
                return str(value)
    for _, value in certificate.get("subjectAltName", ()):
        return str(value)
    return f"serial:{certificate.get('serialNumber', 'unknown')}"
