"""`make accuracy`: predictions of runs that the predictor has not seen, beside what was published.

Prints the tables; `--write` puts them into docs/accuracy.md, and every row into tests/accuracy/rows.csv. `--rows`
prints the rows too, `--set` asks about some sets alone (they are still fitted on all).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.accuracy.cost_tables import add_spreads
from tests.accuracy.evaluate import Predictor, Row, add_intervals
from tests.accuracy.goals import STEP_GOALS, Goal
from tests.accuracy.null import CONSTANT, TEXTBOOK
from tests.accuracy.ours import OURS, write_peaks
from tests.accuracy.page import (
    build_interval_table,
    build_memory_table,
    build_ranking_table,
    build_row_table,
    build_section,
    build_step_table,
    write_rows,
)
from tests.accuracy.report import SetReport, report_set
from tests.accuracy.runs import read_collection
from tests.compiler.page import put_section

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"
ROWS: Final = Path(__file__).with_name("rows.csv")
HEADING: Final = "# Accuracy\n"
SECTION: Final = "accuracy"
PEAKS_SECTION: Final = "peaks"

PREDICTORS: Final[Mapping[str, Callable[[], Predictor[Any]]]] = {
    "ours": lambda: OURS,
    "constant": lambda: CONSTANT,
    "textbook": lambda: TEXTBOOK,
}
"""By the name that `--predictor` takes; called when asked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for a set that there is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name} and tests/accuracy/{ROWS.name}")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--set", action="append", default=[], choices=[goal.name for goal in STEP_GOALS], dest="sets")
    parser.add_argument("--predictor", default="ours", choices=list(PREDICTORS))
    asked = parser.parse_args(arguments)
    if asked.write and asked.sets:
        parser.error("--write writes all sets; leave out --set")
    predictor = PREDICTORS[asked.predictor]()
    goals = [goal for goal in STEP_GOALS if not asked.sets or goal.name in asked.sets]
    rows = add_intervals(add_spreads(predictor.evaluate(read_collection().runs, sets=asked.sets)))
    show(predictor, goals, rows, has_rows=asked.rows)
    if asked.write:
        write(predictor, goals, rows)
    return 0


def show(predictor: Predictor[Any], goals: Sequence[Goal], rows: Sequence[Row], *, has_rows: bool) -> None:
    """Prints the figures of these sets, and if asked their rows."""
    nulls, reports = report_nulls(goals), report_all(goals, rows)
    print(f"{predictor.name}\n")
    print(build_step_table(nulls, reports, read_collection().left_out))
    for build in (build_interval_table, build_memory_table):
        print(build(reports))
    print(build_ranking_table(nulls, reports))
    if has_rows:
        print(build_row_table(rows))


def write(predictor: Predictor[Any], goals: Sequence[Goal], rows: Sequence[Row]) -> None:
    """Writes the page and the table of rows."""
    left_out = read_collection().left_out
    text = build_section(report_nulls(goals), report_all(goals, rows), left_out, predictor.name)
    page = put_section(PAGE.read_text() if PAGE.exists() else HEADING, SECTION, text)
    PAGE.write_text(put_section(page, PEAKS_SECTION, write_peaks()))
    ROWS.write_text(write_rows(rows, left_out))


def report_nulls(goals: Sequence[Goal]) -> dict[str, SetReport]:
    """Returns the figures of the null that each set is set beside: the textbook where its order or scale counts."""
    return {
        goal.name: report_set(
            (TEXTBOOK if goal.is_scaled else CONSTANT).evaluate(
                [run for run in read_collection().runs if run.set_name == goal.name]
            ),
            goal,
        )
        for goal in goals
    }


def report_all(goals: Sequence[Goal], rows: Sequence[Row]) -> dict[str, SetReport]:
    """Returns the figures of these rows, by set."""
    return {goal.name: report_set([row for row in rows if row.run.set_name == goal.name], goal) for goal in goals}


if __name__ == "__main__":
    sys.exit(main())
