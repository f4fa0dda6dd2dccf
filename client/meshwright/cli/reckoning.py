"""The batch of a model's step, for people: what is recommended, the bounds of its mesh, and what the step costs.

Rule: figures are the answer's, in its order; nothing is reckoned here. Knows no command.
"""

from __future__ import annotations

from typing import Final

from rich.text import Text

from meshwright.cli.output import Column, build_table, clean, format_bytes, format_time
from meshwright.cli.session import Session
from meshwright.wire.batch_size import BatchBound, ReckonedBatch


def print_reckoned(session: Session, found: ReckonedBatch) -> None:
    """Prints the recommended batch with its reason, what it lies between, and each bound with where it comes from."""
    style = "bold" if found.recommended is not None else "bold red"
    session.out.print(Text(clean(found.message), style), soft_wrap=True)
    session.out.print()
    session.out.print(build_table(_SIZES, [found]))
    session.out.print()
    session.out.print(build_table(_BOUNDS, found.bounds))
    session.out.print()
    for bound in found.bounds:
        session.out.print(f"{_name_bound(bound)}: {clean(bound.derivation)} ({clean(bound.source)})", soft_wrap=True)
    session.out.print(f"\n{_write_step(found)}", soft_wrap=True)


def _write_step(found: ReckonedBatch) -> str:
    """Returns what the recommended batch takes; of none that fits only its memory."""
    memory = found.memory
    parts = [f"memory {format_bytes(memory.per_device_bytes)} of {format_bytes(memory.capacity_bytes)} a device"]
    if found.step_time is not None:
        parts.append(f"{format_time(found.step_time.total_s)} a step")
    if found.tokens_per_s is not None:
        parts.append(f"{found.tokens_per_s:,.0f} tokens/s")
    if found.mfu_ratio is not None:
        parts.append(f"MFU {found.mfu_ratio:.1%}")
    if found.schedule is not None:
        parts.append(f"remat {found.schedule.remat}")
    return ", ".join(parts)


def _name_bound(bound: BatchBound) -> str:
    axis = "" if bound.axis in (None, bound.name) else f" ({bound.axis})"
    return clean(f"{bound.name}{axis}")


def _write_value(bound: BatchBound) -> str:
    if bound.tokens is not None:
        return f"{bound.tokens:,.0f} tokens a {bound.per}"
    return "" if bound.size is None else f"size {bound.size:.3g}"


_SIZES: Final = (
    Column[ReckonedBatch]("recommended", lambda found: _write_count(found.recommended), "right"),
    Column[ReckonedBatch]("critical", lambda found: f"{found.critical:,}", "right"),
    Column[ReckonedBatch]("largest", lambda found: _write_count(found.largest), "right"),
    Column[ReckonedBatch]("multiple of", lambda found: f"{found.unit:,}", "right"),
    Column[ReckonedBatch]("limit", lambda found: clean(found.limit)),
)

_BOUNDS: Final = (
    Column[BatchBound]("bound", _name_bound),
    Column[BatchBound]("from", _write_value, "right"),
    Column[BatchBound](
        "sequences a step", lambda bound: "" if bound.global_batch is None else f"{bound.global_batch:,.1f}", "right"
    ),
    Column[BatchBound]("met", lambda bound: Text("yes", "green") if bound.met else Text("no", "yellow")),
)


def _write_count(count: int | None) -> str:
    return "none fits" if count is None else f"{count:,}"
