"""Our order beside JAX's, axis by axis: which of them the compiler gives more colors, as rows of a table.

Rule: an axis is worse with ours when ours does not compile, or has fewer colors than JAX's. Phases and hops are told,
not judged. Knows no JAX.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.compiler.cases import Answer, Case
from tests.process.slice_environment import SLICE_ENVIRONMENT

ROOT: Final = Path(__file__).resolve().parents[2]
WORKERS: Final = 2
LIMIT_S: Final = 600.0

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


def compare_orders(cases: Iterable[Case]) -> list[Row]:
    """Returns a row for each axis of each case."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return [row for rows in pool.map(_compare_case, cases) for row in rows]


def _compare_case(case: Case) -> list[Row]:
    answers = zip(case.axes, _ask_child(case, "ours"), _ask_child(case, "jax"), strict=True)
    return [Row(case, axis, ours, theirs) for axis, ours, theirs in answers]


def _ask_child(case: Case, order: str) -> list[Answer]:
    """Returns the answer for each axis; a bad order can abort the process that compiles it, which is an answer too."""
    command = [sys.executable, "-m", "tests.compiler.job", case.topology, order, *map(str, case.sizes)]
    environ = {**os.environ, **SLICE_ENVIRONMENT}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode < 0:
        return [Answer(failure=f"process abort ({signal.Signals(-done.returncode).name})")] * len(case.axes)
    assert done.returncode == 0, done.stderr[-2000:]
    return [Answer(**answer) for answer in json.loads(done.stdout.splitlines()[-1])]


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
