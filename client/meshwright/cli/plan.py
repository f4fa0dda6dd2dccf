"""`meshwright plan`: a mesh on the host's devices or on a target, as a drawing, with the data that the job needs to
build it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from meshwright.cli.arguments import choose_devices
from meshwright.cli.fleet import HostsOption, is_asked, plan_on_fleet
from meshwright.cli.leases import add_own_lease
from meshwright.cli.plan_output import PlanOutput, print_best
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
    TargetOption,
    build_request,
    list_exports,
    suggest_offline,
    take_target,
)
from meshwright.cli.session import Session
from meshwright.wire.mesh import Plan, PlanRequest, Plans


def show_plan(
    session: Session,
    mesh: Annotated[
        str | None, typer.Argument(help='The axes, outermost first: "dp:2,tp:-1"; one may be -1, the rest.')
    ] = None,
    target: TargetOption = None,
    devices: DevicesOption = None,
    count: CountOption = None,
    model: ModelOption = None,
    batch: BatchOption = None,
    seq: SeqOption = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="With a model and its training: also the best mesh of these devices.")
    ] = False,
    compiled: CompileOption = False,
    export: ExportOption = None,
    save: SaveOption = None,
    request: RequestOption = None,
    offline: OfflineOption = False,
    hosts: HostsOption = None,
) -> int:
    """Lay a mesh on the host's devices or on a target, and draw it. `meshwright search` finds the best for a model.

    Says which device stands where, over which links each axis runs, and what the job should start with. With --model
    and --compile also what XLA's compiler says of the training step: whether it fits, and its collectives.
    --timeout bounds the wait for it; an agent's compile goes on.

    --request takes the JSON of POST /mesh/plan, which has more fields than there are options. `meshwright lease create
    --plan` reserves the devices of a plan that --save kept.

    Exit codes: 0 a plan that fits · 1 infeasible, it does not fit, or --compile gave no word that it fits ·
    2 usage, or no answer.
    """
    if mesh is None and request is None:
        message = "a plan needs a mesh; write dp:2,tp:-1, or find one: meshwright search --model …"
        raise typer.BadParameter(message, param_hint="MESH")
    asked = build_request(
        PlanRequest,
        request,
        model=model,
        trained={"global_batch_size": batch, "seq_len": seq},
        mesh=mesh,
        devices=choose_devices(devices, count, "--devices"),
        target=take_target(target),
        audit=audit or None,
        compile=True if compiled else None,
        exports=list_exports(export),
    )
    say = PlanOutput(f"mesh {asked.mesh}", export, save, wants_compile=asked.compile)
    if is_asked(session, hosts):
        if offline:
            raise typer.BadParameter("it asks the agents of these hosts, --offline does not", param_hint="--hosts")
        return print_best(session, _frame(plan_on_fleet(session, add_own_lease(asked), hosts)), say)
    if offline:
        return print_best(session, answer_plans_here(session, asked), say)
    asked = add_own_lease(asked)
    with suggest_offline(asked.target), session.open() as client, follow_compile(session, asked) as on_progress:
        plan = client.plan(asked, on_progress=on_progress, timeout_s=session.options.timeout_s)
        say = replace(say, url=client.base_url)
    return print_best(session, _frame(plan), say)


def _frame(plan: Plan) -> Plans:
    """Returns a plan in the reply that an agent gives, with all its fields."""
    return Plans(plans=(plan,), rejected=(), comparison=(), fallback=None, warnings=())
