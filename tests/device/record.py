"""What a run found, a line of JSON at a time, and the page that is written of it.

Rule: a finding is written as soon as it is made, so that a run which is cut short has told what it knew; of a check
that was done twice the newer counts. `ok` is None for a figure that nothing is asked of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.documents import ROOT

PAGE: Final = ROOT / "docs/how-to/check-a-card.md"


@dataclass(frozen=True)
class Finding:
    """One figure or fact. `rule`: what is asked of it; `note`: what it was measured on or seen beside."""

    name: str
    value: float | str | bool | None
    ok: bool | None = None
    unit: str = ""
    rule: str = ""
    note: str = ""


@dataclass(frozen=True)
class Done:
    """How a check ended: "done", "failed" (it raised), or "skipped", with the reason."""

    state: str
    duration_s: float
    reason: str = ""


@dataclass
class Checked:
    """What one check found."""

    findings: list[Finding] = field(default_factory=list)
    done: Done = field(default_factory=lambda: Done("cut short", 0.0))


def tell_at_once(line: str) -> None:
    """Prints a line, also into a pipe, before the next thing is done."""
    print(line, flush=True)


@dataclass
class Record:
    """What a file holds, or nothing yet. `run`: machine and versions, of the newest run."""

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Checked] = field(default_factory=dict)
    tell: Callable[[str], None] = tell_at_once

    def begin(self, check: str) -> None:
        """A check begins; what it found before counts no more."""
        self._write({"begin": check})
        self.checks[check] = Checked()

    def note_run(self, run: Mapping[str, Any]) -> None:
        """Tells what the checks run on."""
        self._write({"run": {**run, "at": datetime.now(UTC).isoformat(timespec="seconds")}})
        self.run = dict(run)
        self.tell(f"# {', '.join(f'{name} {value}' for name, value in run.items())}")

    def note(self, check: str, finding: Finding) -> None:
        """Keeps a finding."""
        self._write({"check": check, "finding": asdict(finding)})
        self.checks[check].findings.append(finding)
        sign = {True: "ok", False: "WRONG", None: "--"}[finding.ok]
        words = f"{format_value(finding)}   {finding.rule}   {finding.note}".rstrip()
        self.tell(f"{sign:<6}{check}: {finding.name}: {words}")

    def end(self, check: str, done: Done) -> None:
        """A check has ended."""
        self._write({"check": check, "done": asdict(done)})
        self.checks[check].done = done
        self.tell(f"      {check}: {done.state} in {done.duration_s:.1f} s {done.reason}".rstrip())

    @property
    def is_good(self) -> bool:
        """Nothing failed, and nothing that was asked for does not hold."""
        each = self.checks.values()
        return not any(one.done.state in {"failed", "cut short"} for one in each) and all(
            finding.ok is not False for one in each for finding in one.findings
        )

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_record(path: Path) -> Record:
    """Returns what a file of lines holds; an empty record where there is none. A last line that was cut is left out."""
    record = Record(path)
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        path.write_text(f"{text}\n")  # what comes next begins a line of its own
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        match said:
            case {"run": dict(run)}:
                record.run = run
            case {"begin": str(check)}:
                record.checks[check] = Checked()
            case {"check": str(check), "finding": dict(finding)}:
                record.checks[check].findings.append(Finding(**finding))
            case {"check": str(check), "done": dict(done)}:
                record.checks[check].done = Done(**done)
    return record


def format_value(finding: Finding) -> str:
    """Returns "1.85 s", "789.3 TFLOP/s", "143771 MiB" of base units; words as they are."""
    value, unit = finding.value, finding.unit
    if value is None:
        return "not told"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    for base, factor, word in (
        ("FLOP/s", 1e12, "TFLOP/s"),
        ("B/s", 1e9, "GB/s"),
        ("B", 2**20, "MiB"),
        ("Hz", 1e6, "MHz"),
        ("ratio", 0.01, "%"),
    ):
        if unit == base:
            return f"{value / factor:,.1f} {word}"
    return f"{value:,.3g} {unit}".rstrip() if isinstance(value, float) else f"{value} {unit}".rstrip()


def format_page(record: Record) -> str:
    """Returns the record as Markdown: the machine, and a row for each check."""
    machine = "; ".join(f"{name} {value}" for name, value in record.run.items())
    rows = "\n".join(_format_check(name, one) for name, one in record.checks.items())
    return f"{machine}\n\n| check | took | holds | does not hold |\n|---|---|---|---|\n{rows}\n"


def _format_check(name: str, checked: Checked) -> str:
    asked = [finding for finding in checked.findings if finding.ok is not None]
    wrong = [f"{each.name}: {format_value(each)}, not {each.rule}" for each in asked if not each.ok]
    if checked.done.state != "done":
        wrong.append(f"{checked.done.state}: {checked.done.reason}")
    holds = f"{sum(finding.ok is True for finding in asked)} of {len(asked)}"
    return f"| `{name}` | {checked.done.duration_s:.0f} s | {holds} | {_cell('; '.join(wrong))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
