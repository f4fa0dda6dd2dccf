"""`meshwright batch-size`: how large a batch, by table, roofline, cost model or compiler; and the verdict on one."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.text import Text

from meshwright._client.requests import print_mesh
from meshwright.cli.compiling import find_exit_code, print_batch
from meshwright.cli.output import Column, build_table, clean, format_bytes, format_time, print_notices, print_table
from meshwright.cli.progress import answer_here, follow_compile
from meshwright.cli.request_options import (
    CompileOption,
    ModelOption,
    OfflineOption,
    RequestOption,
    SeqOption,
    TargetOption,
    build_request,
    suggest_offline,
    take_target,
)
from meshwright.cli.session import FAILED, OK, Session
from meshwright.wire.batch_size import (
    BatchSize,
    BatchSizeRequest,
    BatchSizeTable,
    EstimatedBatch,
    PricedBatch,
    Roofline,
)
from meshwright.wire.mesh import Plan

LEVEL_STYLES: Final = {"ok": "green", "below_critical": "yellow", "below_minimum": "bold red"}


def show_batch_size(
    session: Session,
    hardware: Annotated[
        str | None, typer.Option(metavar="NAME", help="h100, tpu_v5e, a JAX device kind, …; without: the host's own.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--per-device-batch-size", metavar="N", help="Check these tokens of a device.")
    ] = None,
    model: ModelOption = None,
    seq: SeqOption = None,
    compiled: CompileOption = False,
    mesh: Annotated[str | None, typer.Option(metavar="MESH", help='The axes, outermost first: "dp:2,tp:-1".')] = None,
    target: TargetOption = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A plan's file, or its fingerprint (of the agent's): for --mesh and --target."
        ),
    ] = None,
    request: RequestOption = None,
    offline: OfflineOption = False,
) -> int:
    """Say how many tokens a device needs at a time, and why; with --model, how many sequences its step should have.

    For a model, batches are priced on --mesh, or on the fastest mesh that fits: the recommended one is the least near
    the most tokens/s. With --compile the compiler is asked instead, a few times, for the
    largest batch that fits. --timeout bounds the wait for it; an agent's compile goes on.

    --request takes the JSON of POST /batch-size, which has more fields than there are options.

    Exit codes: 0 answered, and the batch is valid · 1 the batch is below the minimum, none fits, or no step can be
    estimated or compiled on such devices · 2 usage (also a name that no table knows), or no answer.
    """
    from meshwright._reference import find_plan  # here, so that --help need not wait for it

    made = None if plan is None else find_plan(plan)
    fingerprint = made.fingerprint if isinstance(made, Plan) else made
    if offline and isinstance(made, Plan) and mesh is None:
        mesh, fingerprint = print_mesh(made.mesh_shape), None  # the file has all that an agent would look up
    asked = build_request(
        BatchSizeRequest,
        request,
        model=model,
        trained={"seq_len": seq},
        hardware=hardware,
        per_device_batch_size=batch,
        compile=True if compiled else None,
        mesh=mesh,
        target=take_target(target) or (made.target if isinstance(made, Plan) else None),
        plan=fingerprint,
    )
    if offline:
        from meshwright.compiling.request import answer_batch  # here, so that other commands do not wait for it

        reply = answer_here(session, answer_batch, asked)
    else:
        with suggest_offline(asked.target), follow_compile(session, asked) as on_progress, session.open() as client:
            reply = client.batch_size(asked, on_progress=on_progress, timeout_s=session.options.timeout_s)
    if session.as_json:
        session.print_lines(reply.model_dump_json(exclude_unset=not offline))  # exactly the fields that an agent sent
    else:
        _print_sizes(session, reply)
    if asked.compile and find_exit_code(reply.compiled.verification if reply.compiled else None) != OK:
        return FAILED
    if reply.estimated and reply.estimated.recommended is None:
        return FAILED
    return FAILED if reply.validation and reply.validation.code == "below_minimum" else OK


def _print_sizes(session: Session, reply: BatchSize) -> None:
    if reply.estimated:
        _print_estimate(session, reply.estimated)
    elif reply.compiled:
        print_batch(session, reply.compiled)
    else:
        _print_table(session, reply)
    if found := reply.validation:
        session.out.print(Text(clean(found.message), LEVEL_STYLES.get(found.code, "")), soft_wrap=True)
    has_table = not (reply.estimated or reply.compiled)
    print_notices(session, [each for each in reply.warnings if has_table or each.code != "table_differs_from_roofline"])


def _print_table(session: Session, reply: BatchSize) -> None:
    chip = f" ({clean(reply.chip)})" if reply.chip else ""
    session.out.print(Text.assemble((clean(reply.hardware_type), "bold"), f"{chip}, {reply.basis}: tokens a device\n"))
    session.out.print(build_table(COLUMNS, [reply.table]))
    if reply.table.notes:
        session.out.print(f"\n{clean(reply.table.notes)}", soft_wrap=True)
    _print_roofline(session, reply.roofline)


COLUMNS: Final[tuple[Column[BatchSizeTable], ...]] = (
    Column("min", lambda table: str(table.min_batch_size), "right"),
    Column("optimal", lambda table: str(table.optimal_batch_size), "right"),
    Column("critical", lambda table: str(table.critical_batch_size), "right"),
)


def _print_roofline(session: Session, roofline: Roofline | None) -> None:
    if roofline is None:
        session.out.print("roofline: no figure of this hardware is known")
        return
    line = f"roofline: {roofline.critical_batch_tokens:.0f} tokens a device\n  {clean(roofline.derivation)}"
    session.out.print(line, soft_wrap=True)


# ---- the batch of a model's step ------------------------------------------------------------------------------------


def _print_estimate(session: Session, found: EstimatedBatch) -> None:
    """Prints the recommended batch with its reason, and the cost of other batches."""
    style = "bold" if found.recommended is not None else "bold red"
    session.out.print(Text(clean(found.message), style), soft_wrap=True)
    if found.recommended is None:
        session.print_lines("  hint: leave --mesh out to search for one that fits, or name a larger target")
    print_table(session, BATCHES, found.batches)


BATCHES: Final[tuple[Column[PricedBatch], ...]] = (
    Column("sequences a step", lambda row: f"{row.schedule.global_batch_size:,}", "right"),
    Column("step time", lambda row: format_time(row.step_s), "right"),
    Column("tokens/s", lambda row: f"{row.tokens_per_s:,.0f}", "right"),
    Column("memory", lambda row: format_bytes(row.memory_bytes), "right"),
    Column("micro-batches", lambda row: f"{row.schedule.gradient_accumulation_steps:,}", "right"),
    Column("remat", lambda row: clean(row.schedule.remat)),
    Column("most time in", lambda row: clean(row.limit)),
)
