"""`meshwright preflight`: many hosts checked before a job, with the verdict in the first line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from meshwright.cli.arguments import parse_chips
from meshwright.cli.fleet import is_asked, open_fleet
from meshwright.cli.health import SLURM_WORDS
from meshwright.cli.output import clean, format_rate, use_commands
from meshwright.cli.session import FAILED, NO_ANSWER, OK, Session
from meshwright.wire.preflight import DEFAULT_PORT, DEFAULT_TIMEOUT_S, PreflightResult

if TYPE_CHECKING:
    from meshwright.preflight import PreflightReport
    from meshwright.preflight.report import HostFinding, HostReport

EXIT_CODES: Final = {"ok": OK, "fault": FAILED, "unknown": NO_ANSWER, "unchecked": NO_ANSWER}
"""Of a verdict on all hosts, and on one."""
PRINT_S: Final = 2.0
"""Of --timeout: what is left to print the report."""
MIN_TIMEOUT_S: Final = 10.0 + PRINT_S
VERDICT_S: Final = 2 * DEFAULT_TIMEOUT_S

FormatOption = Annotated[
    Literal["text", "json", "slurm"] | None,
    typer.Option("--format", help="For people (default), programs, or Slurm: one line."),
]


def check_hosts(
    session: Session,
    hosts: Annotated[
        str,
        typer.Option("--hosts", metavar="ADDRESSES", help='The hosts: "a,b:8790", "@file"; "env": MESHWRIGHT_FLEET.'),
    ],
    expect: Annotated[
        str | None, typer.Option(metavar="h100:8", help="Devices that each host must have; 8: of any kind.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Where the first host listens for the others during the check.")
    ] = DEFAULT_PORT,
    lease: Annotated[
        str | None, typer.Option(metavar="ID", help="A lease of all devices on every host; without, one is taken.")
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A plan on these hosts: the collectives of its axes are measured too."),
    ] = None,
    form: FormatOption = None,
) -> int:
    """Check many hosts in one JAX job before a training job starts, and name those that are not well.

    Asks every agent first: present, healthy, free, the same JAX. Then each host's process measures its devices, pairs
    of hosts exchange data, and collectives run over all; results are compared with their peers, and contents with what
    they must be. A slow host is measured again, with good hosts, before it is named. The job has three quarters of
    --timeout, which is 90 s unless given.

    Exit codes: 0 all hosts are well · 1 a host is at fault or missing · 2 they could not be checked, or usage.
    """
    from meshwright import preflight  # here, so that --help need not wait for the HTTP library
    from meshwright._reference import load_plan

    timeout_s = session.options.timeout_s or DEFAULT_TIMEOUT_S
    if timeout_s < MIN_TIMEOUT_S:
        text = f"{timeout_s:g} s is too short for a check; give {MIN_TIMEOUT_S:g} or more, such as 60"
        raise typer.BadParameter(text, param_hint="--timeout")
    is_asked(session, hosts)
    wanted = None if expect is None else parse_chips(expect, "--expect")
    with open_fleet(hosts) as fleet, session.err.status("agents") as status:
        report = preflight.check_hosts(
            fleet,
            expect=wanted,
            timeout_s=timeout_s - PRINT_S,
            port=port,
            lease=lease,
            plan=None if plan is None else load_plan(plan),
            on_phase=status.update,
        )
    if session.as_json:
        session.print_lines(report.model_dump_json())
    elif form == "slurm":
        session.print_lines(_write_line(report))
    else:
        session.print_lines(*write_report(report))
    return EXIT_CODES[report.verdict]


def wait_for_verdict(
    session: Session,
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="The lease that the check runs under.")],
    form: FormatOption = None,
) -> int:
    """Wait until a preflight that runs under a lease has sent this host's agent the verdict on this host.

    A Slurm prolog calls it on every node, while the first node of the job checks all of them. It waits for --timeout,
    which is 180 s unless given.

    Exit codes: 0 this host is well · 1 it is at fault · 2 it could not be checked, no verdict came, or usage.
    """
    from meshwright import preflight

    limit_s = session.options.timeout_s or VERDICT_S
    with session.open() as client:
        verdict = preflight.wait_for_verdict(client, lease, limit_s)
    code = EXIT_CODES[verdict.state]
    if session.as_json:
        session.print_lines(verdict.model_dump_json())
    else:
        session.print_lines(clean(f"{SLURM_WORDS[code] if form == 'slurm' else verdict.state}: {verdict.reason}"))
    return code


def _write_line(report: PreflightReport) -> str:
    """Returns the verdict in a line, as a reason for draining nodes."""
    hosts = report.culprits or report.hosts
    reasons = [f"{host.name}: {host.findings[0].text}" for host in hosts if host.findings]
    return clean("; ".join([f"{SLURM_WORDS[EXIT_CODES[report.verdict]]}: {report.summary}", *reasons[:4]]))


def write_report(report: PreflightReport) -> list[str]:
    """Returns the report as text: the verdict, then one line for each host or device that is not well; hosts of which
    the same is said share a line."""
    from meshwright.preflight.report import list_names

    lines = [report.summary]
    found: dict[HostFinding, list[HostReport]] = {}
    for host in report.hosts:
        for finding in host.findings:
            found.setdefault(finding, []).append(host)
    for finding, hosts in sorted(found.items(), key=lambda each: each[0].state == "unchecked"):
        what = "; ".join(filter(None, (finding.text, use_commands(finding.action))))
        lines.append(f"  {list_names(hosts)} ({finding.state}): {what}")
    results = [host.result for host in report.hosts if host.result is not None]
    lines += [f"  {name}: {value}" for name, value in _list_medians(results)]
    return [clean(line) for line in lines]


def _list_medians(results: Sequence[PreflightResult]) -> Iterator[tuple[str, str]]:
    """Yields the medians over all hosts: of devices, of pairs of hosts, and of collectives over all."""
    devices = [device for result in results for device in result.devices]
    rates = [rate for result in results for rate in result.network_bytes_per_s if rate is not None]
    if devices:
        flops = median(device.matmul_flops_per_s for device in devices)
        memory = median(device.memory_bandwidth_bytes_per_s for device in devices)
        yield "a device, median", f"matmul {format_rate(flops, 'FLOP/s')}, memory {format_rate(memory, 'B/s')}"
    if rates:
        yield "a pair of hosts, median", f"{format_rate(median(rates), 'B/s')} each way"
    for same in zip(*(result.collectives for result in results), strict=False):
        found = [each.busbw_bytes_per_s for each in same]
        where = "all devices" if same[0].axis is None else f"axis {same[0].axis}"
        slowest = "" if same[0].axis is None else f", slowest {format_rate(min(found), 'B/s')}"
        yield f"{same[0].case.replace('_', '-')} over {where}", f"{format_rate(median(found), 'B/s')} busbw{slowest}"
