"""`make order-table`: prints the table, and exits 1 when a rule is broken.

`--write` puts the table into docs/explanation/device-order.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.compiler.page import put_section
from tests.compiler.sweep.cases import Case, count_factorings, list_cases, list_several
from tests.compiler.sweep.orders import Row, compare_cases
from tests.compiler.sweep.table import build_table, list_complaints, tell

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "device-order.md"
MARK: Final = "sweep"
WORKERS: Final = 2
PART: Final = 20
"""Cases on several slices that are one piece of work."""


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.compiler.sweep", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    asked = parser.parse_args()
    began_s = time.perf_counter()
    several = list_several()
    parts = [several[start : start + PART] for start in range(0, len(several), PART)]
    rows = compare_all([*list_cases(), *parts])
    print(f"({time.perf_counter() - began_s:.0f} s)", file=sys.stderr)
    table = build_table(rows) + tell(rows, count_factorings(), version("jax"))
    print(table)
    if asked.write:
        PAGE.write_text(put_section(PAGE.read_text(), MARK, table))
    complaints = list_complaints(rows)
    for complaint in complaints:
        print(f"broken: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def compare_all(parts: Sequence[Sequence[Case]], workers: int = WORKERS) -> list[Row]:
    """Returns a row for each case, in their order. The parts are compared in processes, the longest first."""
    order = sorted(range(len(parts)), key=lambda place: -_weigh(parts[place]))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        done = dict(zip(order, pool.map(compare_cases, [parts[place] for place in order]), strict=True))
    return [row for place in range(len(parts)) for row in done[place]]


def _weigh(cases: Sequence[Case]) -> int:
    return sum(case.slice.device_count * case.slice_count for case in cases)


if __name__ == "__main__":
    sys.exit(main())
