"""`meshwright lease create`, `list`, `renew`, `end` and `run`: reserve devices, and run commands on them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import typer

from meshwright.cli.arguments import choose_devices, parse_duration
from meshwright.cli.output import Column, build_table, clean, format_time, print_error, print_warning
from meshwright.cli.request_options import CountOption
from meshwright.cli.session import FAILED, LEASE_LOST, OK, SIGNALLED, Session
from meshwright.errors import ForbiddenError, MeshwrightError, NotFoundError, SettingsError
from meshwright.wire.leases import MAX_TTL_S, Lease
from meshwright.wire.mesh import PlanRequest, SearchRequest

if TYPE_CHECKING:
    from meshwright import Client, Held


R = TypeVar("R", PlanRequest, SearchRequest)
LEASE_VARIABLE: Final = "MESHWRIGHT_LEASE"
"""Holds the id of the lease that a command runs under."""


def add_own_lease(request: R) -> R:
    """Returns the request with the lease that this command runs under, unless it names a lease or other hardware."""
    own = os.environ.get(LEASE_VARIABLE)
    is_here = request.lease is None and not (request.targets or request.topology)
    return request.model_copy(update={"lease": own}) if own and is_here else request


PurposeOption = Annotated[
    str, typer.Option("--purpose", metavar="TEXT", help='What for, as others shall read it: "slurm job 4711".')
]
PreemptibleOption = Annotated[
    bool, typer.Option("--preemptible", help="A lease that is not preemptible may take the devices over.")
]


def parse_leased(text: str | None, count: int | None) -> Literal["all"] | tuple[int | str, ...] | dict[str, int]:
    """Returns the devices that "all", "0,1" or "GPU-…" name, or how many are wanted; all where neither is given.

    Raises:
        typer.BadParameter: an entry is empty, or devices are named and also counted.
    """
    is_all = count is None and text is not None and text.strip() == "all"
    return (None if is_all else choose_devices(text, count, "DEVICES")) or "all"


def create_lease(
    session: Session,
    purpose: PurposeOption,
    devices: Annotated[
        str | None, typer.Argument(metavar="DEVICES", help="all, or local indices or uuids: 0,1. Without: all.")
    ] = None,
    count: CountOption = None,
    ttl: Annotated[
        str, typer.Option(metavar="1h", help="The lease ends by itself after this time: 90s, 30min, 1h, 7d.")
    ] = "1h",
    preemptible: PreemptibleOption = False,
    plan: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of a plan that `meshwright plan --save FILE` kept, or of a fingerprint."),
    ] = None,
    lease_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Such as slurm-4711; a lease of yours with this id is renewed."),
    ] = None,
    id_only: Annotated[bool, typer.Option("--id-only", help="Print its id, and nothing else.")] = False,
) -> int:
    """Reserve devices: the agent's benches leave them alone, and no other lease gets them.

    It stops clients that ask the agent, not a process that does not. Benches and preemptible leases yield, unless
    this lease is preemptible itself.

    --plan reserves the devices of a plan. If another client reserved one of them since, the exit code is 1.

    Exit codes: 0 reserved · 1 another lease has one of the devices · 2 usage, or no answer.
    """
    from meshwright._reference import load_plan  # here, so that --help need not wait for the HTTP library

    ttl_s = parse_duration(ttl, "--ttl", MAX_TTL_S)
    named = parse_leased(devices, count)
    if plan is not None and (devices, count) != (None, None):
        raise typer.BadParameter("a plan names its devices; leave DEVICES and --count out", param_hint="--plan")
    if sys.__stdout__ is None and lease_id is None:  # closed, and `main` put /dev/null there
        raise SettingsError("stdout is closed, so the lease's id would be lost; open it, or choose the id with --id")
    with session.open() as client:
        chosen = named if plan is None else load_plan(plan, client=client)
        lease = client.lease(chosen, purpose=purpose, ttl_s=ttl_s, preemptible=preemptible, lease_id=lease_id)
        with ending_untold(client, lease) if lease_id is None else contextlib.nullcontext():
            text = lease.model_dump_json(exclude_unset=True) if session.as_json else "\n".join(write_new_lease(lease))
            if not session.tell(lease.id if id_only else text) and lease_id is None:
                raise SettingsError("stdout has no reader, so the lease's id would be lost; choose the id with --id")
            if not id_only:
                _explain_number(session, named)
    return OK


def _explain_number(session: Session, named: object) -> None:
    """Reports on stderr that a single number selects a device, since it may have been meant as a count."""
    match named:
        case (int(number),) if number > 1 and not session.as_json:
            note = f"note: this leases device number {number}, one device; use --count {number} for {number} devices"
            session.err.print(note, soft_wrap=True, highlight=False)


@contextlib.contextmanager
def ending_untold(client: Client, lease: Lease) -> Iterator[None]:
    """Ends a lease if the block that prints its id fails, since its id would be unknown otherwise."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(MeshwrightError):
            client.end_lease(lease)
        raise


LeaseId = Annotated[str, typer.Argument(metavar="ID", help="Which one; `meshwright lease list` lists them.")]


def list_leases(
    session: Session,
    purpose: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Those with just this purpose; may be repeated.")
    ] = None,
) -> int:
    """List the leases of the host."""
    with session.open() as client:
        reply = client.leases()
    if purpose:
        chosen = tuple(lease for lease in reply.leases if lease.purpose in purpose)
        reply = reply.model_copy(update={"leases": chosen})
    session.print_reply(reply, build_table(COLUMNS, reply.leases) if reply.leases else "no leases")
    return OK


def renew_lease(
    session: Session,
    lease_id: LeaseId,
    ttl: Annotated[
        str | None, typer.Option(metavar="1h", help="From now. Without: 1h, or what it has left if that is more.")
    ] = None,
) -> int:
    """Extend a lease, which then lasts --ttl from now; a shorter --ttl shortens it.

    Exit codes: 0 done · 1 no such lease: it has ended · 2 usage, or no answer.
    """
    ttl_s = parse_duration(ttl or "1h", "--ttl", MAX_TTL_S)
    with session.open() as client:
        if ttl is None:
            ttl_s = max(ttl_s, client.get_lease(lease_id).expires_in_s)
        lease = client.renew_lease(lease_id, ttl_s)
    session.print_reply(lease, write_lease(lease, "has"))
    return OK


def end_lease(
    session: Session,
    lease_id: Annotated[str | None, typer.Argument(metavar="ID", help="Which one.")] = None,
    purpose: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="All with just this purpose; may be repeated.")
    ] = None,
) -> int:
    """End a lease, or all with a purpose.

    `end --purpose "slurm job 4711"` is for a script that may not have heard the id: no such lease is not an error. A
    lease of another token stays, and the others end.

    Exit codes: 0 done · 1 no such lease: it has ended; or one with the purpose is of another token · 2 usage, or no
    answer.
    """
    if (lease_id is None) == (not purpose):
        raise typer.BadParameter("give the id of one lease, or --purpose of many", param_hint="ID")
    with session.open() as client:
        if lease_id is not None:
            lease = client.end_lease(lease_id)
            session.print_reply(lease, write_lease(lease, "no longer has"))
            return OK
        reply = client.leases()
        ended, refused = _end_all(client, [lease for lease in reply.leases if lease.purpose in (purpose or ())])
    for error in refused:
        print_error(session, error)
    if session.as_json:
        session.print_json(reply.model_copy(update={"leases": ended}))
    elif ended or not refused:
        session.print_lines(*(write_lease(lease, "no longer has") for lease in ended) if ended else ("no leases",))
    return FAILED if refused else OK


def _end_all(client: Client, leases: Sequence[Lease]) -> tuple[tuple[Lease, ...], tuple[ForbiddenError, ...]]:
    """Returns the ended leases, and why others were not ended. A lease that has ended meanwhile counts as ended."""
    ended, refused = [], []
    for lease in leases:
        try:
            ended.append(client.end_lease(lease))
        except NotFoundError:
            continue
        except ForbiddenError as error:
            refused.append(error)
    return tuple(ended), tuple(refused)


def write_new_lease(lease: Lease) -> list[str]:
    """Returns a new lease in a line, and the leases and runs that yielded to it."""
    yielded = (("lease", lease.preempted_leases), ("run", lease.cancelled_runs))
    gone = [f"{word} {', '.join(ids)} yielded" for word, ids in yielded if ids]
    return [write_lease(lease, "has"), *map(clean, gone)]


def write_lease(lease: Lease, verb: Literal["has", "no longer has"]) -> str:
    """Returns a lease in a line, without the leases and runs that yielded to it."""
    left = f" for {format_time(lease.expires_in_s)}" if verb == "has" else ""
    devices = ", ".join(str(device.local_index) for device in lease.devices)
    return clean(f"{lease.id} {verb} device {devices}{left}: {lease.purpose}")


COLUMNS: Final[tuple[Column[Lease], ...]] = (
    Column("lease", lambda lease: lease.id),
    Column("devices", lambda lease: ",".join(str(device.local_index) for device in lease.devices)),
    Column("left", lambda lease: format_time(lease.expires_in_s), "right"),
    Column("owner", lambda lease: lease.owner),
    Column("preemptible", lambda lease: "yes" if lease.preemptible else ""),
    Column("purpose", lambda lease: lease.purpose),
)

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
"""Exit codes as in a shell. Source: POSIX.1-2024, Shell Command Language, §2.8.2."""

FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


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
        typer.Option(help="When the lease is lost: end the command (SIGTERM), or warn. Without: stop if preemptible."),
    ] = None,
) -> int:
    """Run a command while devices are reserved for it.

    The command gets the lease's id in MESHWRIGHT_LEASE. Signals are passed on to it.

    Exit codes: the command's; 128 + n, where signal n ended it · 75 the lease was lost before the command ended: run it
    again · 1 another lease has one of the devices · 2 usage, or no answer · 126, 127 the command cannot be run, is not
    there.
    """
    ttl_s = parse_duration(ttl, "--ttl", MAX_TTL_S)
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
            return SIGNALLED + int(signalled.args[0])


class _SignalledError(BaseException):
    """A signal came before there was a command to pass it on to; its number."""


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
        self._early: list[int] | None = None
        """Signals that came while the command was being started: it may run already."""

    def run(self, command: Sequence[str], held: Held) -> int:
        """Runs the command to its end; returns its exit code."""
        self._early = []
        try:
            self._process = subprocess.Popen(command, env={**os.environ, LEASE_VARIABLE: held.lease.id})
        except FileNotFoundError:
            return self._refuse(command, "is not there", NOT_FOUND)
        except OSError as error:
            return self._refuse(command, f"cannot be run: {error.strerror}", NOT_EXECUTABLE)
        for number in self._early:
            self._process.send_signal(number)
        if held.lost is not None:
            self._stop()
        code = self._process.wait()
        return SIGNALLED - code if code < 0 else code

    def lose(self, why: MeshwrightError) -> None:
        """Reports that the lease is lost, and ends the command if it shall not run without one."""
        self.lost = str(why).splitlines()[0]
        is_running = self._process is None or self._process.returncode is None
        self._stop()
        if is_running:
            does = "the command is ended" if self._is_stopped else "the command goes on without it"
            with contextlib.suppress(OSError):  # the disk of stderr is full: the exit code says it too
                print_warning(self._session, f"the lease is lost, {does}: {self.lost}")

    def report_loss(self, code: int) -> int:
        """Warns that the lease was lost before the command ended with this exit code; returns `LEASE_LOST`."""
        words = f"the lease was lost before the command ended (exit code {code}), so another client may have used its "
        print_warning(self._session, f"{words}devices: {self.lost}", "run the command again")
        return LEASE_LOST

    def _stop(self) -> None:
        if self._is_stopped and self._process is not None:
            self._process.terminate()  # does nothing to a command that has ended

    def _refuse(self, command: Sequence[str], why: str, code: int) -> int:
        print_warning(self._session, f"{command[0]} {why}", "the lease is ended; correct the command's name")
        return code

    @contextlib.contextmanager
    def passing_signals_on(self) -> Iterator[None]:
        """Passes signals on to the command; before it runs, they end the block. Ignored ones (nohup) stay ignored."""
        heard = [number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._pass_on) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._process is None and self._early is None:
            raise _SignalledError(number)
        if self._process is None:
            self._early = [*(self._early or ()), number]
        elif self._process.returncode is None and not (number in _OF_TERMINALS and _has_terminal()):
            self._process.send_signal(number)


_OF_TERMINALS: Final = (signal.SIGINT, signal.SIGQUIT)


def _has_terminal() -> bool:
    """Returns whether a terminal's Ctrl-C reaches the command by itself: it goes to all of the foreground group."""
    try:
        with Path("/dev/tty").open() as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
