"""`meshwright lease run`: runs a command under a lease, which is renewed while it runs and ended after it.

Rule: the lease ends with the command or this process, in every case except SIGKILL. The exit code is the command's, as
in a shell; it is 75 if the lease was lost before the command ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from meshwright.cli.arguments import parse_duration
from meshwright.cli.leases import LEASE_VARIABLE, CountOption, PreemptibleOption, PurposeOption, parse_leased
from meshwright.cli.output import print_warning
from meshwright.cli.session import Session
from meshwright.errors import MeshwrightError

if TYPE_CHECKING:
    from meshwright import Held

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""Exit codes as in a shell. Source: POSIX.1-2024, Shell Command Language, §2.8.2."""

LEASE_LOST: Final = 75
"""EX_TEMPFAIL of sysexits.h: run it again. Like 124 of `timeout`, it replaces the command's own code."""

FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def run_leased(
    session: Session,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGUMENTS]", help="What to run.")],
    purpose: PurposeOption,
    devices: Annotated[
        str | None, typer.Option(metavar="DEVICES", help="all, or local indices or uuids: 0,1. Without: all.")
    ] = None,
    count: CountOption = None,
    ttl: Annotated[
        str, typer.Option(metavar="10min", help="The devices are free so long after a crash of this command.")
    ] = "10min",
    preemptible: PreemptibleOption = False,
    if_lost: Annotated[
        Literal["stop", "warn"] | None,
        typer.Option(
            help="When the lease is lost: end the command (SIGTERM), or warn only. Without: stop if preemptible."
        ),
    ] = None,
) -> int:
    """Run a command while devices are reserved for it.

    The command gets the lease's id in MESHWRIGHT_LEASE. Signals are passed on to it.

    Exit codes: the command's; 128 + n, where signal n ended it · 75 the lease was lost before the command ended: run it
    again · 1 somebody else has one of the devices · 2 usage, or no answer · 126, 127 the command cannot be run, is not
    there.
    """
    ttl_s = parse_duration(ttl, "--ttl")
    is_stopped = preemptible if if_lost is None else if_lost == "stop"
    named = parse_leased(devices, count)
    job = _Job(session, is_stopped=is_stopped)
    with job.passing_signals_on():
        try:
            with (
                session.open() as client,
                client.hold(named, purpose=purpose, ttl_s=ttl_s, preemptible=preemptible, on_lost=job.lose) as held,
            ):
                code = job.run(command, held)
            return job.report_loss(code) if job.lost else code
        except _SignalledError as signalled:
            return SIGNALLED + signalled.number


class _SignalledError(BaseException):
    """A signal came while no command was there to pass it on to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Job:
    """A command that runs under a lease.

    Attributes:
        lost: why the lease was lost before the command ended; empty while it holds.
    """

    def __init__(self, session: Session, *, is_stopped: bool) -> None:
        self.lost = ""
        self._session = session
        self._is_stopped = is_stopped
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str], held: Held) -> int:
        """Runs the command to its end; returns its exit code."""
        try:
            self._process = subprocess.Popen(command, env={**os.environ, LEASE_VARIABLE: held.lease.id})
        except FileNotFoundError:
            return self._refuse(command, "is not there", NOT_FOUND)
        except OSError as error:
            return self._refuse(command, f"cannot be run: {error.strerror}", NOT_EXECUTABLE)
        if held.lost is not None:
            self._stop()
        code = self._process.wait()
        return SIGNALLED - code if code < 0 else code

    def lose(self, why: MeshwrightError) -> None:
        """Reports that the lease is lost, and ends the command if it shall not run without one."""
        self.lost = str(why).splitlines()[0]
        if self._process is None or self._process.returncode is None:
            does = "the command is ended" if self._is_stopped else "the command goes on without it"
            print_warning(self._session, f"the lease is lost, {does}: {self.lost}")
        self._stop()

    def report_loss(self, code: int) -> int:
        """Warns that the lease was lost before the command ended with this exit code; returns `LEASE_LOST`."""
        print_warning(
            self._session,
            f"the lease was lost before the command ended (exit code {code}), so another client may have used its "
            f"devices: {self.lost}",
            "run the command again",
        )
        return LEASE_LOST

    def _stop(self) -> None:
        if self._is_stopped and self._process is not None:
            self._process.terminate()  # does nothing to a command that has ended

    def _refuse(self, command: Sequence[str], why: str, code: int) -> int:
        print_warning(self._session, f"{command[0]} {why}", "the lease is ended; correct the command's name")
        return code

    @contextlib.contextmanager
    def passing_signals_on(self) -> Iterator[None]:
        """Passes signals on to the command; before it runs, they end the block."""
        before = {number: signal.signal(number, self._pass_on) for number in FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            raise _SignalledError(number)
        if self._process.returncode is None and not (number == signal.SIGINT and _has_terminal()):
            self._process.send_signal(number)


def _has_terminal() -> bool:
    """Returns whether a terminal's Ctrl-C reaches the command by itself: it goes to all of the foreground group."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
