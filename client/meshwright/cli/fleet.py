"""`--hosts` of `meshwright devices` and `meshwright plan`: several hosts at once, each with its state.

Rule: a host that did not answer is listed in the table, and a plan without it is reported on stderr.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from meshwright.cli.output import Column, build_table, clean, format_time, print_notices, style_state
from meshwright.cli.session import FAILED, OK, Session
from meshwright.errors import MeshwrightError

if TYPE_CHECKING:
    from meshwright._fleet import FleetHost, FleetState
    from meshwright.fleet import Fleet
    from meshwright.wire.mesh import Plan, PlanRequest

HostsOption = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="ADDRESSES",
        help='All of these hosts: "a,b:8790", "@file", "dns:name:port"; "env": MESHWRIGHT_FLEET.',
    ),
]

_STATE_STYLES: Final = {"ok": "green", "not_ready": "yellow", "error": "bold red", "unreachable": "bold red"}


def is_asked(session: Session, hosts: str | None) -> bool:
    """Returns whether the command is about several hosts.

    Raises:
        typer.BadParameter: it is, and --url names one agent.
    """
    if hosts is None:
        return False
    if session.options.url is not None:
        raise typer.BadParameter("it asks several agents, and --url names one; give one of them", param_hint="--hosts")
    return True


def show_fleet(session: Session, hosts: str | None) -> int:
    """Prints every host with its state, then their common topology.

    Exit codes: 0 every host answered · 1 some did not, or they do not form a topology · 2 none did, or no address.
    """
    with open_fleet(hosts) as fleet:
        state = fleet.devices(timeout_s=_find_limit_s(session))
    if session.as_json:
        session.print_lines(_dump(state))
    else:
        session.out.print(build_table(COLUMNS, state.hosts))
    joined = state.joined  # raises where the hosts form no topology
    if not session.as_json:
        session.out.print()
        session.out.print(_describe(state), soft_wrap=True)
        print_notices(session, joined.notices)
    return FAILED if state.failed else OK


def plan_on_fleet(session: Session, request: PlanRequest, hosts: str | None) -> Plan:
    """Returns the plan on the hosts that answer.

    Raises:
        MeshwrightError: as `Fleet.plan`.
    """
    with open_fleet(hosts) as fleet:
        fields = {name: getattr(request, name) for name in request.model_fields_set}
        return fleet.plan(**fields, timeout_s=_find_limit_s(session))


def _find_limit_s(session: Session) -> float:
    from meshwright._fleet import DEFAULT_TIMEOUT_S  # here, so that a plan on one host need not wait for it

    return session.options.timeout_s or DEFAULT_TIMEOUT_S


def open_fleet(hosts: str | None) -> Fleet:
    """Returns the hosts of --hosts, "env" being those of MESHWRIGHT_FLEET; close it."""
    from meshwright.fleet import Fleet  # here, so that --help need not wait for the HTTP library

    return Fleet(None if hosts == "env" else hosts)


def _name_kinds(host: FleetHost) -> str:
    kinds = Counter(device.kind for device in host.devices.devices) if host.devices else {}
    return ", ".join(kinds if len(kinds) == 1 else (f"{count}× {kind}" for kind, count in kinds.items()))


def _count_health(host: FleetHost) -> Text | str:
    """Returns the worst state, and of how many devices where not of all."""
    if host.worst is None:
        return ""
    count = host.device_states.count(host.worst)
    return style_state(host.worst) + ("" if count == len(host.device_states) else f" ({count})")


COLUMNS: Final[tuple[Column[FleetHost], ...]] = (
    Column("host", lambda host: host.name),
    Column("address", lambda host: host.url),
    Column("state", lambda host: Text(host.state, _STATE_STYLES[host.state])),
    Column("devices", lambda host: str(len(host.devices.devices)) if host.devices else "", "right"),
    Column("kind", _name_kinds),
    Column("health", _count_health),
    Column("took", lambda host: format_time(host.duration_s), "right"),
    Column("why", lambda host: host.detail),
)


def _describe(state: FleetState) -> str:
    topology = state.topology
    granules = Counter(granule.kind for granule in topology.granules)
    parts = " and ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in granules.items())
    there = f"{len(topology.devices)} {topology.platform} devices in {parts or 'no host'}"
    return clean(f"{len(state.ok)} of {len(state.hosts)} hosts: {there}")


def _dump(state: FleetState) -> str:
    """Returns the fleet as JSON: each host with its agent's reply; for the whole, the result of joining them."""
    hosts = [
        {
            "url": host.url,
            "name": host.name or None,
            "state": host.state,
            "detail": host.detail,
            "duration_s": host.duration_s,
            "health": host.worst,
            "devices": host.devices and host.devices.model_dump(mode="json", exclude_unset=True),
        }
        for host in state.hosts
    ]
    try:
        warnings = [notice.model_dump() for notice in state.notices]
    except MeshwrightError:  # no topology; reported on stderr, after the hosts
        warnings = []
    return json.dumps({"hosts": hosts, "warnings": warnings}, ensure_ascii=False)
