"""`meshwright hardware`: the hardware that a plan's `--target` may name. Reads the tables itself; needs no agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from meshwright.cli.output import Column, build_table, clean, format_bytes
from meshwright.cli.session import OK, Session
from meshwright.wire.devices import TargetChip, Targets, TargetSystem


def show_hardware(
    session: Session,
    chip: Annotated[str | None, typer.Argument(metavar="[CHIP]", help="One chip, by any of its names.")] = None,
) -> int:
    """List the chips, hosts and TPU slices that can be planned on without having them.

    With a CHIP: its slices, or its hosts, too. Asks no agent.

    Exit codes: 0 listed · 2 usage, also a chip that no table knows.
    """
    from meshwright.topology.targets import list_targets  # here, so that --help need not wait for the models

    reply = list_targets(chip)
    if session.as_json:
        session.print_lines(reply.model_dump_json())
    elif chip is None:
        _print_overview(session, reply)
    else:
        _print_chip(session, reply.chips[0], reply.systems)
    return OK


def _print_overview(session: Session, reply: Targets) -> None:
    from meshwright.topology.targets import GRAMMAR  # here, as above

    columns = (*CHIP_COLUMNS, Column[TargetChip]("slices or hosts", lambda chip: _summarize(chip, reply)))
    session.out.print(build_table(columns, reply.chips))
    session.out.print(f"\n{GRAMMAR}", soft_wrap=True)


def _summarize(chip: TargetChip, reply: Targets) -> str:
    own = [system for system in reply.systems if system.chip == chip.chip]
    named = [system.names[0] for system in own if system.names]
    if named:
        return f"{len(named)} named: {named[0]} to {named[-1]}"
    counts = "any number" if chip.platform == "cpu" else ", ".join(str(host.device_count) for host in own)
    domain = own[0].domain_device_count
    return f"{counts} a host" + (f"; {chip.chip}:{domain} is an NVLink domain" if domain else "")


def _print_chip(session: Session, chip: TargetChip, systems: Sequence[TargetSystem]) -> None:
    session.out.print(build_table((*CHIP_COLUMNS, ALIASES), [chip]))
    rule = f"slices are {clean(chip.shapes)}; those with a name:" if chip.shapes else "hosts:"
    session.out.print(f"\n{rule}", soft_wrap=True)
    session.out.print(build_table(SLICE_COLUMNS if chip.platform == "tpu" else HOST_COLUMNS, systems))
    session.out.print()
    for source in dict.fromkeys([chip.source, *(system.source for system in systems)]):
        session.out.print(f"source: {clean(source)}", soft_wrap=True)


CHIP_COLUMNS: Final[tuple[Column[TargetChip], ...]] = (
    Column("chip", lambda chip: chip.chip),
    Column("name", lambda chip: chip.name),
    Column("devices a chip", lambda chip: str(chip.devices_per_chip), "right"),
    Column("memory a device", lambda chip: format_bytes(chip.device_memory_bytes), "right"),
)
ALIASES: Final[Column[TargetChip]] = Column("also", lambda chip: ", ".join(chip.aliases[1:]))
HOST_COLUMNS: Final[tuple[Column[TargetSystem], ...]] = (
    Column("target", lambda host: host.target),
    Column("links", lambda host: ", ".join(f"{count} × {kind}" for kind, count in sorted(host.links.items()))),
    Column("NVLink domain", lambda host: str(host.domain_device_count) if host.domain_device_count else "", "right"),
    Column("host", lambda host: host.text),
)
SLICE_COLUMNS: Final[tuple[Column[TargetSystem], ...]] = (
    Column("names", lambda slice_: ", ".join(slice_.names)),
    Column("target", lambda slice_: slice_.target),
    Column("devices", lambda slice_: str(slice_.device_count), "right"),
    Column("hosts", lambda slice_: str(slice_.host_count), "right"),
    Column("rings", lambda slice_: slice_.text),
)
