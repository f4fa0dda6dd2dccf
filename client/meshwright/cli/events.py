"""`meshwright events` and `meshwright acknowledge`: what happened to a host's health, and an operator's word on it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.text import Text

from meshwright.cli.output import Column, build_table, clean, style_state
from meshwright.cli.quantities import parse_moment
from meshwright.cli.session import OK, Session
from meshwright.wire.health import HealthEvent

MOST: Final = 1000
"""Events that an agent tells at once."""


def show_events(
    session: Session,
    component: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this one: device:3.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="1h", help="Not older than this: 30min, 24h, or 2026-11-22T10:00:00Z.")
    ] = None,
    after: Annotated[
        int | None, typer.Option(metavar="SEQ", min=0, help="Only after the event of this number.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with those to come, one a line; from now on, unless told.")
    ] = False,
) -> int:
    """Show what happened to the host's health, oldest first.

    With --json the agent's reply; with --follow too, one event a line.

    Exit codes: 0 done · 2 usage, or no answer · 130 interrupted.
    """
    at = None if since is None else parse_moment(since, "--since", now=datetime.now(UTC))
    if follow and limit is not None:
        raise typer.BadParameter(
            "--follow has no end, so there is nothing to limit; leave one out", param_hint="--limit"
        )
    if follow:
        return _follow(session, component, at, after)
    with session.open() as client:
        reply = client.events(component, after=after, limit=limit, since=at)
    if session.as_json:
        session.print_json(reply)
    elif reply.events:
        session.out.print(build_table(COLUMNS, reply.events))
    else:
        of = "" if component is None else f" of {clean(component)}; `meshwright check` names the components"
        session.print_lines(f"no events{of}")
    return OK


def _follow(session: Session, component: str | None, since: datetime | None, after: int | None) -> int:
    with session.open() as client:
        if since is not None:
            known = client.events(component, since=since, after=after, limit=MOST)
            if not _tell(session, known.events, component):
                return OK
            after = known.events[-1].seq if known.events else known.last_seq
        for event in client.follow_events(after):
            if not _tell(session, (event,), component):
                break
    return OK


def _tell(session: Session, events: Iterable[HealthEvent], component: str | None) -> bool:
    """Prints the events of a component; returns whether somebody still reads."""
    chosen = [event for event in events if component in (None, event.component)]
    return all(session.tell(_write(event, as_json=session.as_json)) for event in chosen)


def _write(event: HealthEvent, *, as_json: bool) -> str:
    if as_json:
        return event.model_dump_json(exclude_unset=True)
    parts = (_write_time(event.at), event.component, _describe_state(event), event.code or "", event.reason)
    return clean("  ".join(part for part in parts if part))


def acknowledge_component(
    session: Session,
    component: Annotated[str, typer.Argument(metavar="COMPONENT", help="Its name, as `meshwright check` shows it.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What was done about it; kept in the history.")],
) -> int:
    """Tell the agent that the faults of a component are dealt with. Needs a token with the scope admin.

    Exit codes: 0 done · 1 no such component · 2 usage, or no answer.
    """
    with session.open() as client:
        told = client.acknowledge(component, reason)
    if session.as_json:
        session.print_json(told)
    else:
        session.out.print(
            Text.assemble(clean(told.name), " ", style_state(told.state), clean(f" {told.reason}".rstrip()))
        )
    return OK


def _write_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"


def _describe_state(event: HealthEvent) -> str:
    if event.kind != "state":
        return f"{event.kind}, {event.state}"
    return event.state if event.before is None else f"{event.before} → {event.state}"


COLUMNS: Final[tuple[Column[HealthEvent], ...]] = (
    Column("event", lambda event: str(event.seq), "right"),
    Column("at", lambda event: _write_time(event.at)),
    Column("component", lambda event: event.component),
    Column("what", _describe_state),
    Column("code", lambda event: event.code or ""),
    Column("reason", lambda event: event.reason),
    Column("action", lambda event: event.action),
)
