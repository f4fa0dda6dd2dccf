"""`meshwright lease` and `meshwright leases`: reserve devices of a host, see who has, renew, end."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer
from rich.text import Text

from meshwright.cli.arguments import parse_devices
from meshwright.cli.output import Column, build_table, clean, format_time
from meshwright.cli.quantities import parse_duration
from meshwright.cli.session import OK, Session
from meshwright.wire.leases import Lease

ALL: Final = "all"

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


def parse_leased(text: str) -> Literal["all"] | tuple[int | str, ...]:
    """Returns the devices that "all", "0,1" or "GPU-…" name.

    Raises:
        typer.BadParameter: an entry is empty.
    """
    return "all" if text.strip() == ALL else parse_devices(text, "DEVICES")


def make_lease(
    session: Session,
    purpose: PurposeOption,
    devices: Annotated[str, typer.Argument(metavar="DEVICES", help="all, or local indices or uuids: 0,1.")] = ALL,
    ttl: TtlOption = "1h",
    preemptible: PreemptibleOption = False,
    id_only: Annotated[bool, typer.Option("--id-only", help="Print its id, and nothing else.")] = False,
) -> int:
    """Reserve devices: no bench of the agent takes them, and nobody else gets a lease on them.

    It keeps away whoever asks the agent, not a process that never does. Benches and preemptible leases give way, unless
    this lease is preemptible itself.

    Exit codes: 0 reserved · 1 somebody else has one of the devices · 2 usage, or no answer.
    """
    ttl_s = parse_duration(ttl, "--ttl")
    with session.open() as client:
        lease = client.lease(parse_leased(devices), purpose=purpose, ttl_s=ttl_s, preemptible=preemptible)
    if id_only:
        session.print_lines(lease.id)
    else:
        _print_lease(session, lease, "has")
    return OK


def show_leases(
    session: Session,
    action: Annotated[Action, typer.Argument(metavar="[list|renew|end]", help="What to do.")] = "list",
    lease_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Of renew and end: which one.")] = None,
    ttl: TtlOption = "1h",
) -> int:
    """List the leases of the host; `renew ID` lets one last --ttl from now, `end ID` ends it.

    Exit codes: 0 done · 1 no such lease: it has ended · 2 usage, or no answer.
    """
    if (lease_id is None) != (action == "list"):
        said = (
            "`list` takes no id" if lease_id else f"`{action}` needs the id of a lease; `meshwright leases` lists them"
        )
        raise typer.BadParameter(said, param_hint="ID")
    ttl_s = parse_duration(ttl, "--ttl")
    with session.open() as client:
        if lease_id is None:
            reply = client.leases()
        else:
            lease = client.renew_lease(lease_id, ttl_s) if action == "renew" else client.end_lease(lease_id)
            _print_lease(session, lease, "has" if action == "renew" else "no longer has")
            return OK
    if session.as_json:
        session.print_json(reply)
    elif reply.leases:
        session.out.print(build_table(COLUMNS, reply.leases))
    else:
        session.out.print("no leases")
    return OK


def _print_lease(session: Session, lease: Lease, verb: str) -> None:
    if session.as_json:
        session.print_json(lease)
        return
    left = f" for {format_time(lease.expires_in_s)}" if verb == "has" else ""
    told = f"{lease.id} {verb} {_describe_devices(lease)}{left}: {lease.purpose}"
    session.out.print(Text(clean(told)), soft_wrap=True)
    for word, gone in (("lease", lease.preempted_leases), ("run", lease.cancelled_runs)):
        if gone:
            session.out.print(Text(clean(f"{word} {', '.join(gone)} gave way")), soft_wrap=True)


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
