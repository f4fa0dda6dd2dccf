"""`meshwright check`: the host's health as an exit code, in the manner of whoever runs the check.

Rule: one table says which state is which code in which style; a host that nobody could ask is a state too.
Asks once and briefly, since node checks have a time limit.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final, Literal, get_args

import typer
from rich.text import Text

from meshwright.cli.output import Column, build_table, clean, format_time, print_error, style_state
from meshwright.cli.session import Session
from meshwright.errors import MeshwrightError
from meshwright.wire.health import Component, Health, State

ExitStyle = Literal["verdict", "nagios", "npd", "slurm"]
Finding = State | Literal["no_answer"]

TIMEOUT_S: Final = 10.0
NPD_BYTES: Final = 80
"""What the node problem detector keeps of a plugin's output. Source: kubernetes/node-problem-detector,
pkg/custompluginmonitor/types/config.go, defaultMaxOutputLength."""

EXIT_CODES: Final[dict[ExitStyle, dict[Finding, int]]] = {
    # pass, info, warning · critical or unknown · could not run
    "verdict": {"healthy": 0, "degraded": 0, "unhealthy": 1, "unknown": 1, "initializing": 1, "no_answer": 2},
    # OK · WARNING · CRITICAL · UNKNOWN: the monitoring plugins' guidelines
    "nagios": {"healthy": 0, "degraded": 1, "unhealthy": 2, "unknown": 3, "initializing": 3, "no_answer": 3},
    # OK · problem · unknown
    "npd": {"healthy": 0, "degraded": 1, "unhealthy": 1, "unknown": 2, "initializing": 2, "no_answer": 2},
    # keep · drain: only what is known to be broken takes a node out, not an agent that restarts
    "slurm": {"healthy": 0, "degraded": 0, "unhealthy": 1, "unknown": 0, "initializing": 0, "no_answer": 0},
}
NAGIOS_WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def check_health(
    session: Session,
    exit_style: Annotated[ExitStyle, typer.Option(help="Whose exit codes and output to use.")] = "verdict",
) -> int:
    """Check the host's health, part by part, for a person or a script.

    Nothing is healthy before it was checked, nor when its check is too old.

    \b
    Exit codes by --exit-style:
      verdict  0 healthy or degraded · 1 unhealthy, unknown or initializing · 2 no answer
      nagios   0 OK · 1 WARNING (degraded) · 2 CRITICAL (unhealthy) · 3 UNKNOWN; one line
      npd      0 OK · 1 problem (degraded, unhealthy) · 2 unknown; at most 80 bytes
      slurm    1 the node must be drained (unhealthy) · 0 otherwise; one line
    Usage errors are 2 in every style. Asks once, for at most 10 s (--timeout).
    """
    codes = EXIT_CODES[exit_style]
    try:
        with session.open(timeout_s=TIMEOUT_S, max_retries=0) as client:
            health = client.health()
    except MeshwrightError as error:
        _print_no_answer(session, exit_style, error)
        return codes["no_answer"]
    if session.as_json:
        session.print_json(health)
    elif exit_style == "verdict":
        _print_components(session, health)
    else:
        counts = Counter(component.state for component in health.components)
        session.print_lines(format_line(exit_style, health.state, summarize(health), counts))
    return codes[health.state]


def _print_no_answer(session: Session, style: ExitStyle, error: MeshwrightError) -> None:
    if style == "verdict" or session.as_json:
        print_error(session, error)
        return
    said = _flatten(str(error).partition("\n")[0])
    session.print_lines(format_line(style, "no_answer", f"no answer: {said}", {}))


def summarize(health: Health) -> str:
    """Returns one line: the parts that are as bad as the whole, with their reasons."""
    worst = [component for component in health.components if component.state == health.state]
    if health.state == "healthy" or not worst:
        return f"{len(health.components)} components, {health.state}"
    return "; ".join(f"{part.name} {part.state}: {_flatten(part.reason)}".rstrip(": ") for part in worst)


def format_line(style: ExitStyle, finding: Finding, summary: str, counts: dict[State, int]) -> str:
    """Returns the one line that a style prints; `counts` is the parts in each state, {} if not known."""
    code = EXIT_CODES[style][finding]
    match style:
        case "nagios":
            figures = " ".join(f"{state}={counts.get(state, 0)}" for state in get_args(State))
            line = f"MESHWRIGHT {NAGIOS_WORDS[code]} - {summary.replace('|', '/')}"
            return f"{line} | {figures}" if counts else line
        case "npd":
            return _cut(summary)
        case "slurm":
            return f"{'drain' if code else 'keep'}: {summary}"
    return summary


def _flatten(text: str) -> str:
    return clean(" ".join(text.split()))


def _cut(text: str) -> str:
    """Returns the text within the limit, in plain ASCII, since the limit counts bytes."""
    plain = text.encode("ascii", "replace").decode()
    return plain if len(plain) <= NPD_BYTES else f"{plain[: NPD_BYTES - 3]}..."


def _print_components(session: Session, health: Health) -> None:
    session.out.print(build_table(COLUMNS, health.components))
    session.out.print()
    session.out.print(Text("host ") + style_state(health.state))


COLUMNS: Final[tuple[Column[Component], ...]] = (
    Column("component", lambda component: component.name),
    Column("state", lambda component: style_state(component.state)),
    Column(
        "seen",
        lambda component: "never" if component.age_s is None else f"{format_time(component.age_s)} ago",
    ),
    Column("reason", lambda component: component.reason),
    Column("action", lambda component: component.action),
)
