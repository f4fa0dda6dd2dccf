"""What a search for the best mesh found, on the command line: the ranked table, and what a plan costs as bars.

Rule: figures are the plan's, in its order; nothing is reckoned here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.text import Text

from meshwright.cli.output import Column, build_table, clean, format_bytes, format_time, print_error
from meshwright.cli.session import Session
from meshwright.errors import PlanInfeasibleError
from meshwright.wire.mesh import UNKNOWN_TARGET, ComparedTarget, Fallback, Plan, Plans, Rejected

BAR_WIDTH: Final = 40
"""Characters of a bar that is the whole."""

Compared = tuple[ComparedTarget, Plan | None]
"""A target, and its plan."""


def print_ranking(session: Session, plans: Plans, *, is_explained: bool) -> None:
    """Prints the best plans, the fastest first, and where that is wanted or nothing fits why others lost."""
    if plans.comparison:
        _print_comparison(session, plans, is_explained=is_explained)
        return
    if plans.plans:
        session.out.print(build_table(_PLANS, plans.plans))
        session.out.print()
    if is_explained or not plans.plans:
        session.out.print(build_table(_REJECTED, plans.rejected))
        session.out.print()


def _print_comparison(session: Session, plans: Plans, *, is_explained: bool) -> None:
    """Prints the targets, the best first, and what is said of each; where that is wanted also why meshes lost."""
    made = {plan.fingerprint: plan for plan in plans.plans}
    rows = [(each, made.get(each.fingerprint or "")) for each in plans.comparison]
    session.out.print(build_table(_COMPARED, rows))
    told = [each for each in plans.comparison if each.reason != UNKNOWN_TARGET]
    session.print_lines("", *(f"{clean(each.target)}: {clean(each.message)}" for each in told), "")
    for each in plans.comparison:
        if each.rejected and (is_explained or each.fingerprint is None):
            session.print_lines(f"on {clean(each.target)}")
            session.out.print(build_table(_REJECTED, each.rejected))
            session.out.print()


def print_unknown_targets(session: Session, plans: Plans) -> bool:
    """Says on stderr which of the targets are none, with names that come near; returns whether there are such."""
    unknown = [each for each in plans.comparison if each.reason == UNKNOWN_TARGET]
    for each in unknown:
        print_error(session, PlanInfeasibleError(each.message))
    return bool(unknown)


def _read_made(read: Callable[[Plan], str | Text], row: Compared) -> str | Text:
    return "" if row[1] is None else read(row[1])


def write_fallback(fallback: Fallback) -> list[str]:
    """Returns what is said of the plan for when a device fails."""
    return [f"when a device fails: {clean(fallback.message)}"]


def write_costs(plan: Plan) -> list[str]:
    """Returns the memory and the step's time as bars, part by part, the largest first."""
    lines: list[str] = []
    if plan.memory is not None and plan.memory.capacity_bytes:
        lines += _draw(plan.memory.parts, plan.memory.capacity_bytes, format_bytes)
    if plan.step_time is not None:
        step = plan.step_time
        parts = {"compute": step.compute_s, "remat": step.remat_s, "bubble": step.bubble_s}
        parts |= {f"communication {axis}": seconds for axis, seconds in step.communication_s.items()}
        parts |= {"optimizer": step.optimizer_s, "other": step.other_s}
        lines += ["", f"a step, as reckoned: {_write_step(plan)}", *_draw(parts, step.total_s, format_time)]
    return lines


def _draw(parts: Mapping[str, float], whole: float, write: Any) -> list[str]:
    """Returns a line a part: its name, its bar, its figure; parts that are nothing are left out."""
    shown = sorted(((size, name) for name, size in parts.items() if size > 0), reverse=True)
    width = max((len(name) for _, name in shown), default=0)
    return [
        f"  {clean(name):{width}}  {'█' * max(1, round(BAR_WIDTH * min(size / whole, 1))):{BAR_WIDTH}}  {write(size)}"
        for size, name in shown
    ]


def _write_mesh(shape: Mapping[str, int]) -> str:
    return " × ".join(f"{clean(name)}:{size}" for name, size in shape.items())


def _write_step(plan: Plan) -> str:
    step = plan.step_time
    if step is None:
        return ""
    if step.low_s is None or step.high_s is None:
        return format_time(step.total_s)
    return f"{format_time(step.total_s)} ({format_time(step.low_s)} to {format_time(step.high_s)})"


def _write_batch(plan: Plan) -> str:
    return "" if plan.schedule is None else f"{plan.schedule.passes} × {plan.schedule.micro_batch}"


def _write_memory(plan: Plan) -> Text:
    if plan.memory is None:
        return Text("")
    style = "" if plan.memory.fits is not False else "bold red"
    return Text(format_bytes(plan.memory.per_device_bytes), style)


_PLANS: Final = (
    Column[Plan]("mesh", lambda plan: Text(_write_mesh(plan.mesh_shape), "bold")),
    Column[Plan]("passes", _write_batch, "right"),
    Column[Plan]("remat", lambda plan: plan.schedule.remat if plan.schedule else ""),
    Column[Plan]("a step", _write_step, "right"),
    Column[Plan]("tokens/s", lambda plan: f"{plan.tokens_per_s:,.0f}" if plan.tokens_per_s else "", "right"),
    Column[Plan]("MFU", lambda plan: f"{plan.mfu_ratio:.1%}" if plan.mfu_ratio else "", "right"),
    Column[Plan]("memory", _write_memory, "right"),
    Column[Plan]("largest batch", lambda plan: f"{plan.largest_batch:,}" if plan.largest_batch else "", "right"),
    Column[Plan](
        "per 1M tokens",
        lambda plan: f"{plan.price_per_million_tokens:.4g}" if plan.price_per_million_tokens else "",
        "right",
    ),
)

_COMPARED: Final[tuple[Column[Compared], ...]] = (
    Column[Compared]("target", lambda row: Text(clean(row[0].target), "bold")),
    Column[Compared]("devices", lambda row: f"{row[0].device_count:,}" if row[0].device_count else "", "right"),
    Column[Compared]("mesh", lambda row: _write_mesh(row[1].mesh_shape) if row[1] else clean(row[0].reason or "")),
    *(
        Column[Compared](column.heading, functools.partial(_read_made, column.read), column.justify)
        for column in _PLANS[1:]
    ),
)

_REJECTED: Final = (
    Column[Rejected]("not", lambda each: _write_mesh(each.mesh_shape)),
    Column[Rejected]("reason", lambda each: clean(each.reason)),
    Column[Rejected]("", lambda each: clean(each.message)),
)
