"""`meshwright events` and `meshwright health ack`: the events of a host's health, and an operator's acknowledgment.

Rule: --since shows all events from there on, in the necessary number of calls. If fewer are shown, the output says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from meshwright.cli.arguments import parse_moment
from meshwright.cli.output import Column, build_table, clean, style_state
from meshwright.cli.session import OK, Session
from meshwright.errors import MeshwrightError, NotFoundError
from meshwright.wire.devices import Device
from meshwright.wire.health import HealthEvent, HealthEvents

if TYPE_CHECKING:
    from meshwright import Client

MOST: Final = 1000
"""The maximum number of events of one reply."""
SHOWN: Final = 100
"""The number of events that are shown by default."""


def show_events(
    session: Session,
    component: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only of this one, as `meshwright health` names it; device:3 is device 3's."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="1h", help="Not older than this: 30min, 24h, or 2026-11-22T10:00:00Z.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, max=MOST, help="At most so many.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with those to come, one a line; from now on, without --since.")
    ] = False,
) -> int:
    """Show what happened to the host's health, oldest first.

    All that there is --since a time; without it, the newest 100. With --format json as the agent
    replies; with --follow too, one event a line.

    Exit codes: 0 done · 2 usage, or no answer · 130 interrupted.
    """
    at = None if since is None else parse_moment(since, "--since", now=datetime.now(UTC))
    if follow and limit is not None:
        raise typer.BadParameter("--follow has no end, nothing to limit; leave one out", param_hint="--limit")
    if follow:
        return _follow(session, component, at)
    with session.open() as client:
        component = component and find_component(client, component)
        if limit is None and at is not None:
            reply = _join(_read_pages(client, component, at))
        else:
            reply = client.events(component, limit=limit or SHOWN, since=at)
        if session.as_json:
            session.print_json(reply)
        elif reply.events:
            session.out.print(build_table(COLUMNS, reply.events))
        else:
            none = "no events" if component is None else _describe_none(component, list_components(client))
            session.print_lines(none)
    if (at, limit) == (None, None) and len(reply.events) == SHOWN:
        note = f"these are the newest {SHOWN}; --since 24h shows all from there on"
        session.err.print(note, soft_wrap=True)
    return OK


def _describe_none(component: str, names: Collection[str]) -> str:
    known = "" if component in names else f"; {describe_components(component, names)}"
    return f"no events of {clean(component)}{known}"


def _read_pages(client: Client, component: str | None, since: datetime) -> Iterator[HealthEvents]:
    """Yields all that the agent has, oldest first, in replies of `MOST` events; at least one reply."""
    seen = 0
    while True:
        reply = client.events(component, after=seen, limit=MOST, since=since)
        yield reply
        if len(reply.events) < MOST:
            return
        seen = reply.events[-1].seq


def _join(pages: Iterable[HealthEvents]) -> HealthEvents:
    """Returns replies as one: the last, with the events of all."""
    *before, last = pages
    events = [event for page in before for event in page.events]
    return last.model_copy(update={"events": (*events, *last.events)})


def _follow(session: Session, component: str | None, since: datetime | None) -> int:
    after = None
    with session.open() as client:
        if component is not None:
            component = find_component(client, component)
            if component not in (names := list_components(client)):
                session.err.print(clean(describe_components(component, names)), soft_wrap=True)
        if since is not None:
            for page in _read_pages(client, component, since):
                if not _print_events(session, page.events, component):
                    return OK
                after = page.events[-1].seq if page.events else page.last_seq
        for event in client.follow_events(after):
            if not _print_events(session, (event,), component):
                break
    return OK


def _print_events(session: Session, events: Iterable[HealthEvent], component: str | None) -> bool:
    """Prints the events of a component; returns whether stdout still has a reader."""
    chosen = [event for event in events if component in (None, event.component)]
    return all(session.tell(_write(event, as_json=session.as_json)) for event in chosen)


def _write(event: HealthEvent, *, as_json: bool) -> str:
    if as_json:
        return event.model_dump_json(exclude_unset=True)
    parts = (_write_time(event.at), event.component, _describe_state(event), event.code or "", event.reason)
    return clean("  ".join(part for part in parts if part))


def acknowledge_component(
    session: Session,
    component: Annotated[
        str,
        typer.Argument(metavar="COMPONENT", help="Its name, as `meshwright health` shows it; device:3 is device 3's."),
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What was done about it; kept in the history.")],
) -> int:
    """Acknowledge the faults of a component. Needs a token with the scope admin.

    Exit codes: 0 done · 1 no such component · 2 usage, or no answer.
    """
    with session.open() as client:
        component = find_component(client, component)
        try:
            changed = client.acknowledge(component, reason)
        except NotFoundError as error:
            error.hint = describe_components(component, list_components(client))
            raise
    reason = clean(f" {changed.reason}".rstrip())
    session.print_reply(changed, Text.assemble(clean(changed.name), " ", style_state(changed.state), reason))
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

MOST_NAMED: Final = 16


def find_component(client: Client, name: str) -> str:
    """Returns the component of a name such as "device:3"; the name itself where no component matches.

    Raises:
        MeshwrightError: the agent does not report its health.
    """
    part, _, index = name.partition(":")
    if not (index.isascii() and index.isdigit()):
        return name
    names = list_components(client)
    if name in names:
        return name
    with contextlib.suppress(MeshwrightError):  # no devices are known yet: the name is as good as any
        for device in client.devices().devices:
            if device.local_index == int(index):
                return next((each for each in _list_names(part, device) if each in names), name)
    return name


def _list_names(part: str, device: Device) -> list[str]:
    keys = (device.uuid, device.mig.parent_uuid if device.mig else None, device.pci_bus_id)
    return [f"{part}:{key}" for key in keys if key]


def list_components(client: Client) -> tuple[str, ...]:
    """Returns the names of all components.

    Raises:
        MeshwrightError: the agent does not answer.
    """
    return tuple(component.name for component in client.health().components)


def describe_components(name: str, names: Collection[str]) -> str:
    """Returns which components there are: those of the same kind as the name's, if there are any."""
    kind = name.partition(":")[0]
    alike = [each for each in names if each.partition(":")[0] == kind] or [*names]
    more = f" and {len(alike) - MOST_NAMED} more; `meshwright health` names all" if len(alike) > MOST_NAMED else ""
    return clean(f"there are {', '.join(alike[:MOST_NAMED])}{more}")
