"""A search for the best mesh, on the command line: its options, the ranked table, and what a plan costs as bars.

Rule: figures are the plan's, in its order; nothing is reckoned here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from meshwright.cli.output import Column, build_table, clean, format_bytes, format_time
from meshwright.cli.session import Session
from meshwright.wire.mesh import Plan, Plans, Rejected

BAR_WIDTH: Final = 40
"""Characters of a bar that is the whole."""

SearchOption = Annotated[
    str | None,
    typer.Option("--search", metavar="RULES", help="Without a mesh: given sizes, tp=8, or greatest ones, 'tp<=8'."),
]
TopOption = Annotated[int, typer.Option("--top", min=1, max=32, help="Without a mesh: plans to show.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Without a mesh: say why other families lost.")]

_RULE: Final = re.compile(r"(dp|fsdp|tp|cp|ep|pp)\s*(=|<=)\s*([1-9]\d{0,11})", re.ASCII)


def read_search(text: str | None) -> dict[str, Any] | None:
    """Returns what a search may choose, as "tp=8,pp<=2" says it; None where nothing is said.

    Raises:
        typer.BadParameter: an entry is neither axis=size nor axis<=size, or an axis stands twice.
    """
    if text is None:
        return None
    found: dict[str, dict[str, int]] = {"axes": {}, "at_most": {}}
    for entry in text.split(","):
        match = _RULE.fullmatch(entry.strip())
        if match is None:
            said = f"{entry.strip()!r} says no axis=size and no axis<=size; axes are dp, fsdp, tp, cp, ep and pp"
            raise typer.BadParameter(f"{said}; write tp=8,pp=1 or 'tp<=8'", param_hint="--search")
        name, sign, size = match.groups()
        kind = found["axes" if sign == "=" else "at_most"]
        if name in kind:
            raise typer.BadParameter(f"{name}{sign} stands twice; give each axis once", param_hint="--search")
        kind[name] = int(size)
    return found


def print_ranking(session: Session, plans: Plans, *, is_explained: bool) -> None:
    """Prints the best plans, the fastest first, and where that is wanted or nothing fits why others lost."""
    if plans.plans:
        session.out.print(build_table(_PLANS, plans.plans))
        session.out.print()
    if is_explained or not plans.plans:
        session.out.print(build_table(_REJECTED, plans.rejected))
        session.out.print()


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

_REJECTED: Final = (
    Column[Rejected]("not", lambda each: _write_mesh(each.mesh_shape)),
    Column[Rejected]("reason", lambda each: clean(each.reason)),
    Column[Rejected]("", lambda each: clean(each.message)),
)
