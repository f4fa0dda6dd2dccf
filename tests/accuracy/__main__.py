"""`make accuracy`: the cost model's word on published runs and on our own step's peaks, beside what was measured.

Prints a table for seconds and one for memory; `--rows` prints each row too. The constants are those of the planner's
tables, so rows that they were fitted to are among these. docs/accuracy.md has the errors of rows left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from tests.accuracy.experts import read_expert_runs
from tests.accuracy.memory import price_peak, price_run_memory
from tests.accuracy.peaks import read_peaks
from tests.accuracy.price import price_run
from tests.accuracy.runs import read_runs, select_timed

Row = tuple[str, str, float, float]
"""Set, name, measured and predicted."""


def list_seconds() -> Iterator[Row]:
    """Yields every published run with its seconds."""
    for run in select_timed(read_runs()):
        yield run.set_name, run.id, run.step_s or 0.0, price_run(run)
    for each in read_expert_runs():
        yield "experts on TPUs", each.run.id, each.run.step_s or 0.0, price_run(each.run, each.kept)


def list_memory() -> Iterator[Row]:
    """Yields every published run, and every compiled case of our own step, with its peak in bytes."""
    for run in read_runs():
        if run.peak_bytes and run.memory_kind != "calculated":
            yield run.set_name, run.id, run.peak_bytes, price_run_memory(run)
    for peak in read_peaks():
        if told := peak.peak_bytes or peak.needed_bytes:
            yield f"our own step, {peak.platform}", f"{peak.id} {peak.case.name}", told, price_peak(peak)


def show(rows: Sequence[Row], *, has_rows: bool) -> None:
    """Prints the errors of each set: predicted ÷ measured − 1."""
    print("| set | rows | median | p90 | bias |\n| --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(row[0] for row in rows):
        errors = np.array([predicted / measured - 1 for set_name, _, measured, predicted in rows if set_name == name])
        median, p90 = np.quantile(np.abs(errors), [0.5, 0.9])
        print(f"| {name} | {len(errors)} | {median:.1%} | {p90:.1%} | {np.median(errors):+.1%} |")
    for name, id_, measured, predicted in rows if has_rows else ():
        print(f"{name} {id_}: {measured:.6g}, predicted {predicted:.6g}, {predicted / measured - 1:+.1%}")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--rows", action="store_true", help="print every row")
    has_rows = parser.parse_args().rows
    show(list(list_seconds()), has_rows=has_rows)
    show(list(list_memory()), has_rows=has_rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
