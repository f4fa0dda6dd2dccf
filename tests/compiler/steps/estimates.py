"""`make step-table`: the compiler's estimate of a step beside the published time, for every published run.

Prints the table; `--write` puts it into docs/explanation/step-estimates.md. Compiles one after the other, some minutes
each, and keeps the answers in tests/compiler/steps/estimates.jsonl, so that an ended run goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.compiler.page import put_section
from tests.compiler.steps.answers import Answers, add_options
from tests.compiler.steps.estimate_table import Row, build_section, tell
from tests.compiler.steps.published import Published, read_published

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "step-estimates.md"
KEPT: Final = Path(__file__).with_name("estimates.jsonl")
HEADING: Final = "# Steps, compiled\n"
SECTION: Final = "step-estimates"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where a row was not asked, as a complete table has none."""
    parser = argparse.ArgumentParser(prog="python -m tests.compiler.steps.estimates", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/explanation/{PAGE.name}")
    parser.add_argument("--rows", default="", metavar="N,N", help="ask for these alone; others as they are kept")
    add_options(parser, KEPT)
    asked = parser.parse_args(arguments)
    answers = Answers.of(asked)
    wanted = {int(row) for row in asked.rows.split(",") if row}
    rows = [estimate(published, answers, wanted) for published in read_published()]
    return report(rows, PAGE if asked.write else None)


def estimate(published: Published, answers: Answers, wanted: Iterable[int] = ()) -> Row:
    """Returns a row; asks the compiler where no answer is kept, and `wanted` is empty or has the row."""
    if published.case is None:
        return Row(published)
    job, chosen = published.case.build_job(), set(wanted)
    if chosen and published.row not in chosen and not answers.has("ours", job):
        return Row(published)
    row = Row(published, answers.find("ours", job))
    print(f"{published.row} {published.case.name}: {tell(row)}", file=sys.stderr, flush=True)
    return row


def report(rows: Sequence[Row], page: Path | None = None) -> int:
    """Prints the table, and writes it into `page`; returns 1 where a row was not asked, else 0."""
    text = build_section(rows)
    print(text)
    if page is not None:
        page.write_text(put_section(page.read_text() if page.exists() else HEADING, SECTION, text))
    missing = [row.published.row for row in rows if row.published.case is not None and row.answer is None]
    if missing:
        print(f"not asked: rows {', '.join(map(str, missing))}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
