"""`make verify-steps`: prints peak memory of our step and of the other, and exits 1 where they differ by over a tenth.

`--write` puts the tables into docs/explanation/step-estimates.md. Answers are kept: an ended run goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.compiler.page import put_section
from tests.compiler.steps.answers import Answers, add_options
from tests.compiler.steps.cases import CASES
from tests.compiler.steps.weigh import Row, build_tables, weigh_case

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "step-estimates.md"
KEPT: Final = Path(__file__).with_name("peaks.jsonl")
HEADING: Final = "# Steps, compiled\n"
SECTION: Final = "step-peaks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.compiler.steps", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/explanation/{PAGE.name}")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this in it")
    add_options(parser, KEPT)
    asked = parser.parse_args(arguments)
    answers, rows = Answers.of(asked), []
    for case in (case for case in CASES if asked.only in case.name):
        rows.append(weigh_case(case, answers))
        print(f"{case.name}: {rows[-1].ratio}", file=sys.stderr, flush=True)
    return report(rows, PAGE if asked.write else None)


def report(rows: Sequence[Row], page: Path | None = None) -> int:
    """Prints the tables, writes them into `page`, complains; returns 1 where there is a complaint, else 0."""
    text = f"{build_tables(rows)}\nWith jax {version('jax')} and libtpu {version('libtpu')}.\n"
    print(text)
    if page is not None:
        page.write_text(put_section(page.read_text() if page.exists() else HEADING, SECTION, text))
    complaints = [complaint for row in rows for complaint in row.list_complaints()]
    for complaint in complaints:
        print(f"differs: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
