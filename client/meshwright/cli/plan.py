"""`meshwright plan`: a mesh on the host's devices or on a target, drawn, with what the job needs to make it real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright._calls import calls
from meshwright.cli.arguments import take_mesh
from meshwright.cli.fleet import FleetOption, HostsOption, is_asked, plan_on_fleet
from meshwright.cli.option_groups import spread_options
from meshwright.cli.output import print_warning
from meshwright.cli.plan_options import AskedPlan
from meshwright.cli.plan_output import PlanOutput, check_output, judge_plans, print_plans
from meshwright.cli.progress import follow_compile, show_progress
from meshwright.cli.reserving import AskedLease, find_again, reserving
from meshwright.cli.session import OK, Session
from meshwright.wire.base import Notice
from meshwright.wire.mesh import PlanRequest, Plans

if TYPE_CHECKING:
    from meshwright.planning.request_topology import Here


@spread_options
def show_plan(
    session: Session,
    asked: AskedPlan,
    leased: AskedLease,
    mesh: Annotated[
        str | None, typer.Argument(help='The axes, outermost first: "dp:2,tp:-1"; one may be -1, the rest.')
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Plan, and compile, here on --target or --topology; ask no agent.")
    ] = False,
    fleet: FleetOption = False,
    hosts: HostsOption = None,
) -> int:
    """Lay a mesh on the host's devices, on a target or on kept topologies, and draw it; or find the best for a model.

    Without a mesh, --model and --batch find the fastest meshes that fit, with how long a step takes and what it needs;
    --explain says why other families of meshes lost.

    Says which device stands where, over which links each axis runs, and what the job should start with. With --model
    and --verify compile also what XLA's compiler says of the training step: whether it fits, and its collectives.
    --timeout bounds the wait for it; an agent's compile goes on.

    With --lease the devices of the best plan are reserved in the same step: all of them, or nothing. Who was quicker
    has them, and is named.

    Exit codes: 0 a plan that fits, and is reserved where that was asked for · 1 infeasible, it does not fit, one of
    --targets does not exist, --verify compile gave no word that it fits, or somebody else has the devices: nothing is
    reserved · 2 usage, or no answer.
    """
    check_output(session, asked)
    reservation = leased.parse(elsewhere=_find_elsewhere(asked, local=local, fleet=fleet or hosts is not None))
    wanted = take_mesh(mesh, asked.mesh_option, is_searched=asked.step.model is not None)
    arguments = asked.build_arguments(wanted)
    if is_asked(session, fleet, hosts):
        _check_fleet(asked)
        plans = plan_on_fleet(session, wanted or "", {**_leave_step_out(arguments), "local": local}, hosts)
        return print_plans(session, plans, PlanOutput(wanted, asked))
    if local:
        return print_plans(session, _plan_here(session, wanted, arguments), PlanOutput(wanted, asked))
    if not asked.is_elsewhere:
        arguments["lease"] = leased.find_own()
    with session.open() as client:
        earlier = None if reservation is None else find_again(client, reservation)
        if earlier is not None:
            arguments["lease"] = earlier
        with follow_compile(session) as on_progress:
            plans = client.plans(wanted, **arguments, on_progress=on_progress, timeout_s=session.options.timeout_s)
        say = PlanOutput(wanted, asked, url=client.base_url)
        if reservation is None:
            return print_plans(session, plans, say)
        if judge_plans(plans, asked) != OK:
            code = print_plans(session, plans, say)
            print_warning(session, "nothing is reserved: there is no plan that fits")
            return code
        with reserving(client, plans.plans[0], reservation, earlier) as lease:
            return print_plans(session, plans, replace(say, lease=lease))


def _find_elsewhere(asked: AskedPlan, *, local: bool, fleet: bool) -> str | None:
    """Returns the option that plans on other hardware than the agent's host; None: there is none."""
    said = {
        "--target": asked.target,
        "--targets": asked.targets,
        "--topology": asked.topology,
        "--fleet": fleet,
        "--local": local,
    }
    return next((option for option, value in said.items() if value), None)


def _check_fleet(asked: AskedPlan) -> None:
    """Passes if nothing is asked about a model: so that a mesh is there, too."""
    if asked.step.model is not None:
        raise typer.BadParameter(
            "plans of a fleet know no model; plan on a target, as in --target 64*h100:8", param_hint="--model"
        )


def _leave_step_out(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in ("model", "training", "verify")}


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
