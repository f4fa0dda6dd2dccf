"""One agent a host's devices: a name in the kernel that only one process can have, and that ends with it.

Rule: the second agent is refused and told who the first is: its process, and where it answers. The name is that of an
abstract unix socket (unix(7)), made of the identity of the host's sysfs: nothing is written, nothing stays after a
SIGKILL, and another sysfs is another host. Both reach as far as the network namespace (network_namespaces(7)):
a container with a network of its own is not seen. Knows neither devices nor what the agent does with them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from meshwright.errors import MeshwrightError

_ANSWER_S: Final = 1.0
"""How long the first agent may take to say where it answers; one that hangs is named by its process alone."""
_WORDS_MAX: Final = 1024
_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid, gid of SO_PEERCRED: unix(7)."""


class HostTakenError(MeshwrightError):
    """Another agent has this host's devices."""


class HostClaim:
    """The name, held until `release` or the end of the process. Made by `claim_host`."""

    def __init__(self, name: socket.socket) -> None:
        self._name = name
        self._words = b""
        self._thread = threading.Thread(target=self._answer, name="meshwright-claim", daemon=True)
        self._thread.start()

    def tell(self, addresses: Sequence[str]) -> None:
        """Says from now on to who asks where this agent answers."""
        self._words = ", ".join(addresses).encode()[:_WORDS_MAX]

    def release(self) -> None:
        """Lets another agent have the devices. May be repeated."""
        with contextlib.suppress(OSError):
            self._name.shutdown(socket.SHUT_RDWR)  # closing alone would not wake the thread
        self._thread.join(2 * _ANSWER_S)  # while it accepts, the kernel keeps the name
        self._name.close()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # released
            while True:
                asking, _ = self._name.accept()
                with asking, contextlib.suppress(OSError):
                    asking.settimeout(_ANSWER_S)
                    asking.sendall(self._words)


def claim_host(sysfs_root: Path) -> HostClaim:
    """Returns the claim on the devices of the host whose sysfs this is.

    Raises:
        HostTakenError: another agent has it, or sysfs is not there.
    """
    name = build_name(sysfs_root)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(name)
        sock.listen(8)
    except OSError as error:
        sock.close()
        raise HostTakenError(_describe_taken(name)) from error
    return HostClaim(sock)


def find_owner(sysfs_root: Path) -> str:
    """Returns which agent has the devices of this host, in words; "" if none is there, or none can be asked."""
    try:
        pid, words = _ask_holder(build_name(sysfs_root))
    except HostTakenError:
        return ""
    if not pid:
        return ""
    return f"they belong to the agent of this host (process {pid}{f', which answers on {words}' if words else ''})"


def build_name(sysfs_root: Path) -> str:
    """Returns the abstract address that stands for the host with this sysfs.

    Raises:
        HostTakenError: there is none.
    """
    try:
        status = sysfs_root.stat()
    except OSError as error:
        raise HostTakenError(f"whose devices are here cannot be told: {error}; mount sysfs there") from error
    return f"\0meshwright-agent/{status.st_dev:x}.{status.st_ino:x}"


def _describe_taken(name: str) -> str:
    pid, words = _ask_holder(name)
    who = f"process {pid}" if pid else "unknown process"
    where = f", which answers on {words}" if words else ""
    return (
        f"this host's devices belong to another agent ({who}{where}); one agent owns a host: stop that one, or start "
        "this one with --cpu-devices or --simulate, which own no device"
    )


def _ask_holder(name: str) -> tuple[int, str]:
    """Returns the process that has the name, 0 if it is not known, and what it says of itself."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_ANSWER_S)
        try:
            asking.connect(name)
        except OSError:  # it has gone since, or too many ask
            return 0, ""
        pid, _, _ = _CREDENTIALS.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        try:
            words = asking.recv(_WORDS_MAX).decode(errors="replace")
        except OSError:
            words = ""
    return pid, "".join(letter for letter in words if letter.isprintable())
