"""`meshwright plan`: a mesh on the host's devices or on a target, drawn, with what the job needs to make it real."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.arguments import choose_devices
from meshwright.cli.fleet import FleetOption, HostsOption, is_asked, plan_on_fleet
from meshwright.cli.leases import LEASE_VARIABLE
from meshwright.cli.plan_output import PlanOutput, print_plans
from meshwright.cli.progress import follow_compile, show_progress
from meshwright.cli.request_options import (
    ModelOption,
    RequestOption,
    SeqOption,
    TargetOption,
    TrainingOption,
    VerifyOption,
    build_request,
    list_fields,
)
from meshwright.cli.session import Session
from meshwright.wire.mesh import ExportName, PlanRequest, Plans


def show_plan(
    session: Session,
    mesh: Annotated[
        str | None, typer.Argument(help='The axes, outermost first: "dp:2,tp:-1"; one may be -1, the rest.')
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="0,1", help="These: local indices, uuids or PCI bus ids.")
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="Any N of them.")] = None,
    target: TargetOption = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Sequences in one optimizer step.")] = None,
    model: ModelOption = None,
    seq: SeqOption = None,
    training: TrainingOption = None,
    verify: VerifyOption = None,
    top: Annotated[int | None, typer.Option(min=1, max=32, help="Without a mesh: so many plans are shown; 3.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Without a mesh: say why other families lost.")] = False,
    targets: Annotated[
        str | None,
        typer.Option(metavar="T,T", help="Compare hardware: the best plan on each of 2*v6e:16x16,v5p:8x8x8."),
    ] = None,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="With a mesh and a model: also the best mesh of these devices."),
    ] = False,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Without a mesh: also plan for what is left when a device fails.")
    ] = False,
    export: Annotated[
        ExportName | None, typer.Option(help="Print only this: JAX's mesh and PartitionSpecs, or MaxText's flags.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Keep the plan, for MESHWRIGHT_PLAN.")
    ] = None,
    code: Annotated[bool, typer.Option("--code", help="Print only the Python that makes the mesh.")] = False,
    request: RequestOption = None,
    local: Annotated[
        bool, typer.Option("--local", help="Plan, and compile, here on a target or a topology; ask no agent.")
    ] = False,
    fleet: FleetOption = False,
    hosts: HostsOption = None,
) -> int:
    """Lay a mesh on the host's devices or on a target, and draw it; or find the best for a model.

    Without a mesh, --model and --batch find the fastest meshes that fit, with how long a step takes and what it needs;
    --explain says why other families of meshes lost.

    Says which device stands where, over which links each axis runs, and what the job should start with. With --model
    and --verify compile also what XLA's compiler says of the training step: whether it fits, and its collectives.
    --timeout bounds the wait for it; an agent's compile goes on.

    --request takes the JSON of POST /mesh/plan, which has more fields than there are options. `meshwright lease --plan`
    reserves the devices of a plan that -o kept.

    Exit codes: 0 a plan that fits · 1 infeasible, it does not fit, one of --targets does not exist, or --verify compile
    gave no word that it fits · 2 usage, or no answer.
    """
    if code and (session.as_json or export is not None):
        raise typer.BadParameter("it prints the mesh alone; leave --json and --export out", param_hint="--code")
    asked = build_request(
        PlanRequest,
        request,
        model=model,
        training=training,
        trained={"global_batch": batch, "sequence_length": seq},
        mesh=mesh,
        devices=choose_devices(devices, count, "--devices"),
        target=target,
        verify=verify,
        top=top,
        targets=None if targets is None else [entry.strip() for entry in targets.split(",")],
        audit=audit or None,
        fallback=fallback or None,
        exports=None if export is None else [export],
    )
    if asked.mesh is None and asked.model is None:
        raise typer.BadParameter("a plan needs a mesh, or a model to find one for; write dp:2,tp:-1", param_hint="MESH")
    say = PlanOutput(asked, export, output, is_explained=explain, is_code=code)
    if is_asked(session, fleet, hosts):
        if local:
            raise typer.BadParameter("it asks the agents of many hosts, --local does not", param_hint="--fleet")
        return print_plans(session, plan_on_fleet(session, asked, hosts), say)
    if local:
        return print_plans(session, _plan_here(session, asked), say)
    fields = list_fields(asked)
    if not (asked.target or asked.targets or asked.topology) and (own := os.environ.get(LEASE_VARIABLE)):
        fields.setdefault("lease", own)
    with session.open() as client:
        with follow_compile(session) as on_progress:
            plans = client.plans(**fields, on_progress=on_progress, timeout_s=session.options.timeout_s)
        return print_plans(session, plans, replace(say, url=client.base_url))


def _plan_here(session: Session, request: PlanRequest) -> Plans:
    """Returns what an agent would answer, planned in this process and compiled in a child of it."""
    if session.options.url is not None:
        raise typer.BadParameter("it asks no agent, and --url names one; give one of them", param_hint="--local")
    if request.verify == "none":
        from meshwright.planning.request import answer_request  # here, so that other commands do not wait for it

        return answer_request(request)
    from meshwright.compiling.process import LIMIT_S
    from meshwright.compiling.request import Limits, answer_plans

    limits = Limits(LIMIT_S if session.options.timeout_s is None else session.options.timeout_s)
    with show_progress(session) as on_progress:
        return answer_plans(request, limits=limits, on_progress=on_progress)
