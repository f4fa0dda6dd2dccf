"""sd_notify: tells systemd that the agent listens, how it is, that it drains, and that its event loop still turns.

Rule: pings come from the event loop and from nowhere else, so that a loop that stands still is killed and started
anew; a message that cannot be delivered costs nothing but itself. Does nothing where no NOTIFY_SOCKET is set.

Source: sd_notify(3), sd_watchdog_enabled(3), systemd.service(5).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

log = logging.getLogger(__name__)

STATUS_INTERVAL_S: Final = 5.0
"""How old the status that `systemctl status` shows may be."""

Readiness = Callable[[], tuple[bool, str]]


class Notifier:
    """The connection to the service manager: a datagram socket, or none."""

    def __init__(self, environ: Mapping[str, str], readiness: Readiness) -> None:
        """Reads the address and the watchdog's time.

        Args:
            environ: the environment, with what systemd put there.
            readiness: whether the agent is ready, and its state in one line; asked at each ping.
        """
        self._address = read_address(environ)
        self._readiness = readiness
        self.watchdog_s = read_watchdog_s(environ)
        self._said = ""
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Says that the agent listens, and from now on pings; called on the event loop."""
        if self._address is None or self._task is not None:
            return
        self._send("READY=1", *self._tell_status())
        self._task = asyncio.create_task(self._ping())

    def begin_stopping(self) -> None:
        """Says that the agent drains; pings go on until the process ends."""
        self._send("STOPPING=1", "STATUS=draining")

    @property
    def interval_s(self) -> float:
        """Seconds from ping to ping: half of the watchdog's time, as sd_watchdog_enabled(3) advises, or less."""
        return STATUS_INTERVAL_S if self.watchdog_s is None else min(STATUS_INTERVAL_S, self.watchdog_s / 2)

    async def _ping(self) -> None:
        while True:
            watchdog = () if self.watchdog_s is None else ("WATCHDOG=1",)
            self._send(*watchdog, *self._tell_status())
            await asyncio.sleep(self.interval_s)

    def _tell_status(self) -> tuple[str, ...]:
        """Returns the state of readiness as a field, where it differs from what was said last."""
        _, line = self._readiness()
        status = " ".join(line.split())
        if status == self._said:
            return ()
        self._said = status
        return (f"STATUS={status}",)

    def _send(self, *fields: str) -> None:
        if self._address is None or not fields:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(fields).encode(), self._address)
        except OSError as error:
            log.warning("systemd was not told %s: %s", fields[0], error)


def read_address(environ: Mapping[str, str]) -> str | None:
    """Returns the address of systemd's socket as the kernel takes it; None: nobody listens.

    A leading @ stands for the abstract namespace. Addresses of other kinds (vsock) are those of virtual machines.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):
        return "\0" + address[1:]
    return address if address.startswith("/") else None


def read_watchdog_s(environ: Mapping[str, str], pid: int | None = None) -> float | None:
    """Returns within how many seconds systemd wants to hear from us; None: it does not, or means another process."""
    meant = environ.get("WATCHDOG_PID", "")
    if meant and meant != str(os.getpid() if pid is None else pid):
        return None
    try:
        limit_us = int(environ.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return limit_us / 1e6 if limit_us > 0 else None
