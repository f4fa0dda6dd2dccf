"""Findings: what one look found, how bad it is, and what to do; as text and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Level = Literal["ok", "note", "wrong"]
_MARKS: Final[Mapping[Level, str]] = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        mend: what to do, one step a line.
        log: the last lines of what a program wrote, for who wants to look further.
    """

    level: Level
    subject: str
    seen: str
    mend: str = ""
    log: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding for JSON."""
        return asdict(self)


def format_findings(findings: Iterable[Finding]) -> str:
    """Returns the findings as text: one line each, the way to mend it and the log below."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.level]}  {finding.subject}: {finding.seen}")
        lines += [f"       → {line}" for line in finding.mend.splitlines()]
        lines += [f"         | {line}" for line in finding.log]
    return "\n".join(lines)
