"""`meshwright plan`: a mesh on the host's devices or on a target, drawn, with what the job needs to make it real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from meshwright._calls import calls
from meshwright._calls.calls import take_best
from meshwright._calls.settings import DEFAULT_URL
from meshwright.cli.arguments import (
    AllowUnusedOption,
    AxisTypesOption,
    CodeOption,
    CountOption,
    DcnOption,
    DevicesOption,
    ExcludeOption,
    ImportanceOption,
    MemoryStrategyOption,
    OrderOption,
    OutputOption,
    PolicyOption,
    TargetOption,
    TopologyOption,
    build_plan_arguments,
)
from meshwright.cli.drawing import draw_mesh
from meshwright.cli.fleet import FleetOption, HostsOption, is_asked, plan_on_fleet
from meshwright.cli.output import Column, build_table, clean, format_bytes, format_rate, print_notices
from meshwright.cli.session import FAILED, OK, Session
from meshwright.environment import format_exports
from meshwright.errors import SettingsError
from meshwright.wire.mesh import DeviceRef, Plan, PlanAxis, Plans, PlanScore

MAX_DRAWN: Final = 256
"""Devices beyond which a drawing helps nobody."""


def show_plan(
    session: Session,
    mesh: Annotated[str, typer.Argument(help='The axes, outermost first: "dp:2,tp:-1"; one may be -1, the rest.')],
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
    local: Annotated[
        bool, typer.Option("--local", help="Plan in this process, on --target or --topology; ask no agent.")
    ] = False,
    fleet: FleetOption = False,
    hosts: HostsOption = None,
    output: OutputOption = None,
    code: CodeOption = False,
) -> int:
    """Lay a mesh on the host's devices, on a target or on kept topologies, and draw it.

    Says which device stands where, over which links each axis runs, and what the job should start with.

    Exit codes: 0 a plan that fits · 1 infeasible, or it does not fit · 2 usage, or no answer.
    """
    check_output(session, code)
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
    if is_asked(session, fleet, hosts):
        found = plan_on_fleet(session, mesh, {**arguments, "local": local}, hosts)
        return print_plans(session, found, mesh, output=output, code=code)
    if local:
        return print_plans(session, _plan_here(session, mesh, arguments), mesh, output=output, code=code)
    with session.open() as client:
        plans, host = client.plans(mesh, **arguments), client.base_url
    return print_plans(session, plans, mesh, output=output, code=code, url=host)


def check_output(session: Session, code: bool) -> None:
    """Passes if what shall be printed is one thing.

    Raises:
        typer.BadParameter: --code stands beside --json.
    """
    if code and session.as_json:
        raise typer.BadParameter("it prints Python, --json prints JSON; give one of them", param_hint="--code")


def _plan_here(session: Session, mesh: str, arguments: dict[str, Any]) -> Plans:
    from meshwright.planning.request import answer_request  # here, so that other commands do not wait for the planner

    if session.options.url is not None:
        raise typer.BadParameter("it asks no agent, and --url names one; give one of them", param_hint="--local")
    return answer_request(calls.parse_plan_request(calls.plans(mesh, **arguments)))


def print_plans(
    session: Session, plans: Plans, mesh: str, *, output: Path | None, code: bool, url: str | None = None
) -> int:
    """Prints an answer as the options want it, keeps it in `output`, and returns the exit code.

    Args:
        session: where to print.
        plans: what an agent, or this process, answers.
        mesh: as it was asked for.
        output: the file to keep the plan in.
        code: print only the Python.
        url: the agent that answered; None: the plan was made in this process, and no agent knows it.
    """
    text = plans.model_dump_json(exclude_unset=url is not None)  # what an agent sent: no field more, no field less
    if session.as_json:
        session.print_lines(text)
        return _judge(plans, text, output)
    best = take_best(plans, asked=f"mesh {mesh}", host=url or "")
    if code:
        session.print_lines(best.code.rstrip("\n"))
    else:
        _print_plan(session, best, build_exports(best, output, url), is_kept=output is not None or url is not None)
    print_notices(session, best.warnings)
    return _judge(plans, text, output)


def _judge(plans: Plans, text: str, output: Path | None) -> int:
    """Writes the plan where one is wanted and there, and returns the exit code."""
    if not plans.plans:
        return FAILED
    if output is not None:
        _write(text, output)
    return OK if _fits(plans.plans[0]) else FAILED


def _fits(plan: Plan) -> bool:
    """False only where the plan says so: without a model nothing is known of its memory."""
    return (plan.memory or {}).get("fits") is not False


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
    _print_memory(session, plan)
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
    memory = plan.memory or {}
    if memory.get("per_device_bytes") is None:
        return
    verdict = Text("fits", "green") if _fits(plan) else Text("does not fit", "bold red")
    needed, there = format_bytes(memory["per_device_bytes"]), format_bytes(memory.get("capacity_bytes"))
    session.out.print(Text(f"memory a device: {needed} of {there or '?'}: ") + verdict, "\n")


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
