"""`make step-table`: the compiler's estimate of a step beside the published time, for every published run.

Prints the table; `--write` puts it into docs/explanation/step-estimates.md. Compiles one after the other, some minutes
each, and keeps the answers in tests/compiler/steps/estimates.jsonl, so that an ended run goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tests.compiler.page import put_section
from tests.compiler.steps.answers import Answers
from tests.compiler.steps.estimate_table import Row, build_section, tell
from tests.compiler.steps.published import Published, read_published

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "step-estimates.md"
KEPT: Final = Path(__file__).with_name("estimates.jsonl")
SECTION: Final = "step-estimates"


def main() -> int:
    """Returns the exit status: 1 where a row was not asked, as a complete table has none."""
    parser = argparse.ArgumentParser(prog="python -m tests.compiler.steps.estimates", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/explanation/{PAGE.name}")
    parser.add_argument("--rows", default="", metavar="N,N", help="ask for these alone; others as they are kept")
    options = parser.parse_args()
    wanted = {int(row) for row in options.rows.split(",") if row}
    rows = [estimate(published, Answers(KEPT), wanted) for published in read_published()]
    text = build_section(rows)
    print(text)
    if options.write:
        PAGE.write_text(put_section(PAGE.read_text(), SECTION, text))
    missing = [row.published.row for row in rows if row.published.case is not None and row.answer is None]
    if missing:
        print(f"not asked: rows {', '.join(map(str, missing))}", file=sys.stderr)
    return 1 if missing else 0


def estimate(published: Published, answers: Answers, wanted: Collection[int]) -> Row:
    """Returns a row; asks the compiler where no answer is kept, and `wanted` is empty or has the row."""
    if published.case is None:
        return Row(published)
    job = published.case.build_job()
    answer = answers.find(job)
    if answer is None and (not wanted or published.row in wanted):
        answer = answers.ask(job)
    row = Row(published, answer)
    print(f"{published.row} {published.case.name}: {tell(row)}", file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
