"""A search for the best mesh, on the command line: its options, the ranked table, and what a plan costs as bars.

Rule: figures are the plan's, in its order; nothing is reckoned here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_args

import typer
from rich.text import Text

from meshwright.cli.output import Column, build_table, clean, format_bytes, format_time, print_error
from meshwright.cli.session import Session
from meshwright.errors import PlanInfeasibleError
from meshwright.wire.mesh import UNKNOWN_TARGET, ComparedTarget, ExportName, Fallback, Plan, Plans, Rejected
from meshwright.wire.model import Remat, WeightDtype

BAR_WIDTH: Final = 40
"""Characters of a bar that is the whole."""

SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="RULES",
        help="Without a mesh, what may be chosen: tp=8, 'tp<=8', remat=full+minimal, moments=float32+bfloat16.",
    ),
]
TopOption = Annotated[int, typer.Option("--top", min=1, max=32, help="Without a mesh: plans to show.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Without a mesh: say why other families lost.")]
TargetsOption = Annotated[
    str | None,
    typer.Option("--targets", metavar="T,T", help="Compare hardware: the best plan on each of 2*v6e:16x16,v5p:8x8x8."),
]
PriceOption = Annotated[
    str | None,
    typer.Option("--price", metavar="P", help="Of a device and hour: 4.2, or by target v5p:8x8x8=4.2,h100:8=2.5."),
]
AuditOption = Annotated[
    bool, typer.Option("--audit", help="With a mesh and a model: also the best mesh of these devices.")
]
FallbackOption = Annotated[
    bool, typer.Option("--fallback", help="Without a mesh: also plan for what is left when a device fails.")
]
ExportOption = Annotated[
    ExportName | None,
    typer.Option("--export", help="Print only this: JAX's mesh and PartitionSpecs, or MaxText's flags."),
]

_PRICE: Final = re.compile(r"(?:(?P<target>[^=,]+)=)?(?P<price>\d{1,7}(?:\.\d{1,9})?)", re.ASCII)
_RULE: Final = re.compile(r"(dp|fsdp|tp|cp|ep|pp)\s*(=|<=)\s*([1-9]\d{0,11})", re.ASCII)


Compared = tuple[ComparedTarget, Plan | None]
"""A target, and its plan."""


def read_search(text: str | None) -> dict[str, Any] | None:
    """Returns what a search may choose, as "tp=8,pp<=2,remat=full" says it; None where nothing is said.

    Raises:
        typer.BadParameter: an entry is neither a size of an axis nor a choice, or stands twice.
    """
    if text is None:
        return None
    found: dict[str, Any] = {"axes": {}, "at_most": {}}
    for entry in map(str.strip, text.split(",")):
        name, kind, value = _read_rule(entry)
        place = found if kind is None else found[kind]
        if name in place:
            raise typer.BadParameter(f"{entry!r} says again what stands before it; say it once", param_hint="--search")
        place[name] = value
    return found


def _read_rule(entry: str) -> tuple[str, str | None, int | tuple[str, ...]]:
    """Returns what a rule is about, in which part of `SearchSpec` it stands (None: in its own), and its value."""
    if match := _RULE.fullmatch(entry):
        name, sign, size = match.groups()
        return name, "axes" if sign == "=" else "at_most", int(size)
    name, _, said = entry.partition("=")
    choices = tuple(said.split("+"))
    if name.strip() in _CHOICES and set(choices) <= set(_CHOICES[name.strip()][1]):
        return _CHOICES[name.strip()][0], None, choices
    rule = "axes are dp, fsdp, tp, cp, ep and pp; remat is none, minimal or full; moments float32 or bfloat16"
    raise typer.BadParameter(f"{entry!r} is no rule: {rule}; write tp=8, 'tp<=8' or remat=full", param_hint="--search")


_CHOICES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "remat": ("remat", get_args(Remat)),
    "moments": ("moment_dtypes", get_args(WeightDtype)),
}
"""What --search calls a choice → the field of `SearchSpec`, and what it may be."""


def read_price(text: str | None) -> float | dict[str, float] | None:
    """Returns the price of one device and hour, as "4.2" says it, or by target, as "v5p:8x8x8=4.2,h100:8=2.5" does.

    Raises:
        typer.BadParameter: an entry is neither, both forms stand beside each other, or a target stands twice.
    """
    if text is None:
        return None
    found: dict[str, float] = {}
    for entry in text.split(","):
        match = _PRICE.fullmatch(entry.strip())
        target = (match["target"] or "").strip() if match else ""
        if match is None or float(match["price"]) <= 0 or target in found or (not target and "," in text):
            said = f"{entry.strip()!r} in {text[:80]!r} is no price of one device and hour"
            raise typer.BadParameter(f"{said}; write 4.2, or v5p:8x8x8=4.2,h100:8=2.5", param_hint="--price")
        found[target] = float(match["price"])
    return found.get("", found) if "" in found else found


def build_search_arguments(
    *,
    search: str | None,
    top: int,
    targets: str | None,
    price: str | None,
    audit: bool,
    fallback: bool,
    export: ExportName | None,
    is_searched: bool,
) -> dict[str, Any]:
    """Returns the arguments of `Client.plans` that these options say; none that nobody asked for.

    Args:
        search, top, targets, price, audit, fallback, export: the options.
        is_searched: no mesh is given.

    Raises:
        typer.BadParameter: an option is none of its language.
    """
    chosen = read_search(search)
    priced = read_price(price)
    if priced is not None:
        chosen = {**(chosen or {}), "price_per_device_hour": priced}
    said: dict[str, Any] = {
        "search": chosen,
        "targets": None if targets is None else tuple(entry.strip() for entry in targets.split(",")),
        "audit": audit or None,
        "fallback": fallback or None,
        "exports": None if export is None else (export,),
        "top": top if is_searched else None,
    }
    return {name: value for name, value in said.items() if value is not None}


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
