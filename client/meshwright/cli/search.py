"""`meshwright search`: the best meshes for a model, ranked, on the host's devices or on targets, and why others lost.

Rule: figures are the plans', in their order; nothing is computed here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final

import typer
from rich.text import Text

from meshwright.cli.arguments import choose_devices
from meshwright.cli.leases import add_own_lease
from meshwright.cli.output import Column, build_table, clean, format_bytes, print_error, print_notices
from meshwright.cli.plan_output import PlanOutput, print_best, write_step
from meshwright.cli.progress import answer_plans_here, follow_compile
from meshwright.cli.request_options import (
    BatchOption,
    CompileOption,
    CountOption,
    DevicesOption,
    ExportOption,
    ModelOption,
    OfflineOption,
    RequestOption,
    SaveOption,
    SeqOption,
    build_request,
    list_exports,
    suggest_offline,
)
from meshwright.cli.session import FAILED, Session
from meshwright.errors import PlanInfeasibleError
from meshwright.planning.parallelism import write_mesh
from meshwright.wire.mesh import EQUAL_WITHIN, UNKNOWN_TARGET, ComparedTarget, Plan, Plans, Rejected, SearchRequest

Compared = tuple[ComparedTarget, Plan | None]
"""A target, and its plan."""


def search_mesh(
    session: Session,
    model: ModelOption = None,
    batch: BatchOption = None,
    seq: SeqOption = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="Target hardware: 64*h100:8. Several are compared."),
    ] = None,
    devices: DevicesOption = None,
    count: CountOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why other families of meshes lost.")] = False,
    fallback: Annotated[bool, typer.Option("--fallback", help="Also plan for what is left if a device fails.")] = False,
    compiled: CompileOption = False,
    export: ExportOption = None,
    save: SaveOption = None,
    request: RequestOption = None,
    offline: OfflineOption = False,
) -> int:
    """Find the meshes on which a model's step is fastest, of those that fit, with how long it takes and what it needs.

    On the host's devices, or on --target; of several targets the best plan on each, by price where the request has one.
    The best plan is drawn as `meshwright plan` draws it; --explain says why other families of meshes lost. With
    --compile also what XLA's compiler says of the plans' steps. --timeout bounds the wait for it; an agent's
    compile goes on.

    --request takes the JSON of POST /mesh/search, which has more fields than there are options.

    Exit codes: 0 a plan that fits · 1 infeasible, nothing fits, one of several targets does not exist, or --compile
    gave no word that it fits · 2 usage, or no answer.
    """
    asked = build_request(
        SearchRequest,
        request,
        model=model,
        trained={"global_batch_size": batch, "seq_len": seq},
        targets=target or None,
        devices=choose_devices(devices, count, "--devices"),
        fallback=fallback or None,
        compile=True if compiled else None,
        exports=list_exports(export),
    )
    say = PlanOutput("the search", export, save, wants_compile=asked.compile)
    if offline:
        plans = answer_plans_here(session, asked)
    else:
        asked = add_own_lease(asked)
        with suggest_offline(asked.targets), session.open() as client:
            with follow_compile(session, asked) as on_progress:
                plans = client.search(asked, on_progress=on_progress, timeout_s=session.options.timeout_s)
            say = replace(say, url=client.base_url)
    return _print_found(session, plans, say, is_explained=explain)


def _print_found(session: Session, plans: Plans, say: PlanOutput, *, is_explained: bool) -> int:
    is_unknown = _print_unknown_targets(session, plans)
    if say.export is None and not session.as_json:
        if not plans.plans:
            print_notices(session, plans.warnings)
        _print_ranking(session, plans, is_explained=is_explained)
        if not plans.plans:
            return FAILED
    code = print_best(session, plans, say)
    return FAILED if is_unknown else code


def _print_ranking(session: Session, plans: Plans, *, is_explained: bool) -> None:
    """Prints the best plans, the fastest first. If requested or if nothing fits, also prints why others were
    rejected."""
    if plans.comparison:
        _print_comparison(session, plans, is_explained=is_explained)
        return
    if plans.plans:
        equal = [plan for plan in plans.plans if _is_equal(plan, plans.plans[0])]
        session.out.print(build_table(_PLANS, plans.plans))
        if len(equal) > 1:
            which = "all" if len(equal) == len(plans.plans) else f"{len(equal)} of them"
            session.print_lines(f"{which} are equal within the planner's error of {EQUAL_WITHIN:.0%}: simplest first")
        session.out.print()
    if is_explained or not plans.plans:
        session.out.print(build_table(_REJECTED, plans.rejected))
        session.out.print()


def _is_equal(plan: Plan, best: Plan) -> bool:
    if plan.step_time is None or best.step_time is None:
        return False
    return abs(plan.step_time.total_s / best.step_time.total_s - 1) <= EQUAL_WITHIN


def _print_comparison(session: Session, plans: Plans, *, is_explained: bool) -> None:
    """Prints the targets, the best first, with their messages; if requested also why meshes were rejected."""
    made = {plan.target: plan for plan in plans.plans}
    rows = [(each, made.get(each.target)) for each in plans.comparison]
    session.out.print(build_table(_COMPARED, rows))
    compared = [each for each in plans.comparison if each.reason != UNKNOWN_TARGET]
    session.print_lines("", *(f"{clean(each.target)}: {clean(each.message)}" for each in compared), "")
    for each in plans.comparison:
        if each.rejected and (is_explained or each.reason):
            session.print_lines(f"on {clean(each.target)}")
            session.out.print(build_table(_REJECTED, each.rejected))
            session.out.print()


def _print_unknown_targets(session: Session, plans: Plans) -> bool:
    """Prints the unknown targets on stderr, with similar names; returns whether there are any."""
    unknown = [each for each in plans.comparison if each.reason == UNKNOWN_TARGET]
    for each in unknown:
        print_error(session, PlanInfeasibleError(each.message))
    return bool(unknown)


def _read_made(read: Callable[[Plan], str | Text], row: Compared) -> str | Text:
    return "" if row[1] is None else read(row[1])


def _write_batch(plan: Plan) -> str:
    schedule = plan.schedule
    return "" if schedule is None else f"{schedule.gradient_accumulation_steps} × {schedule.micro_batch_size}"


def _write_memory(plan: Plan) -> Text:
    if plan.memory is None:
        return Text("")
    style = "" if plan.memory.fits is not False else "bold red"
    return Text(format_bytes(plan.memory.per_device_bytes), style)


_PLANS: Final = (
    Column[Plan]("mesh", lambda plan: Text(clean(write_mesh(plan.mesh_shape)), "bold")),
    Column[Plan]("micro-batch", _write_batch, "right"),
    Column[Plan]("remat", lambda plan: plan.schedule.remat if plan.schedule else ""),
    Column[Plan]("step time", write_step, "right"),
    Column[Plan]("tokens/s", lambda plan: f"{plan.tokens_per_s:,.0f}" if plan.tokens_per_s else "", "right"),
    Column[Plan]("MFU", lambda plan: f"{plan.mfu:.1%}" if plan.mfu else "", "right"),
    Column[Plan]("memory", _write_memory, "right"),
    Column[Plan]("most in one pass", lambda plan: f"{plan.largest_batch:,}" if plan.largest_batch else "", "right"),
    Column[Plan](
        "per 1M tokens",
        lambda plan: f"{plan.price_per_million_tokens:.4g}" if plan.price_per_million_tokens else "",
        "right",
    ),
)

_COMPARED: Final[tuple[Column[Compared], ...]] = (
    Column[Compared]("target", lambda row: Text(clean(row[0].target), "bold")),
    Column[Compared]("devices", lambda row: f"{math.prod(row[1].mesh_shape.values()):,}" if row[1] else "", "right"),
    Column[Compared]("mesh", lambda row: write_mesh(row[1].mesh_shape) if row[1] else clean(row[0].reason or "")),
    *(
        Column[Compared](column.heading, functools.partial(_read_made, column.read), column.justify)
        for column in _PLANS[1:]
    ),
)

_REJECTED: Final = (
    Column[Rejected]("rejected mesh", lambda each: write_mesh(each.mesh_shape)),
    Column[Rejected]("reason", lambda each: clean(each.reason)),
    Column[Rejected]("", lambda each: clean(each.message)),
)
