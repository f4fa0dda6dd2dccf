"""`meshwright hardware`: the hardware that a plan's `--target` may name. Reads the tables itself; needs no agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from meshwright.cli.output import Column, build_table, clean, format_bytes
from meshwright.cli.session import OK, Session
from meshwright.wire.devices import TargetChip, TargetHost, Targets, TargetSlice


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
        return OK
    if chip is None:
        _print_overview(session, reply)
    else:
        _print_chip(session, reply.chips[0], reply.slices)
    return OK


def _print_overview(session: Session, reply: Targets) -> None:
    columns = (*CHIP_COLUMNS, Column[TargetChip]("slices or hosts", lambda chip: _summarize(chip, reply)))
    session.out.print(build_table(columns, reply.chips))
    session.out.print(f"\n{reply.grammar}", soft_wrap=True)


def _summarize(chip: TargetChip, reply: Targets) -> str:
    names = [slice_.name for slice_ in reply.slices if slice_.chip == chip.chip]
    if names:
        return f"{len(names)} named: {names[0]} to {names[-1]}"
    counts = "any number" if chip.platform == "cpu" else ", ".join(str(host.device_count) for host in chip.hosts)
    domain = chip.hosts[0].domain_device_count
    return f"{counts} a host" + (f"; {chip.chip}:{domain} is an NVLink domain" if domain else "")


def _print_chip(session: Session, chip: TargetChip, slices: Sequence[TargetSlice]) -> None:
    session.out.print(build_table((*CHIP_COLUMNS, ALIASES), [chip]))
    rule = f"slices are {clean(chip.shapes)}; those with a name:" if chip.shapes else "hosts:"
    session.out.print(f"\n{rule}", soft_wrap=True)
    session.out.print(build_table(SLICE_COLUMNS, slices) if slices else build_table(HOST_COLUMNS, chip.hosts))
    session.out.print()
    for source in dict.fromkeys([chip.source, *(host.source for host in chip.hosts)]):
        session.out.print(f"source: {clean(source)}", soft_wrap=True)


def _describe_links(host: TargetHost) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in sorted(host.links.items()))


def _describe_rings(slice_: TargetSlice) -> str:
    names = "".join(name for name, wraps in zip("xyz", slice_.wrap, strict=False) if wraps)
    return f"{names}, may be twisted" if slice_.can_twist else names


CHIP_COLUMNS: Final[tuple[Column[TargetChip], ...]] = (
    Column("chip", lambda chip: chip.chip),
    Column("name", lambda chip: chip.name),
    Column("devices a chip", lambda chip: str(chip.devices_per_chip), "right"),
    Column("memory a device", lambda chip: format_bytes(chip.device_memory_bytes), "right"),
)
ALIASES: Final[Column[TargetChip]] = Column("also", lambda chip: ", ".join(chip.aliases[1:]))
HOST_COLUMNS: Final[tuple[Column[TargetHost], ...]] = (
    Column("target", lambda host: host.target),
    Column("links", _describe_links),
    Column("NVLink domain", lambda host: str(host.domain_device_count) if host.domain_device_count else "", "right"),
    Column("host", lambda host: host.text),
)
SLICE_COLUMNS: Final[tuple[Column[TargetSlice], ...]] = (
    Column("name", lambda slice_: slice_.name),
    Column("also", lambda slice_: ", ".join(slice_.aliases)),
    Column("target", lambda slice_: slice_.target),
    Column("devices", lambda slice_: str(slice_.device_count), "right"),
    Column("hosts", lambda slice_: str(slice_.host_count), "right"),
    Column("rings", _describe_rings),
)
