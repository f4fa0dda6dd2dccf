"""`meshwright plan`: a mesh on the host's devices, drawn, with what the job needs to make it real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.text import Text

from meshwright._calls.calls import take_best
from meshwright._calls.settings import DEFAULT_URL
from meshwright.cli.arguments import build_selection, parse_axis_types
from meshwright.cli.drawing import draw_mesh
from meshwright.cli.output import Column, build_table, clean, format_bytes, format_rate, print_notices
from meshwright.cli.session import FAILED, OK, Session
from meshwright.environment import format_exports
from meshwright.errors import SettingsError
from meshwright.wire.mesh import DeviceRef, Plan, PlanAxis, Plans

MAX_DRAWN: Final = 512
"""Devices beyond which a drawing helps nobody."""


def show_plan(
    session: Session,
    mesh: Annotated[str, typer.Argument(help='The axes, outermost first: "dp:2,tp:-1"; one may be -1, the rest.')],
    devices: Annotated[
        str | None, typer.Option(metavar="0,1", help="These: local indices, uuids or PCI bus ids.")
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="Any N of them.")] = None,
    policy: Annotated[
        Literal["packed", "spread"] | None,
        typer.Option(help="How to choose them: near to each other, or far."),
    ] = None,
    exclude: Annotated[str | None, typer.Option(metavar="0,1", help="Not these.")] = None,
    order: Annotated[
        Literal["planned", "given"], typer.Option(help="The best order, or the one of --devices, row-major.")
    ] = "planned",
    axis_types: Annotated[
        str | None,
        typer.Option(metavar="TYPES", help="auto, explicit or manual: for all, a list, or dp:auto,tp:explicit."),
    ] = None,
    allow_unused: Annotated[bool, typer.Option("--allow-unused", help="The mesh may leave devices out.")] = False,
    memory_strategy: Annotated[
        Literal["conservative", "balanced", "aggressive"],
        typer.Option(help="How much memory the job may take."),
    ] = "balanced",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Keep the plan, for MESHWRIGHT_PLAN."),
    ] = None,
    code: Annotated[bool, typer.Option("--code", help="Print only the Python that makes the mesh.")] = False,
) -> int:
    """Lay a mesh on the host's devices, and draw it.

    Says which device stands where, over which links each axis runs, and what the job should start with.

    Exit codes: 0 a plan that fits · 1 infeasible, or it does not fit · 2 usage, or no answer.
    """
    if code and session.as_json:
        raise typer.BadParameter("it prints Python, --json prints JSON; give one of them", param_hint="--code")
    with session.open() as client:
        plans = client.plans(
            mesh,
            devices=build_selection(devices, count, policy, exclude),
            device_order=order,
            axis_types=None if axis_types is None else parse_axis_types(axis_types),
            allow_unused=allow_unused,
            memory_strategy=memory_strategy,
        )
        host = client.base_url
    if session.as_json:
        session.print_json(plans)
        return _judge(plans, output)
    best = take_best(plans, asked=f"mesh {mesh}", host=host)
    if code:
        session.print_lines(best.code.rstrip("\n"))
    else:
        _print_plan(session, best, build_exports(best, output, host))
    print_notices(session, best.warnings)
    return _judge(plans, output)


def _judge(plans: Plans, output: Path | None) -> int:
    """Writes the plan where one is wanted and there, and returns the exit code."""
    if not plans.plans:
        return FAILED
    if output is not None:
        _write(plans, output)
    return OK if _fits(plans.plans[0]) else FAILED


def _fits(plan: Plan) -> bool:
    """False only where the plan says so: without a model nothing is known of its memory."""
    return (plan.memory or {}).get("fits") is not False


def _write(plans: Plans, path: Path) -> None:
    try:
        path.write_text(plans.model_dump_json(exclude_unset=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"-o {path}: cannot be written: {error.strerror}; name a file in a folder that exists"
        ) from None


def _print_plan(session: Session, plan: Plan, exports: tuple[str, ...]) -> None:
    size = " × ".join(f"{clean(name)}:{size}" for name, size in plan.mesh_shape.items())
    session.out.print(Text.assemble((size, "bold"), f"  {plan.platform}  ", (clean(plan.fingerprint), "cyan")))
    session.out.print()
    _print_memory(session, plan)
    session.out.print(build_table(_build_columns(plan), plan.axes))
    session.out.print()
    if plan.devices is not None:
        session.print_lines(*_draw(plan, plan.devices, session.out.width), "")
    session.print_lines("start the job with", *(f"  {line}" for line in exports), "")
    session.print_lines("and in it", "  from meshwright import load_plan", "  from meshwright.mesh import build_mesh")
    session.print_lines("  mesh = build_mesh(load_plan())")


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
        Column("link", lambda axis: axis.link or ""),
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
    """Returns a short name for each device: its local index, with the host where there are several."""
    several = len({device.host for device in devices}) > 1
    return [clean(f"{device.host}/{device.local_index}" if several else device.local_index) for device in devices]


def build_exports(plan: Plan, output: Path | None, url: str) -> tuple[str, ...]:
    """Returns the lines that a job is started with: the plan's environment, and where to find the plan.

    Args:
        plan: the plan.
        output: the file that keeps it; None: the job asks the agent for it.
        url: the agent's address; left out where the job would ask there anyway.
    """
    if output is not None:
        return format_exports({**plan.environment, "MESHWRIGHT_PLAN": str(output.absolute())})
    agent = {} if url == DEFAULT_URL else {"MESHWRIGHT_URL": url}
    return format_exports({**plan.environment, **agent, "MESHWRIGHT_PLAN": plan.fingerprint})
