"""`meshwright health`: the host's health as an exit code, in the format of the tool that runs the check.

Rule: one table maps each state to the exit code of each format. An unreachable host is a state too. A requirement has a
state like a component, and is met only if it was checked. The declared devices of a simulated host are evaluated, and
marked as declared. Such a host is never better than unknown, by its component `driver`.

Slurm drains a node if its driver answers and a card does not. A node with an unchecked card is not drained. Slurm's
code depends on devices and driver only, never on the agent's own store, disk or worker.

The check asks once, with a short time limit, since node checks have a limit themselves. The output is brief: parts with
one cause are reported once, and a line has the length that its reader stores.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import typer
from rich.text import Text

from meshwright._threads import run_all
from meshwright.cli.arguments import parse_chips
from meshwright.cli.output import STATE_STYLES, Column, clean, format_time, print_error, print_table, style_state
from meshwright.cli.session import NO_ANSWER, Session
from meshwright.errors import AgentTimeoutError, MeshwrightError
from meshwright.wire.health import WORST_FIRST, Component, Health, State, select_hardware

if TYPE_CHECKING:
    from meshwright.topology.chips import ChipCount
    from meshwright.wire.devices import Devices

Format = Literal["text", "json", "nagios", "slurm"]
Outcome = State | Literal["no_answer"]

TIMEOUT_S: Final = 10.0
NAGIOS_BYTES: Final = 1023
"""What a packet of NRPE 2 holds, figures and all. Source: NagiosEnterprises/nrpe, include/common.h,
MAX_PACKETBUFFER_LENGTH 1024."""
SLURM_BYTES: Final = 200
"""What deploy/slurm/healthcheck.sh gives Slurm as a reason."""

EXIT_CODES: Final[dict[Format, dict[Outcome, int]]] = {
    # pass, info, warning · critical or unknown · could not run
    "text": {"healthy": 0, "degraded": 0, "unhealthy": 1, "unknown": 1, "initializing": 1, "no_answer": 2},
    "json": {"healthy": 0, "degraded": 0, "unhealthy": 1, "unknown": 1, "initializing": 1, "no_answer": 2},
    # OK · WARNING · CRITICAL · UNKNOWN: the monitoring plugins' guidelines
    "nagios": {"healthy": 0, "degraded": 1, "unhealthy": 2, "unknown": 3, "initializing": 3, "no_answer": 3},
    # keep · drain · nothing is known, as during a restart of the agent: neither a pass nor a reason to drain the node
    "slurm": {"healthy": 0, "degraded": 0, "unhealthy": 1, "unknown": 1, "initializing": 2, "no_answer": 2},
}
SLURM_WORDS: Final = ("keep", "drain", "unknown")
OF_A_CARD: Final = frozenset({"device", "thermal", "memory", "link"})
"""The kinds of components that a card has."""
NAGIOS_WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_VERDICTS: Final[dict[State, str]] = {"healthy": "met", "unhealthy": "not met", "unknown": "unknown"}
"""The states of a requirement, in words."""
_ASCII: Final = str.maketrans({"≥": ">=", "≤": "<=", "→": "->", "×": "x", "·": "-", "µ": "u", "…": "...", "°": "deg "})


@dataclass(frozen=True)
class Requirement:
    """One requirement: the requested value, the found value, and its state: healthy if met, unhealthy if not met."""

    name: str
    asked: str
    found: str
    state: State

    def __str__(self) -> str:
        return f"{self.name} {self.asked}: {self.found}"


def check_health(
    session: Session,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Output and exit codes: for people (default), or as a node check wants them."),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="h100:8", help="At least so many devices, of this chip; 8: of any. May be repeated."),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show healthy components too.")] = False,
) -> int:
    """Check the host's health, part by part, and what a job requires of it, for a person or a script.

    Nothing is healthy before it was checked, nor when its check is too old. A requirement that is not met counts as
    unhealthy; one that could not be read, as unknown.

    \b
    Exit codes by --format:
      text, json  0 healthy or degraded · 1 unhealthy, unknown or initializing · 2 no answer
      nagios      0 OK · 1 WARNING (degraded) · 2 CRITICAL (unhealthy) · 3 UNKNOWN; one line
      slurm       0 keep · 1 drain: unhealthy, or a card does not answer · 2 not checked, no answer; one line
    slurm looks at the devices and their driver alone: the agent's own store, disk or worker drains no node.
    Usage errors are 2, of nagios 3.

    Asks once. All of it takes at most 10 s (--timeout): what the host's health does not say by then is no answer, what
    a requirement must know is unknown.
    """
    form = "json" if session.as_json else form or "text"
    required = [parse_chips(text, "--expect") for text in expect or ()]
    try:
        health, devices = _ask(session, wants_devices=bool(required))
    except MeshwrightError as error:
        _print_no_answer(session, form, error)
        return EXIT_CODES[form]["no_answer"]
    seen = select_hardware(health) if form == "slurm" else health
    hides = any(part.name == "driver" and part.state == "unknown" for part in health.components)
    findings = [evaluate_devices(wanted, devices, driver_hides=hides) for wanted in required]
    worst = find_worst(seen, findings)
    outcome = find_outcome(form, seen, findings)
    if form == "json":
        _print_json(session, health, findings, worst)
    elif form == "text":
        _print_components(session, health, findings, worst, is_all=show_all)
    else:
        counts = Counter([*(part.state for part in seen.components), *(each.state for each in findings)])
        session.print_lines(format_line(form, outcome, summarize(seen, findings), counts))
    return EXIT_CODES[form][outcome]


def _ask(session: Session, *, wants_devices: bool) -> tuple[Health, Devices | str]:
    """Returns the host's health, and its devices where they are needed, or why they are not available.

    The time limit covers both together, and is applied here. The HTTP library limits only each read, so a reply of one
    byte a second would never reach its limit.

    Raises:
        MeshwrightError: the agent does not answer about its health.
    """
    limit_s = TIMEOUT_S if session.options.timeout_s is None else session.options.timeout_s
    health: list[Health] = []
    devices: list[Devices | str] = []
    with session.open(timeout_s=limit_s, max_retries=0) as client:

        def ask() -> None:
            health.append(client.health())
            if wants_devices:
                try:
                    devices.append(client.devices())
                except MeshwrightError as error:
                    devices.append(error.detail)

        run_all([ask], limit_s=limit_s, at_once=1)
        late = f"no answer from {client.base_url} within {limit_s:g} s"
        if not health:
            hint = "give it longer (--timeout), or look at the agent's log"
            raise AgentTimeoutError(late, host=client.base_url, hint=hint)
    return health[0], devices[0] if devices else late


def evaluate_devices(wanted: ChipCount, seen: Devices | str, *, driver_hides: bool = False) -> Requirement:
    """Returns whether the required number of devices is present. Of a chip, cards are counted, as by MESHWRIGHT_EXPECT.

    Args:
        wanted: their number, and their chip.
        seen: the devices, or why they could not be read.
        driver_hides: the driver is unknown, so that it may hide devices of a host that is not simulated.
    """
    if isinstance(seen, str):
        return Requirement("devices", str(wanted), f"could not be read: {seen}", "unknown")
    there = [each for each in seen.devices if wanted.is_of(each.kind.partition(" MIG ")[0], None)]
    kinds = ", ".join(sorted({device.kind for device in there or seen.devices})) or "no device"
    cards = {each.mig.parent_uuid if each.mig and wanted.chip else index for index, each in enumerate(there)}
    parts = ", a card in MIG mode counted once" if len(cards) < len(there) else ""
    count = f"{len(cards)}" + (f" of {len(seen.devices)}" if len(there) < len(seen.devices) else "")
    declared = ", declared" if any(device.basis == "declared" for device in there) else ""
    is_simulated = any(notice.code == "simulated" for notice in seen.warnings)
    is_probed = any(device.basis != "declared" for device in seen.devices)  # no host before its probe
    is_known = is_simulated or (is_probed and not driver_hides)
    state: State = "healthy" if len(cards) >= wanted.count else "unhealthy" if is_known else "unknown"
    return Requirement("devices", str(wanted), f"{count} ({kinds}){parts}{declared}", state)


def find_worst(health: Health, findings: Sequence[Requirement]) -> State:
    """Returns the worst state of the host and of its requirements."""
    states = {health.state, *(finding.state for finding in findings)}
    return next(state for state in WORST_FIRST if state in states)


def find_outcome(style: Format, health: Health, findings: Sequence[Requirement]) -> Outcome:
    """Returns the outcome that sets the exit code: the worst state.

    For Slurm, there are two kinds of `unknown`. If the driver answered and a part of a card is unknown, the card does
    not answer: drain. An unchecked card or requirement counts as no answer.
    """
    worst = find_worst(health, findings)
    if style != "slurm" or worst != "unknown":
        return worst
    unknown = [part for part in health.components if part.state == "unknown"]
    of_cards = [part.observed_at for part in unknown if part.name.partition(":")[0] in OF_A_CARD]
    driver = next((part for part in health.components if part.name == "driver"), None)
    if driver is None or driver.state == "unknown" or driver.observed_at is None:
        return "no_answer"
    return "unknown" if any(at and at >= driver.observed_at for at in of_cards) else "no_answer"


def _print_json(session: Session, health: Health, findings: Sequence[Requirement], worst: State) -> None:
    """Prints the agent's health; where something is required, with `requirements`, and `verdict` on all of it."""
    if not findings:
        session.print_json(health)
        return
    body = health.model_dump(mode="json", exclude_unset=True)
    reply = {**body, "verdict": worst, "requirements": [asdict(finding) for finding in findings]}
    session.print_lines(json.dumps(reply, ensure_ascii=False))


def _print_no_answer(session: Session, style: Format, error: MeshwrightError) -> None:
    if style == "text" or session.as_json:
        print_error(session, error)
        return
    detail = _flatten(error.detail).removeprefix("GET /health: ")  # the essential part first: a line may be truncated
    summary = detail if detail.startswith("no answer") else f"no verdict: {detail}"
    session.print_lines(format_line(style, "no_answer", summary, {}))


def find_usage_code(arguments: Sequence[str]) -> int:
    """Returns the exit code of a usage error in the format that the arguments ask for, some of which may be wrong.

    A wrong argument is never a verdict on the host: nagios' 2 would be CRITICAL. Source: the monitoring plugins'
    guidelines, "UNKNOWN: invalid command line arguments"; Slurm's script drains for 1 alone.
    """
    words = " ".join(arguments).replace("=", " ").split()
    last = next((value for name, value in reversed([*pairwise(words)]) if name == "--format"), "")
    return next((codes["no_answer"] for style, codes in EXIT_CODES.items() if style == last), NO_ANSWER)


def summarize(health: Health, findings: Sequence[Requirement] = ()) -> str:
    """Returns one line: the requirements and parts that are as bad as the whole, with their reasons, each once."""
    worst = find_worst(health, findings)
    missed = [f"{_VERDICTS[each.state]}: {_flatten(str(each))}" for each in findings if each.state == worst]
    names: dict[str, list[str]] = {}
    for part in health.components:
        if part.state == worst:
            names.setdefault(_flatten(part.reason), []).append(part.name)
    parts = [_describe_parts(of_reason, worst, reason) for reason, of_reason in names.items()]
    if worst == "healthy" or not missed + parts:
        count = len(findings)
        met = f", {count} requirement{'s' if count > 1 else ''} met" if findings else ""
        return f"{len(health.components)} components, {worst}{met}"
    return "; ".join(missed + parts)


def _describe_parts(names: Sequence[str], state: State, reason: str) -> str:
    """Returns the common description of parts: "8 parts unknown: driver does not answer, such as device:0"."""
    if len(names) == 1:
        return f"{names[0]} {state}: {reason}".rstrip(": ")
    return f"{f'{len(names)} parts {state}: {reason}'.rstrip(': ')}, such as {names[0]}"


def format_line(style: Format, outcome: Outcome, summary: str, counts: Mapping[State, int]) -> str:
    """Returns the one line that a style prints; `counts` is the parts in each state, {} if not known."""
    code = EXIT_CODES[style][outcome]
    if style == "nagios":
        named = " ".join(f"{state}={counts.get(state, 0)}" for state in get_args(State))
        figures = f" | {named}" if counts else ""
        line = f"MESHWRIGHT {NAGIOS_WORDS[code]} - {summary.replace('|', '/')}"
        return f"{_cut(line, NAGIOS_BYTES - len(figures))}{figures}"
    line = f"{SLURM_WORDS[code]}: {summary}".translate(_ASCII)  # other signs are "?" in healthcheck.sh, too
    return _cut(line.encode("ascii", "replace").decode(), SLURM_BYTES)


def _flatten(text: str) -> str:
    return clean(" ".join(text.split()))


def _cut(text: str, most_bytes: int) -> str:
    """Returns the text, and of one that is longer its beginning with "..."; no sign is cut in two."""
    whole = text.encode(errors="replace")
    if len(whole) <= most_bytes:
        return text
    return f"{whole[: most_bytes - 3].decode(errors='ignore')}..."


def _print_components(
    session: Session, health: Health, findings: Sequence[Requirement], worst: State, *, is_all: bool
) -> None:
    """Prints the verdict, the requirements, and the components that are not healthy, the worst first."""
    session.out.print(Text("host ") + style_state(worst) + Text(f": {summarize(health, findings)}"), soft_wrap=True)
    print_table(session, REQUIREMENT_COLUMNS, findings)
    shown = [each for each in health.components if is_all or each.state != "healthy"]
    print_table(session, COLUMNS, sorted(shown, key=lambda each: WORST_FIRST.index(each.state)))


REQUIREMENT_COLUMNS: Final[tuple[Column[Requirement], ...]] = (
    Column("requirement", lambda finding: finding.name),
    Column("asked", lambda finding: finding.asked),
    Column("found", lambda finding: finding.found),
    Column("verdict", lambda finding: Text(_VERDICTS[finding.state], STATE_STYLES[finding.state])),
)


COLUMNS: Final[tuple[Column[Component], ...]] = (
    Column("component", lambda component: component.name),
    Column("state", lambda component: style_state(component.state)),
    Column("seen", lambda component: "never" if component.age_s is None else f"{format_time(component.age_s)} ago"),
    Column("reason", lambda component: component.reason),
    Column("action", lambda component: component.action),
)
