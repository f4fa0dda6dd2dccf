"""`meshwright-agent plan`: a plan without a running agent, on a target or on this host.

Rule: the options and what is printed are those of `meshwright plan`; `--json` prints what `POST /mesh/plan` answers.
This host is looked at once, as an agent does at its start. Imported only for this command, since an agent that serves
needs no tables.
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any, Final

import typer

from meshwright._calls import calls
from meshwright.cli import EXIT_CODES
from meshwright.cli.arguments import (
    AllowUnusedOption,
    AttentionOption,
    AxisTypesOption,
    CodeOption,
    CountOption,
    DcnOption,
    DevicesOption,
    ExcludeOption,
    GlobalBatchOption,
    ImportanceOption,
    MemoryStrategyOption,
    MeshOption,
    ModelOption,
    OptimizerOption,
    OrderOption,
    OutputOption,
    PolicyOption,
    RematOption,
    SequenceOption,
    TargetOption,
    TopologyOption,
    TrainingOption,
    VerifyOption,
    WeightDtypeOption,
    build_plan_arguments,
    build_step_arguments,
    check_timeout,
    take_mesh,
)
from meshwright.cli.output import print_error
from meshwright.cli.plan import PlanOutput, answer_here, check_output, print_plans
from meshwright.cli.search import (
    AuditOption,
    ExplainOption,
    ExportOption,
    FallbackOption,
    PriceOption,
    SearchOption,
    TargetsOption,
    TopOption,
    build_search_arguments,
)
from meshwright.cli.session import Options, Session, open_client
from meshwright.errors import MeshwrightError
from meshwright.topology.assemble import build_target
from meshwright.topology.model import Topology
from meshwright.wire.mesh import Plans
from meshwright_agent.flags import read_settings
from meshwright_agent.look import look_at_host
from meshwright_agent.settings import Settings
from meshwright_agent.simulation import build_notice

app: Final = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def plan(
    mesh: MeshOption = None,
    target: TargetOption = None,
    topology: TopologyOption = None,
    devices: DevicesOption = None,
    count: CountOption = None,
    policy: PolicyOption = None,
    exclude: ExcludeOption = None,
    order: OrderOption = "planned",
    axis_types: AxisTypesOption = None,
    allow_unused: AllowUnusedOption = False,
    memory_strategy: MemoryStrategyOption = "balanced",
    dcn: DcnOption = None,
    importance: ImportanceOption = None,
    model: ModelOption = None,
    seq: SequenceOption = None,
    batch: GlobalBatchOption = None,
    remat: RematOption = None,
    attention: AttentionOption = None,
    weight_dtype: WeightDtypeOption = None,
    optimizer: OptimizerOption = None,
    training: TrainingOption = None,
    verify: VerifyOption = "none",
    search: SearchOption = None,
    top: TopOption = 3,
    explain: ExplainOption = False,
    targets: TargetsOption = None,
    price: PriceOption = None,
    audit: AuditOption = False,
    fallback: FallbackOption = False,
    export: ExportOption = None,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", callback=check_timeout, help="Seconds that a compile may take."),
    ] = None,
    cpu_devices: Annotated[int | None, typer.Option(help="Plan as an agent with N virtual CPU devices.")] = None,
    output: OutputOption = None,
    code: CodeOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what POST /mesh/plan answers, and no more.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
) -> None:
    """Plan a mesh without a running agent: on a target, or on this host, which is looked at once.

    With --model and --verify compile a child of this process compiles the training step.

    Exit codes: 0 a plan that fits · 1 infeasible, it does not fit, or --verify compile gave no word that it fits · 2
    usage, or no answer.
    """
    session = Session(Options(timeout_s=timeout_s, as_json=as_json, no_color=no_color), open_client)
    check_output(session, code, export)
    asked = take_mesh(None, mesh, is_searched=model is not None)
    try:
        step = build_step_arguments(
            model=model,
            training=training,
            verify=verify,
            sequence_length=seq,
            global_batch=batch,
            remat=remat,
            attention=attention,
            weight_dtype=weight_dtype,
            optimizer=optimizer,
        )
        arguments = build_plan_arguments(
            devices=devices,
            count=count,
            policy=policy,
            exclude=exclude,
            order=order,
            axis_types=axis_types,
            allow_unused=allow_unused,
            memory_strategy=memory_strategy,
            target=target,
            topology=topology,
            dcn=dcn,
            importance=importance,
        )
        arguments |= build_search_arguments(
            search=search,
            top=top,
            targets=targets,
            price=price,
            audit=audit,
            fallback=fallback,
            export=export,
            is_searched=asked is None,
        )
        plans = _answer(session, asked, {**arguments, **step}, cpu_devices)
        say = PlanOutput(
            asked, output=output, code=code, is_verified=verify != "none", is_explained=explain, export=export
        )
        status = print_plans(session, plans, say)
    except MeshwrightError as error:
        print_error(session, error)
        status = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    session.flush()
    raise typer.Exit(status)


def _answer(session: Session, mesh: str | None, arguments: dict[str, Any], cpu_devices: int | None) -> Plans:
    request = calls.parse_plan_request(calls.plans(mesh, **arguments))
    if request.target is not None or request.topology is not None or request.targets is not None:
        return answer_here(session, request)
    settings = read_settings(cpu_devices=cpu_devices)
    if settings.simulate is not None:
        notices = (build_notice(settings.simulate),)
        return answer_here(session, request, build_target(settings.simulate), notices=notices)
    return answer_here(session, request, lambda: _look(settings))


def _look(settings: Settings) -> Topology:
    return Topology.of(asyncio.run(look_at_host(settings, os.environ)))
