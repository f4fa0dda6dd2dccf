"""The compiler's estimates beside published step times, as rows of a table.

Rule: every row stands there: with its error, or with the reason why it has none. Knows no compiler.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.wire.verification import Verification
from tests.compiler.steps.cases import Case
from tests.compiler.steps.published import Published

_COLUMNS: Final = (
    "row", "model", "target", "mesh", "batch", "remat", "published s", "compiler s", "error", "peak GiB", "compile s",
)  # fmt: skip

GIB: Final = 2**30

_DERIVED: Final = "- \\* Derived from published FLOP/s or tokens/s; the others were published in seconds."


@dataclass(frozen=True)
class Row:
    """A published run with the compiler's answer; None: it was not asked."""

    published: Published
    answer: Verification | None = None

    @property
    def error(self) -> float | None:
        """The estimate by the published time, less 1; None where there is no estimate."""
        if self.answer is None or self.answer.estimated_step_s is None:
            return None
        return self.answer.estimated_step_s / self.published.measured_s - 1


def build_section(rows: Sequence[Row]) -> str:
    """Returns the table, its errors in a sentence, what did not compile, what was left out, and the sources."""
    cases = [row for row in rows if row.published.case is not None]
    table = write_table(_COLUMNS, map(_list_cells, cases))
    lists = [*_list_policies(cases), *_list_notes(cases), *_list_left_out(rows)]
    return "\n".join([table, summarize(cases), "", _DERIVED, *lists, "", _tell_versions(cases)]) + "\n"


def summarize(cases: Sequence[Row]) -> str:
    """Returns how many rows have an estimate, the median and the worst error, and the bias."""
    found = [(row.error, row.published.row) for row in cases if row.error is not None]
    if not found:
        return f"None of {len(cases)} rows has an estimate."
    worst, at = max(found, key=lambda pair: abs(pair[0]))
    sizes = [abs(error) for error, _ in found]
    return (
        f"{len(found)} of {len(cases)} rows have an estimate: median error {statistics.median(sizes):.1%}, worst "
        f"{worst:+.1%} (row {at}); with its sign, median {statistics.median(error for error, _ in found):+.1%}."
    )


def _list_cells(row: Row) -> tuple[str, ...]:
    published, answer = row.published, row.answer
    assert published.case is not None
    case: Case = published.case
    measured = f"{published.measured_s:.2f}{'*' if published.derived else ''}"
    batch = f"{case.training.global_batch_size}×{case.training.seq_len}"
    remat = case.training.remat + ("†" if published.published_remat != case.training.remat else "")
    link = f"[{published.row}]({published.source.split(' ')[0]})"
    head = (link, published.fields["model"], case.target, case.mesh, batch, remat)
    if answer is None:
        return (*head, measured, "not asked", "–", "–", "–")
    return (
        *head, measured,
        _write(answer.estimated_step_s, ".2f") if answer.status == "verified" else answer.status.replace("_", " "),
        _write(row.error, "+.1%"), _write(answer.peak_memory_bytes and answer.peak_memory_bytes / GIB, ".1f"),
        _write(answer.compile_s, ".0f"),
    )  # fmt: skip


def _list_policies(cases: Sequence[Row]) -> list[str]:
    rows: dict[tuple[str, str], list[str]] = {}
    for row in cases:
        told = row.published.published_remat
        if row.published.case is not None and told != row.published.case.training.remat:
            rows.setdefault((told, row.published.case.training.remat), []).append(str(row.published.row))
    return [
        f"- † Rows {', '.join(numbers)} ran with `{told}`; the nearest that the step has is `{own}`."
        for (told, own), numbers in rows.items()
    ]


def _list_notes(cases: Sequence[Row]) -> list[str]:
    notes = [f"- Row {row.published.row}: {row.published.note}." for row in cases if row.published.note]
    failed = [row for row in cases if row.answer is not None and row.answer.estimated_step_s is None]
    return notes + [f"- Row {row.published.row} has no estimate: {tell(row)}." for row in failed]


def _list_left_out(rows: Sequence[Row]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.published.left_out:
            reasons.setdefault(row.published.left_out, []).append(str(row.published.row))
    return [f"- Left out, rows {', '.join(numbers)}: {reason}." for reason, numbers in reasons.items()]


def _tell_versions(cases: Sequence[Row]) -> str:
    found = {name: told for row in cases if row.answer is not None for name, told in row.answer.versions.items()}
    return f"With {', '.join(f'{name} {found[name]}' for name in sorted(found))}." if found else "Nothing was asked."


def tell(row: Row) -> str:
    """Returns the estimate and its error, or why there is none."""
    if row.answer is None:
        return "not asked"
    if row.error is not None:
        return f"{row.answer.estimated_step_s:.2f} s, published {row.published.measured_s:.2f} s, {row.error:+.1%}"
    reason = " ".join((row.answer.reason or "no cycles told").split())
    return f"{row.answer.status.replace('_', ' ')}: {reason[:300].rstrip('.')}"


def write_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    cells = [columns, ("---",) * len(columns), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _write(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
