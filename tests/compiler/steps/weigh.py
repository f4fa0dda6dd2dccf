"""Our step beside the other one: peak memory, parameters, and what goes over each axis, as rows of a table.

Rule: peaks that differ by more than a tenth, counts of parameters that differ at all, and a step that does not compile
are complaints; what goes over the axes is told, not judged. Knows no JAX.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.wire.verification import Verification, VerifiedCollective
from tests.compiler.steps.answers import Answers
from tests.compiler.steps.cases import Case

TOLERANCE: Final = 0.1
GIB: Final = 2**30
GB: Final = 1e9

_PEAKS: Final = ("target", "mesh", "model", "batch", "remat", "ours GiB", "other's GiB", "ratio")
_AXES: Final = ("target", "mesh", "model", "batch", "axis", "ours GB", "other's GB", "ratio")


@dataclass(frozen=True)
class Row:
    """A case with the compiler's answers."""

    case: Case
    ours: Verification
    other: Verification

    @property
    def ratio(self) -> float | None:
        """Our peak by the other's; None where one has none."""
        return divide(self.ours.peak_memory_bytes, self.other.peak_memory_bytes)

    def list_complaints(self) -> list[str]:
        """Returns what is wrong, a line each."""
        found = [
            f"{who} is {answer.status}: {answer.reason}"
            for who, answer in (("ours", self.ours), ("the other", self.other))
            if answer.status != "verified"
        ]
        if self.ours.parameter_count != self.other.parameter_count:
            found.append(f"ours has {self.ours.parameter_count} parameters, the other {self.other.parameter_count}")
        if self.ratio is not None and abs(self.ratio - 1) > TOLERANCE:
            found.append(f"our peak is {self.ratio:.3f} of the other's; it may be off by {TOLERANCE:.0%}")
        return [f"{self.case.name}: {each}" for each in found]


def weigh_case(case: Case, answers: Answers) -> Row:
    """Returns the row of a case; compiles what is not kept."""
    job = case.build_job()
    return Row(case, answers.find("ours", job), answers.find("other", job))


def divide(one: float | None, other: float | None) -> float | None:
    """Returns a ratio; None where there is none."""
    return one / other if one and other else None


def build_tables(rows: Sequence[Row]) -> str:
    """Returns peaks, their sum in a sentence, and traffic, in Markdown."""
    lines = [_list_peaks(row) for row in rows]
    axes = [cells for row in rows for cells in _list_axes(row)]
    return f"{write_table(_PEAKS, lines)}\n{summarize(rows)}\n\n{write_table(_AXES, axes)}"


def write_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    cells = [columns, ("---",) * len(columns), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def summarize(rows: Sequence[Row]) -> str:
    """Returns how many peaks agree, and the worst."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    near = sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
    worst = max(ratios, key=lambda ratio: abs(ratio - 1), default=1.0)
    return f"{near} of {len(rows)} peaks agree within {TOLERANCE:.0%}; the worst ratio is {worst:.3f}."


def _list_head(case: Case) -> tuple[str, ...]:
    batch = f"{case.training.global_batch_size}×{case.training.seq_len}"
    return case.target, case.mesh, case.model.name or "", batch


def _list_peaks(row: Row) -> tuple[str, ...]:
    peaks = (row.ours.peak_memory_bytes, row.other.peak_memory_bytes)
    remat = row.case.training.remat + (" (xla)" if row.case.training.attention == "xla" else "")
    return (*_list_head(row.case), remat, *(_write(peak, GIB) for peak in peaks), _write(row.ratio))


def _list_axes(row: Row) -> list[tuple[str, ...]]:
    ours, other = sum_traffic(row.ours.collectives), sum_traffic(row.other.collectives)
    return [
        (*_list_head(row.case), axis, _write(ours.get(axis), GB), _write(other.get(axis), GB), _write(ratio))
        for axis in sorted(ours.keys() | other.keys())
        for ratio in (divide(ours.get(axis), other.get(axis)),)
    ]


def sum_traffic(collectives: Iterable[VerifiedCollective]) -> Mapping[str, float]:
    """Returns the bytes that a device sends in a step, by axis, whichever collectives do it.

    An all-reduce is worth a reduce-scatter and an all-gather. Source: nccl-tests, doc/PERFORMANCE.md (bus bandwidth).
    """
    found: dict[str, float] = defaultdict(float)
    for each in collectives:
        part = 1 - 1 / each.group_size
        factor = {"all-reduce": 2 * part, "collective-permute": 1.0, "send": 1.0}.get(each.op, part)
        found[each.axis] += factor * each.bytes
    return dict(found)


def _write(value: float | None, unit: float = 1.0) -> str:
    return "–" if value is None else f"{value / unit:.3f}"
