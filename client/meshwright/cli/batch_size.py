"""`meshwright batch-size`: how large a batch, by table and roofline, and the verdict on a given one."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.text import Text

from meshwright.cli.output import Column, build_table, clean, format_rate, print_notices
from meshwright.cli.session import FAILED, OK, Session
from meshwright.wire.batch_size import BatchSize, BatchSizeTable, BatchSizeValidation, Roofline

LEVEL_STYLES: Final = {"ok": "green", "below_critical": "yellow", "below_minimum": "bold red"}


def show_batch_size(
    session: Session,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="h100, tpu_v5e, a JAX device kind, …; without: the host's own."),
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Judge this batch size (per device).")] = None,
) -> int:
    """Say how large a batch per device should be, and why.

    Exit codes: 0 answered, and the batch is valid · 1 the batch is below the minimum · 2 usage (also a name
    that no table knows), or no answer.
    """
    with session.open() as client:
        reply = client.batch_size(hardware, batch)
    if session.as_json:
        session.print_json(reply)
    else:
        _print_sizes(session, reply)
    return FAILED if reply.validation and not reply.validation.valid else OK


def _print_sizes(session: Session, reply: BatchSize) -> None:
    chip = f" ({clean(reply.chip)})" if reply.chip else ""
    session.out.print(Text.assemble((clean(reply.hardware_type), "bold"), f"{chip}, {reply.basis}\n"))
    session.out.print(build_table(COLUMNS, [reply.table]))
    if reply.table.notes:
        session.out.print(f"\n{clean(reply.table.notes)}", soft_wrap=True)
    _print_roofline(session, reply.roofline)
    if reply.validation:
        _print_verdict(session, reply.validation)
    print_notices(session, reply.warnings)


COLUMNS: Final[tuple[Column[BatchSizeTable], ...]] = (
    Column("min", lambda table: str(table.min_batch_size), "right"),
    Column("optimal", lambda table: str(table.optimal_batch_size), "right"),
    Column("critical", lambda table: str(table.critical_batch_size), "right"),
    Column(
        "max by memory",
        lambda table: "" if table.max_memory_batch_size is None else str(table.max_memory_batch_size),
        "right",
    ),
)


def _print_roofline(session: Session, roofline: Roofline | None) -> None:
    if roofline is None:
        session.out.print("roofline: no figure of this hardware is known")
        return
    peak, memory = (
        format_rate(roofline.peak_flops_per_s, "FLOP/s"),
        format_rate(roofline.memory_bytes_per_s, "B/s"),
    )
    session.out.print(
        f"roofline ({clean(roofline.dtype)}): {roofline.critical_batch_tokens:.0f} tokens a device, "
        f"{peak} over {memory}\n"
        f"  {clean(roofline.derivation)}\n  source: {clean(roofline.source)}",
        soft_wrap=True,
    )


def _print_verdict(session: Session, validation: BatchSizeValidation) -> None:
    style = LEVEL_STYLES.get(validation.level, "")
    session.out.print(Text.assemble(f"batch {validation.batch}: ", (clean(validation.message), style)), soft_wrap=True)
