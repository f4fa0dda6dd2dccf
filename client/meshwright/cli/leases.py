"""`meshwright lease` and `meshwright leases`: reserve devices of a host, see who has, renew, end."""

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
    from meshwright._client import Client

ALL: Final = "all"
LEASE_VARIABLE: Final = "MESHWRIGHT_LEASE"
"""Holds the id of the lease that a command runs under."""


def add_own_lease(fields: dict[str, Any]) -> None:
    """Names the lease that this command runs under in a request that names none."""
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
Action = Literal["list", "renew", "end"]


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


def make_lease(
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
        typer.Option(metavar="FILE", help="Of a plan that `meshwright plan -o FILE` kept, or of a fingerprint."),
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
    """Says on stderr that one number is a device's, since it may have been meant as a count."""
    match named:
        case (int(number),) if number > 1 and not session.as_json:
            said = f"note: this leases device number {number}, one device; use --count {number} for {number} devices"
            session.err.print(said, soft_wrap=True, highlight=False)


@contextlib.contextmanager
def ending_untold(client: Client, lease: Lease) -> Iterator[None]:
    """Ends a lease where the block, which tells its id, fails: nobody would know which one to end."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(MeshwrightError):
            client.end_lease(lease)
        raise


def show_leases(
    session: Session,
    action: Annotated[Action, typer.Argument(metavar="list|renew|end", help="What to do.")] = "list",
    lease_id: Annotated[str | None, typer.Argument(metavar="ID", help="Of renew and end: which one.")] = None,
    ttl: TtlOption = "1h",
    purpose: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Of list and end: those made for just this; may be given often."),
    ] = None,
) -> int:
    """List the leases of the host; `renew ID` lets one last --ttl from now, `end ID` ends it.

    `end --purpose "slurm job 4711"` ends what was reserved for that, for a script that may not have heard the id; that
    there is none is no failure. One that another token took stays, and keeps none of the others.

    Exit codes: 0 done · 1 no such lease: it has ended; or --purpose names one that another token took · 2 usage, or no
    answer.
    """
    _check_choice(action, lease_id, purpose)
    ttl_s = parse_duration(ttl, "--ttl")
    with session.open() as client:
        if lease_id is not None:
            lease = client.renew_lease(lease_id, ttl_s) if action == "renew" else client.end_lease(lease_id)
            _print_lease(session, lease, [write_lease(lease, "has" if action == "renew" else "no longer has")])
            return OK
        reply = client.leases()
        refused: tuple[ForbiddenError, ...] = ()
        if purpose:
            chosen = tuple(lease for lease in reply.leases if lease.purpose in purpose)
            if action == "end":
                chosen, refused = _end_all(client, chosen)
            reply = reply.model_copy(update={"leases": chosen})
    for error in refused:
        print_error(session, error)
    if session.as_json:
        session.print_json(reply)
    elif not reply.leases:
        session.out.print("no leases")
    elif action == "end":
        session.print_lines(*(write_lease(lease, "no longer has") for lease in reply.leases))
    else:
        session.out.print(build_table(COLUMNS, reply.leases))
    return FAILED if refused else OK


def _check_choice(action: Action, lease_id: str | None, purpose: Sequence[str] | None) -> None:
    """Refuses an id where leases are listed, and an end or a renewal of nothing or of two kinds of thing."""
    if lease_id is not None and action == "list":
        raise typer.BadParameter("`list` takes no id", param_hint="ID")
    if lease_id is None and (action == "renew" or (action == "end" and not purpose)):
        said = f"`{action}` needs the id of a lease; `meshwright leases` lists them"
        raise typer.BadParameter(said + (", and --purpose names many" if action == "end" else ""), param_hint="ID")
    if purpose and lease_id is not None:
        raise typer.BadParameter(
            f"`{action} {lease_id}` is about one lease; leave --purpose out", param_hint="--purpose"
        )


def _end_all(client: Client, leases: Sequence[Lease]) -> tuple[tuple[Lease, ...], tuple[ForbiddenError, ...]]:
    """Returns the leases that were ended, and why others were not; one that somebody ended meanwhile is ended too."""
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
    """Returns a lease that was just made in a line, and what gave way to it."""
    given_way = (("lease", lease.preempted_leases), ("run", lease.cancelled_runs))
    gone = [f"{word} {', '.join(ids)} gave way" for word, ids in given_way if ids]
    return [write_lease(lease, "has"), *map(clean, gone)]


def write_lease(lease: Lease, verb: Literal["has", "no longer has"]) -> str:
    """Returns a lease in a line; what gave way to it did so when it was made, and is not said again."""
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
