"""`meshwright-agent plan`: a plan without a running agent, on a target or on this host.

Rule: the options and what is printed are those of `meshwright plan`; `--json` prints what `POST /mesh/plan` answers.
This host is looked at once, as an agent does at its start: JAX is not started beside another process that holds
devices, a lease or an agent, and leased devices are left out. Imported only for this command, since an agent that
serves needs no tables.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from meshwright._calls import calls
from meshwright.cli import EXIT_CODES
from meshwright.cli.arguments import check_timeout, take_mesh
from meshwright.cli.option_groups import spread_options
from meshwright.cli.output import print_error
from meshwright.cli.plan import answer_here
from meshwright.cli.plan_options import AskedPlan
from meshwright.cli.plan_output import PlanOutput, check_output, print_plans
from meshwright.cli.session import Options, Session, open_client
from meshwright.errors import MeshwrightError
from meshwright.topology.assemble import build_target
from meshwright.topology.model import Topology
from meshwright.wire.mesh import Plans
from meshwright_agent.clock import read_boot_clock
from meshwright_agent.commands.flags import read_settings
from meshwright_agent.host.look import look_at_host
from meshwright_agent.host.simulation import build_notice
from meshwright_agent.leasing.left import read_left_book
from meshwright_agent.settings import Settings

FindOwner = Callable[[Path], str]
"""(sysfs of a host) → which agent has its devices, in words; "" for none. Given by `cli` as the context's object."""

app: Final = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
@spread_options
def plan(
    context: typer.Context,
    asked: AskedPlan,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", callback=check_timeout, help="Seconds that a compile may take."),
    ] = None,
    cpu_devices: Annotated[int | None, typer.Option(help="Plan as an agent with N virtual CPU devices.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what POST /mesh/plan answers, and no more.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
) -> None:
    """Plan a mesh without a running agent: on a target, or on this host, which is looked at once.

    With --model and --verify compile a child of this process compiles the training step.

    Exit codes: 0 a plan that fits · 1 infeasible, it does not fit, or --verify compile gave no word that it fits · 2
    usage, or no answer.
    """
    session = Session(Options(timeout_s=timeout_s, as_json=as_json, no_color=no_color), open_client)
    check_output(session, asked)
    mesh = take_mesh(None, asked.mesh_option, is_searched=asked.step.model is not None)
    try:
        plans = _answer(session, mesh, asked.build_arguments(mesh), cpu_devices, context.obj or _find_nobody)
        status = print_plans(session, plans, PlanOutput(mesh, asked))
    except MeshwrightError as error:
        print_error(session, error)
        status = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    session.flush()
    raise typer.Exit(status)


def _find_nobody(_sysfs_root: Path) -> str:
    return ""


def _answer(
    session: Session, mesh: str | None, arguments: dict[str, Any], cpu_devices: int | None, find_owner: FindOwner
) -> Plans:
    request = calls.parse_plan_request(calls.plans(mesh, **arguments))
    if request.target is not None or request.topology is not None or request.targets is not None:
        return answer_here(session, request)
    settings = read_settings(cpu_devices=cpu_devices)
    if settings.simulate is not None:
        notices = (build_notice(settings.simulate),)
        return answer_here(session, request, build_target(settings.simulate), notices=notices)
    owner = find_owner(settings.sysfs_root) if settings.cpu_devices is None else ""
    if owner:
        typer.echo(f"note: this host's devices: {owner}; it knows all leases: ask it by `meshwright plan`", err=True)
    return answer_here(session, request, lambda: _look(settings, owner))


def _look(settings: Settings, owner: str) -> Topology:
    """Returns this host as plans see it; leases are those of the state directory."""
    book = read_left_book(settings.state_dir / "meshwright.sqlite3", read_boot_clock(settings.proc_root))
    leased = [held.lease for held in book.active()]
    untouched = owner or (f"a device is leased by {leased[0].id} ({leased[0].purpose})" if leased else "")
    return Topology.of(book.mark(asyncio.run(look_at_host(settings, os.environ, untouched=untouched))))
