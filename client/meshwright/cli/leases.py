"""`meshwright lease create`, `list`, `renew` and `end`: reserve devices of a host, list, extend and end leases."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from meshwright.cli.arguments import choose_devices, parse_duration
from meshwright.cli.output import Column, build_table, clean, format_time, print_error
from meshwright.cli.session import FAILED, OK, Session
from meshwright.errors import ForbiddenError, MeshwrightError, NotFoundError
from meshwright.wire.leases import Lease

if TYPE_CHECKING:
    from meshwright import Client

ALL: Final = "all"
LEASE_VARIABLE: Final = "MESHWRIGHT_LEASE"
"""Holds the id of the lease that a command runs under."""


def add_own_lease(fields: dict[str, Any]) -> None:
    """Adds the lease that this command runs under to a request without a lease."""
    if own := os.environ.get(LEASE_VARIABLE):
        fields.setdefault("lease", own)


PurposeOption = Annotated[
    str, typer.Option("--purpose", metavar="TEXT", help='What for, as others shall read it: "slurm job 4711".')
]
TtlOption = Annotated[
    str, typer.Option("--ttl", metavar="1h", help="The lease ends by itself after this time: 90s, 30min, 1h, 7d.")
]
PreemptibleOption = Annotated[
    bool, typer.Option("--preemptible", help="A lease that is not preemptible may take the devices over.")
]


CountOption = Annotated[
    int | None, typer.Option("--count", min=1, metavar="N", help="So many devices, whichever are well and free.")
]


def parse_leased(text: str | None, count: int | None) -> Literal["all"] | tuple[int | str, ...] | dict[str, int]:
    """Returns the devices that "all", "0,1" or "GPU-…" name, or how many are wanted; all where neither is given.

    Raises:
        typer.BadParameter: an entry is empty, or devices are named and also counted.
    """
    is_all = count is None and text is not None and text.strip() == ALL
    return (None if is_all else choose_devices(text, count, "DEVICES")) or "all"


def create_lease(
    session: Session,
    purpose: PurposeOption,
    devices: Annotated[
        str | None, typer.Argument(metavar="DEVICES", help="all, or local indices or uuids: 0,1. Without: all.")
    ] = None,
    count: CountOption = None,
    ttl: TtlOption = "1h",
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
    """Reserve devices: no bench of the agent takes them, and nobody else gets a lease on them.

    It keeps away whoever asks the agent, not a process that never does. Benches and preemptible leases give way, unless
    this lease is preemptible itself.

    --plan reserves the devices of a plan. If another client reserved one of them since, the exit code is 1.

    Exit codes: 0 reserved · 1 somebody else has one of the devices · 2 usage, or no answer.
    """
    from meshwright._reference import load_plan  # here, so that --help need not wait for the HTTP library

    ttl_s = parse_duration(ttl, "--ttl")
    named = parse_leased(devices, count)
    if plan is not None and (devices, count) != (None, None):
        raise typer.BadParameter("a plan names its devices; leave DEVICES and --count out", param_hint="--plan")
    with session.open() as client:
        chosen = named if plan is None else load_plan(plan, client=client)
        lease = client.lease(chosen, purpose=purpose, ttl_s=ttl_s, preemptible=preemptible, lease_id=lease_id)
        with ending_untold(client, lease):
            if id_only:
                session.print_lines(lease.id)
            else:
                _print_lease(session, lease, write_new_lease(lease))
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
    if session.as_json:
        session.print_json(reply)
    elif reply.leases:
        session.out.print(build_table(COLUMNS, reply.leases))
    else:
        session.out.print("no leases")
    return OK


def renew_lease(session: Session, lease_id: LeaseId, ttl: TtlOption = "1h") -> int:
    """Extend a lease, which then lasts --ttl from now.

    Exit codes: 0 done · 1 no such lease: it has ended · 2 usage, or no answer.
    """
    ttl_s = parse_duration(ttl, "--ttl")
    with session.open() as client:
        lease = client.renew_lease(lease_id, ttl_s)
    _print_lease(session, lease, [write_lease(lease, "has")])
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
            _print_lease(session, lease, [write_lease(lease, "no longer has")])
            return OK
        reply = client.leases()
        ended, refused = _end_all(client, [lease for lease in reply.leases if lease.purpose in (purpose or ())])
    for error in refused:
        print_error(session, error)
    if session.as_json:
        session.print_json(reply.model_copy(update={"leases": ended}))
    else:
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


def _print_lease(session: Session, lease: Lease, lines: Sequence[str]) -> None:
    if session.as_json:
        session.print_json(lease)
    else:
        session.print_lines(*lines)


def write_new_lease(lease: Lease) -> list[str]:
    """Returns a new lease in a line, and the leases and runs that yielded to it."""
    given_way = (("lease", lease.preempted_leases), ("run", lease.cancelled_runs))
    gone = [f"{word} {', '.join(ids)} gave way" for word, ids in given_way if ids]
    return [write_lease(lease, "has"), *map(clean, gone)]


def write_lease(lease: Lease, verb: Literal["has", "no longer has"]) -> str:
    """Returns a lease in a line, without the leases and runs that yielded to it."""
    left = f" for {format_time(lease.expires_in_s)}" if verb == "has" else ""
    return clean(f"{lease.id} {verb} {_describe_devices(lease)}{left}: {lease.purpose}")


def _describe_devices(lease: Lease) -> str:
    return f"device {', '.join(str(device.local_index) for device in lease.devices)}"


COLUMNS: Final[tuple[Column[Lease], ...]] = (
    Column("lease", lambda lease: lease.id),
    Column("devices", lambda lease: ",".join(str(device.local_index) for device in lease.devices)),
    Column("left", lambda lease: format_time(lease.expires_in_s), "right"),
    Column("owner", lambda lease: lease.owner),
    Column("gives way", lambda lease: "yes" if lease.preemptible else ""),
    Column("purpose", lambda lease: lease.purpose),
)
