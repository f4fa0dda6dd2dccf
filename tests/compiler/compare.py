"""Our order beside JAX's, axis by axis: which of them the compiler gives more colors, as rows of a table.

Rule: an axis is worse with ours when ours does not compile, or has fewer colors than JAX's. Phases and hops are told,
not judged. Knows no JAX.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.compiler.cases import Case
from tests.compiler.children import COMMAND, Answer, Job, run_jobs

WORKERS: Final = 2

_COLUMNS: Final = ("slice", "mesh", "axis", "ours", "colors", "phases", "hops", "JAX's", "colors", "phases", "hops")


@dataclass(frozen=True)
class Row:
    """One axis of a case, with what the compiler does in both orders."""

    case: Case
    axis: int
    ours: Answer
    jax: Answer

    @property
    def is_worse(self) -> bool:
        """True when ours fails, or has fewer colors."""
        return self.ours.failure is not None or (self.ours.colors or 0) < (self.jax.colors or 0)

    @property
    def is_better(self) -> bool:
        """True when ours compiles, and JAX's does not or has fewer colors."""
        fails = self.jax.failure is not None
        return not self.is_worse and (fails or (self.ours.colors or 0) > (self.jax.colors or 0))


def compare_orders(cases: Iterable[Case], command: Sequence[str] = COMMAND, workers: int = WORKERS) -> list[Row]:
    """Returns a row for each axis of each case. Each slice has a child process of its own, a few at a time."""
    slices: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        slices[case.topology].append(case)
    with ThreadPoolExecutor(workers) as pool:
        return [row for rows in pool.map(lambda cases: _compare_slice(cases, command), slices.values()) for row in rows]


def _compare_slice(cases: Sequence[Case], command: Sequence[str]) -> list[Row]:
    places = [(case, axis) for case in cases for axis in case.axes]
    ours = [Job(case, axis, "ours") for case, axis in places]
    theirs = [Job(case, axis, "jax") for case, axis in places]
    answers = run_jobs([*ours, *theirs], command)
    pairs = zip(answers[: len(places)], answers[len(places) :], strict=True)
    return [Row(case, axis, *pair) for (case, axis), pair in zip(places, pairs, strict=True)]


def build_table(rows: Sequence[Row]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_list_cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _list_cells(row: Row) -> tuple[str, ...]:
    axis = f"{row.axis} ({row.case.sizes[row.axis]})"
    mesh = "×".join(map(str, row.case.sizes))
    return row.case.topology, mesh, axis, *_tell(row.ours), *_tell(row.jax)


def _tell(answer: Answer) -> tuple[str, str, str, str]:
    if answer.failure is not None:
        return answer.failure.replace("|", "/"), "–", "–", "–"
    counts = (answer.colors, answer.phases, answer.hops)
    colors, phases, hops = ("–" if count is None else str(count) for count in counts)
    return str(answer.strategy), colors, phases, hops


def summarize(rows: Sequence[Row]) -> str:
    """Returns one sentence: on how many axes ours has more colors, as many, fewer."""
    worse, better = sum(row.is_worse for row in rows), sum(row.is_better for row in rows)
    refused = sum(row.jax.failure is not None for row in rows)
    return (
        f"{len(rows)} axes of {len({row.case for row in rows})} meshes: {better} better with ours"
        f" ({refused} of them have no result with JAX's order), {len(rows) - worse - better} equal, {worse} worse."
    )


def list_complaints(rows: Iterable[Row]) -> list[str]:
    """Returns a line for each axis that is worse with ours."""
    return [
        f"{row.case.topology} mesh {row.case.sizes} axis {row.axis}: ours {' / '.join(_tell(row.ours))};"
        f" JAX's {' / '.join(_tell(row.jax))}; ours must compile and have as many colors"
        for row in rows
        if row.is_worse
    ]
