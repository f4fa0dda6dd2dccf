"""The tables that the cost model reads of GPUs, made from fits: `constants.csv` and `intervals.csv`; errors told.

Rule: each row says which runs it comes from, and how far runs that were left out were from it. Rows of other platforms
stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np

from meshwright.planning.cost.practice import DEFAULT, UNITS, Practice
from tests.accuracy.cost import COST, STARTS, Constants, fit
from tests.accuracy.evaluate import Fold, Row, by_fold
from tests.accuracy.goals import STEP_GOALS
from tests.accuracy.metrics import summarize_errors
from tests.accuracy.report import report_set
from tests.accuracy.run import Run
from tests.accuracy.runs import read_runs, select_timed

FOLDER: Final = Path(str(files("meshwright.planning.cost")))
TABLE: Final = FOLDER / "constants.csv"
INTERVALS: Final = FOLDER / "intervals.csv"
COLUMNS: Final = ("practice", "platform", "family", "name", "value", "unit", "source")
INTERVAL_COLUMNS: Final = ("practice", "platform", "family", "low", "high", "rows", "source")
PLATFORM: Final = "gpu"
LEAST_ROWS: Final = 10
"""Residuals that an interval is made of at least."""

NEAREST: Final = "megatron-core"
"""Whose constants XLA on GPUs is given."""
NONE_AT_HAND: Final = (
    f"no JAX run on GPUs was at hand to fit to: as {NEAREST}; five of MaxText on 8 to 128 H100 are within 7 % "
    "(tests/unit/accuracy/test_cost.py)"
)
GIVEN: Final[Mapping[str, tuple[float, str]]] = {
    "launch_s": (0.0, "a step is one compiled program"),
    "launch_expert_s": (0.0, "a step is one compiled program"),
    "dispatch_s": (0.0, "a step is one compiled program, whose sizes are fixed"),
    "step_s": (0.0, "no run says"),
}
"""Of XLA on GPUs, whatever others have."""

Cells = dict[str, str]


def read_gpu_runs() -> tuple[Run, ...]:
    """Returns the runs that constants are fitted to."""
    return tuple(run for run in select_timed(read_runs()) if run.practice in STARTS)


def build_constants(runs: Sequence[Run], constants: Constants, rows: Sequence[Row]) -> Iterator[Cells]:
    """Yields the rows of `constants.csv` for GPUs.

    Args:
        runs: that the constants were fitted to.
        constants: the fits.
        rows: predictions of the same runs, each left out.
    """
    for practice, tuned in constants.frameworks.items():
        source = _tell_fit(practice, runs, rows)
        yield from _build_practice(practice, tuned.practice, STARTS[practice].names, source)
        for family, factors in sorted(tuned.factors.items()):
            for name in factors:
                yield _build_cells(practice, family, name, getattr(tuned.find(family), name), source)
        if practice == NEAREST:
            yield from _build_default(constants, source)


def _build_default(constants: Constants, source: str) -> Iterator[Cells]:
    tuned = constants.frameworks[NEAREST]
    for name in UNITS:
        if name in GIVEN:
            value, reason = GIVEN[name]
            yield _build_cells(DEFAULT, "", name, value, reason)
        elif name in STARTS[NEAREST].names or getattr(tuned.practice, name) != getattr(Practice(), name):
            yield _build_cells(DEFAULT, "", name, getattr(tuned.practice, name), f"{NONE_AT_HAND}; {source}")
    for family, factors in sorted(tuned.factors.items()):
        for name in factors:
            value = getattr(tuned.find(family), name)
            yield _build_cells(DEFAULT, family, name, value, f"{NONE_AT_HAND}; {source}")


def _build_practice(practice: str, values: Practice, fitted: Sequence[str], source: str) -> Iterator[Cells]:
    for name in UNITS:
        value = getattr(values, name)
        if name in fitted:
            yield _build_cells(practice, "", name, value, source)
        elif value != getattr(Practice(), name):
            yield _build_cells(practice, "", name, value, "assumed: what the prior of the fit has")


def _build_cells(practice: str, family: str, name: str, value: float, source: str) -> Cells:
    return dict(zip(COLUMNS, (practice, PLATFORM, family, name, f"{value:.4g}", UNITS[name], source), strict=True))


def _tell_fit(practice: str, runs: Sequence[Run], rows: Sequence[Row]) -> str:
    own = [run for run in runs if run.practice == practice]
    errors = _summarize([row for row in rows if row.run.practice == practice])
    sets = ", ".join(dict.fromkeys(run.set_name for run in own))
    return f"fit to {len(own)} runs ({sets}), tests/accuracy/cost.py; left out: {errors}"


def _summarize(rows: Sequence[Row]) -> str:
    told = [(row.prediction.step_s or np.nan, row.run.step_s or np.nan) for row in rows if row.error is not None]
    found = summarize_errors(*zip(*told, strict=True))
    return f"median {100 * found.median:.1f} %, p90 {100 * found.p90:.1f} %"


def build_intervals(rows: Sequence[Row]) -> Iterator[Cells]:
    """Yields the rows of `intervals.csv` for GPUs: of each framework and family, of either, and of all."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.error is not None:
            for practice in (row.run.practice, ""):
                for family in (row.run.chip_group, ""):
                    found.setdefault((practice, family), []).append(row)
    for (practice, family), members in sorted(found.items()):
        if len(members) >= LEAST_ROWS:
            low, high = find_quantiles(members)
            sets = ", ".join(dict.fromkeys(row.run.set_name for row in members))
            figures = (f"{low:.4f}", f"{high:.4f}", str(len(members)), f"left-out runs of {sets}")
            yield dict(zip(INTERVAL_COLUMNS, (practice, PLATFORM, family, *figures), strict=True))


def find_quantiles(rows: Sequence[Row], share: float = 0.8, *, fold: Fold = by_fold) -> tuple[float, float]:
    """Returns bounds of log(measured ÷ predicted) for a run of another fold: this share of rows, and somewhat more.

    Folds weigh alike, as relatives are off together; K folds say so much less of the next one that the bounds are set
    apart by 1 + 2/K; the 2 is chosen, as 1 leaves too many runs of megatron-bridge out.
    """
    counts: dict[str, int] = {}
    for row in rows:
        counts[fold(row.run)] = counts.get(fold(row.run), 0) + 1
    logs = np.array([-np.log1p(row.error or 0.0) for row in rows])
    weights = np.array([1 / counts[fold(row.run)] for row in rows])
    order = np.argsort(logs)
    reached = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    low, high = np.interp([(1 - share) / 2, (1 + share) / 2], reached, logs[order])
    more = (high - low) / len(counts)
    return float(low - more), float(high + more)


def add_spreads(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Returns the rows with intervals as `practice.interval` gives them on GPUs, each from rows of other folds alone.

    Rows on TPUs stay: their intervals are made by another rule (`tpu.build_spreads`), which is `add_intervals`.
    """
    fitted = [row for row in rows if row.run.practice in STARTS]
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    for row in fitted:
        if _find_key(row) not in found:
            others = [each for each in fitted if each.run.fold != row.run.fold]
            found[_find_key(row)] = find_quantiles(_find_nearest(row.run, others))
    return tuple(_add_spread(row, *found[_find_key(row)]) if _find_key(row) in found else row for row in rows)


def _find_key(row: Row) -> tuple[str, str, str]:
    return row.run.fold, row.run.practice, row.run.chip_group


def _add_spread(row: Row, low: float, high: float) -> Row:
    step_s = row.prediction.step_s
    if step_s is None:
        return row
    bounds = {"low_s": step_s * float(np.exp(low)), "high_s": step_s * float(np.exp(high))}
    return replace(row, prediction=replace(row.prediction, **bounds))


def _find_nearest(run: Run, others: Sequence[Row]) -> Sequence[Row]:
    """Returns the rows of the nearest kind of which there are enough, as `practice.find_spread` does."""
    practice = [row for row in others if row.run.practice == run.practice]
    family = [row for row in others if row.run.chip_group == run.chip_group]
    both = [row for row in practice if row.run.chip_group == run.chip_group]
    return next((rows for rows in (both, practice, family) if len(rows) >= LEAST_ROWS), others)


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> None:
    """Puts the rows into a table in place of all that it has for GPUs; others stay."""
    others: list[Mapping[str, str]] = []
    if path.exists():
        others = [row for row in csv.DictReader(path.read_text().splitlines()) if row["platform"] != PLATFORM]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*others, *rows])
    path.write_text(text.getvalue())


def show(rows: Sequence[Row]) -> None:
    """Prints the errors of each set."""
    for goal in STEP_GOALS:
        own = [row for row in rows if row.run.set_name == goal.name]
        if not own:
            continue
        found = report_set(own, goal)
        print(f"{goal.name}: {found.rows} rows, {_summarize(own)}")
        if found.scaled:
            print(f"    after one scale: median {100 * found.scaled.median:.1f} %, p90 {100 * found.scaled.p90:.1f} %")
        if found.ranking:
            print(f"    {found.ranking}")
        if found.coverage:
            print(f"    {found.coverage}")


def main(arguments: Sequence[str]) -> int:
    """Prints errors of runs left out; writes the tables where it is told to."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.cost", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} and {INTERVALS.name}")
    asked = parser.parse_args(arguments)
    runs = read_gpu_runs()
    rows = add_spreads(COST.evaluate(runs))
    show(rows)
    if asked.write:
        write_table(TABLE, COLUMNS, build_constants(runs, fit(runs), rows))
        write_table(INTERVALS, INTERVAL_COLUMNS, build_intervals(rows))
    return 0
