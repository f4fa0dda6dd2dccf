"""`meshwright plan`: a mesh on the host's devices or on a target, drawn, with what the job needs to make it real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from meshwright._calls import calls
from meshwright._calls.calls import take_best
from meshwright._calls.settings import DEFAULT_URL
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
    take_mesh,
)
from meshwright.cli.audit import write_audit
from meshwright.cli.drawing import draw_mesh
from meshwright.cli.fleet import FleetOption, HostsOption, is_asked, plan_on_fleet
from meshwright.cli.output import Column, build_table, clean, format_bytes, format_rate, print_notices
from meshwright.cli.progress import follow_compile, show_progress
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
    print_ranking,
    write_costs,
    write_fallback,
)
from meshwright.cli.session import FAILED, OK, Session
from meshwright.cli.verification import judge, print_refusal, print_verification
from meshwright.environment import format_exports
from meshwright.errors import SettingsError
from meshwright.wire.base import Notice
from meshwright.wire.mesh import DeviceRef, ExportName, Plan, PlanAxis, PlanRequest, Plans, PlanScore

if TYPE_CHECKING:
    from meshwright.planning.request_topology import Here

MAX_DRAWN: Final = 256
"""Devices beyond which a drawing helps nobody."""


def show_plan(
    session: Session,
    mesh: Annotated[
        str | None, typer.Argument(help='The axes, outermost first: "dp:2,tp:-1"; one may be -1, the rest.')
    ] = None,
    mesh_option: MeshOption = None,
    devices: DevicesOption = None,
    count: CountOption = None,
    policy: PolicyOption = None,
    exclude: ExcludeOption = None,
    order: OrderOption = "planned",
    axis_types: AxisTypesOption = None,
    allow_unused: AllowUnusedOption = False,
    memory_strategy: MemoryStrategyOption = "balanced",
    target: TargetOption = None,
    topology: TopologyOption = None,
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
    local: Annotated[
        bool, typer.Option("--local", help="Plan, and compile, here on --target or --topology; ask no agent.")
    ] = False,
    fleet: FleetOption = False,
    hosts: HostsOption = None,
    output: OutputOption = None,
    code: CodeOption = False,
) -> int:
    """Lay a mesh on the host's devices, on a target or on kept topologies, and draw it; or find the best for a model.

    Without a mesh, --model and --batch find the fastest meshes that fit, with how long a step takes and what it needs;
    --explain says why other families of meshes lost.

    Says which device stands where, over which links each axis runs, and what the job should start with. With --model
    and --verify compile also what XLA's compiler says of the training step: whether it fits, and its collectives.
    --timeout bounds the wait for it; an agent's compile goes on.

    Exit codes: 0 a plan that fits · 1 infeasible, it does not fit, or --verify compile gave no word that it fits · 2
    usage, or no answer.
    """
    check_output(session, code, export)
    asked = take_mesh(mesh, mesh_option, is_searched=model is not None)
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
    say = PlanOutput(asked, output=output, code=code, is_verified=verify != "none", is_explained=explain, export=export)
    if is_asked(session, fleet, hosts):
        _check_fleet(step)
        asked = asked or ""  # fleets plan no models, so that a mesh is there
        return print_plans(session, plan_on_fleet(session, asked, {**arguments, "local": local}, hosts), say)
    if local:
        return print_plans(session, _plan_here(session, asked, {**arguments, **step}), say)
    with follow_compile(session) as on_progress, session.open() as client:
        limit_s = session.options.timeout_s
        plans = client.plans(asked, **arguments, **step, on_progress=on_progress, timeout_s=limit_s)
        host = client.base_url
    return print_plans(session, plans, replace(say, url=host))


@dataclass(frozen=True)
class PlanOutput:
    """How plans are printed.

    Attributes:
        mesh: as it was asked for; None: the best for a model.
        output: the file to keep the plan in.
        code: print only the Python.
        url: the agent that answered; None: the plan was made in this process, and no agent knows it.
        is_verified: a compile was asked for, so that only its yes is one.
        is_explained: say why other meshes lost.
        export: print only this.
    """

    mesh: str | None
    output: Path | None = None
    code: bool = False
    url: str | None = None
    is_verified: bool = False
    is_explained: bool = False
    export: ExportName | None = None


def _check_fleet(step: Mapping[str, Any]) -> None:
    if step["model"] is not None:
        raise typer.BadParameter(
            "plans of a fleet know no model; plan on a target, as in --target 64*h100:8", param_hint="--model"
        )


def check_output(session: Session, code: bool, export: ExportName | None) -> None:
    """Passes if what shall be printed is one thing.

    Raises:
        typer.BadParameter: --code stands beside --json or --export.
    """
    if code and session.as_json:
        raise typer.BadParameter("it prints Python, --json prints JSON; give one of them", param_hint="--code")
    if code and export is not None:
        raise typer.BadParameter(f"it prints the mesh alone, --export {export} more; give one", param_hint="--code")


def _plan_here(session: Session, mesh: str | None, arguments: dict[str, Any]) -> Plans:
    if session.options.url is not None:
        raise typer.BadParameter("it asks no agent, and --url names one; give one of them", param_hint="--local")
    return answer_here(session, calls.parse_plan_request(calls.plans(mesh, **arguments)))


def answer_here(session: Session, request: PlanRequest, here: Here = None, notices: tuple[Notice, ...] = ()) -> Plans:
    """Returns what an agent would answer, planned in this process and compiled in a child of it.

    Raises:
        MeshwrightError: as `Client.plans`.
    """
    if request.verify == "none":
        from meshwright.planning.request import answer_request  # here, so that other commands do not wait for it

        return answer_request(request, here, notices=notices)
    from meshwright.compiling.child import LIMIT_S
    from meshwright.compiling.request import Limits, answer_plans

    limits = Limits(LIMIT_S if session.options.timeout_s is None else session.options.timeout_s)
    with show_progress(session) as on_progress:
        return answer_plans(request, here, notices=notices, limits=limits, on_progress=on_progress)


def print_plans(session: Session, plans: Plans, say: PlanOutput) -> int:
    """Prints an answer as the options want it, keeps it in a file where they name one, and returns the exit code."""
    is_sent = say.url is not None
    text = plans.model_dump_json(exclude_unset=is_sent)  # what an agent sent: no field more, no field less
    if session.as_json:
        session.print_lines(text)
        return _judge(plans, text, say)
    if (say.mesh is None or plans.comparison) and not say.code and say.export is None:
        print_ranking(session, plans, is_explained=say.is_explained)
        if not plans.plans:
            print_notices(session, plans.warnings)
            return FAILED
    best = take_best(plans, asked=f"mesh {say.mesh}" if say.mesh else "the search", host=say.url or "")
    if say.code or say.export is not None:
        session.print_lines((best.exports[say.export] if say.export else best.code).rstrip("\n"))
        if best.verification is not None:
            print_refusal(session, best.verification)
    else:
        _print_plan(session, best, build_exports(best, say.output, say.url), is_kept=say.output is not None or is_sent)
        if plans.fallback is not None:
            session.print_lines("", *write_fallback(plans.fallback))
    print_notices(session, best.warnings)
    return _judge(plans, text, say)


def _judge(plans: Plans, text: str, say: PlanOutput) -> int:
    """Writes the plan where one is wanted and there, and returns the exit code."""
    if not plans.plans:
        return FAILED
    if say.output is not None:
        _write(text, say.output)
    best = plans.plans[0]
    if say.is_verified and judge([best.verification]) != OK:
        return FAILED
    return OK if _fits(best) else FAILED


def _fits(plan: Plan) -> bool:
    """False only where the plan says so: without a model nothing is known of its memory."""
    if plan.verification is not None and plan.verification.status == "does_not_fit":
        return False
    return plan.memory is None or plan.memory.fits is not False


def _write(text: str, path: Path) -> None:
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"-o {path}: cannot be written: {error.strerror}; name a file in a folder that exists"
        ) from None


def _print_plan(session: Session, plan: Plan, exports: tuple[str, ...], *, is_kept: bool) -> None:
    size = " × ".join(f"{clean(name)}:{size}" for name, size in plan.mesh_shape.items())
    session.out.print(Text.assemble((size, "bold"), f"  {plan.platform}  ", (clean(plan.fingerprint), "cyan")))
    session.out.print()
    if plan.verification is not None:
        print_verification(session, plan.verification)
    _print_memory(session, plan)
    if audit := write_audit(plan):
        session.print_lines(*audit, "")
    session.out.print(build_table(_build_columns(plan), plan.axes))
    session.out.print()
    if told := _tell_score(plan.score):
        session.print_lines(told, "")
    if plan.devices is not None:
        session.print_lines(*_draw(plan, plan.devices, session.out.width), "")
    session.print_lines("start the job with", *(f"  {line}" for line in exports), "")
    if not is_kept:
        session.print_lines("no agent knows this plan: keep it with -o FILE, and set MESHWRIGHT_PLAN to it", "")
    session.print_lines("and in it", "  from meshwright import load_plan", "  from meshwright.mesh import build_mesh")
    session.print_lines("  mesh = build_mesh(load_plan())")


def _tell_score(score: PlanScore | None) -> str:
    """Returns what the order costs beside JAX's own; "" where one is not known, or order does not matter."""
    if score is None or score.cost is None or score.jax_cost is None:
        return ""
    parts = [f"cost {score.cost:.3g} (JAX's own order {score.jax_cost:.3g})"]
    if score.hops_max is not None:
        parts.append(f"longest step {score.hops_max} (JAX's {score.jax_hops_max})")
    if score.crossing:
        parts.append(f"between granules {score.crossing:.3g} (JAX's {score.jax_crossing:.3g})")
    return ", ".join(parts)


def _print_memory(session: Session, plan: Plan) -> None:
    if plan.memory is None:
        return
    verdict = Text("fits", "green") if plan.memory.fits is not False else Text("does not fit", "bold red")
    needed, there = format_bytes(plan.memory.per_device_bytes), format_bytes(plan.memory.capacity_bytes)
    session.out.print(Text(f"memory a device, as reckoned: {needed} of {there or '?'}: ") + verdict)
    session.print_lines(*write_costs(plan), "")


def _build_columns(plan: Plan) -> tuple[Column[PlanAxis], ...]:
    return (
        Column("axis", lambda axis: axis.name),
        Column("size", lambda axis: str(axis.size), "right"),
        Column("type", lambda axis: plan.axis_types.get(axis.name, "")),
        Column("link", lambda axis: f"{axis.link} ×{axis.dcn_size}" if axis.dcn_size > 1 else axis.link or ""),
        Column("group", lambda axis: "×".join(map(str, axis.group_shape or ()))),
        Column(
            "hops",
            lambda axis: "" if axis.neighbour_hops_max is None else str(axis.neighbour_hops_max),
            "right",
        ),
        Column("rings", lambda axis: "" if axis.rings is None else str(axis.rings), "right"),
        Column("bandwidth", lambda axis: format_rate(axis.bandwidth_bytes_per_s, "B/s"), "right"),
        Column("basis", lambda axis: axis.basis or ""),
    )


def _draw(plan: Plan, devices: tuple[DeviceRef, ...], width: int) -> tuple[str, ...]:
    if len(devices) > MAX_DRAWN:
        return (f"{len(devices)} devices: too many to draw; --json lists them",)
    return draw_mesh({clean(name): size for name, size in plan.mesh_shape.items()}, build_labels(devices), width=width)


def build_labels(devices: tuple[DeviceRef, ...]) -> list[str]:
    """Returns a short name for each device: its local index; where there are several hosts with its host, or as a chip
    of a slice by its coordinates."""
    if len({device.host for device in devices}) == 1:
        return [clean(device.local_index) for device in devices]
    if any(device.coords is None for device in devices):
        return [clean(f"{device.host}/{device.local_index}") for device in devices]
    slices = len({device.granule for device in devices}) > 1
    cores = len({device.core_on_chip or 0 for device in devices}) > 1
    return [_name_chip(device, slices=slices, cores=cores) for device in devices]


def _name_chip(device: DeviceRef, *, slices: bool, cores: bool) -> str:
    """Returns "3,0,1", of several slices "s1:3,0,1", of several cores "3,0,1.0"."""
    place = ",".join(map(str, device.coords or ()))
    return (f"s{device.granule}:" if slices else "") + place + (f".{device.core_on_chip or 0}" if cores else "")


def build_exports(plan: Plan, output: Path | None, url: str | None) -> tuple[str, ...]:
    """Returns the lines that a job is started with: the plan's environment, and where to find the plan.

    Args:
        plan: the plan.
        output: the file that keeps it; None: the job asks the agent for it.
        url: the agent's address; left out where the job would ask there anyway; None: no agent knows the plan.
    """
    if output is not None:
        return format_exports({**plan.environment, "MESHWRIGHT_PLAN": str(output.absolute())})
    if url is None:
        return format_exports(plan.environment)
    agent = {} if url == DEFAULT_URL else {"MESHWRIGHT_URL": url}
    return format_exports({**plan.environment, **agent, "MESHWRIGHT_PLAN": plan.fingerprint})
