"""`make verify-order`: prints the table, and exits 1 when an axis is worse with our order than with JAX's.

`--write` puts its sum into docs/explanation/device-order.md and the table into tests/compiler/axes.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.compiler.cases import CASES
from tests.compiler.compare import Row, build_table, compare_orders, list_complaints, summarize
from tests.compiler.page import put_section

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "device-order.md"
TABLE: Final = Path(__file__).with_name("axes.md")
HEADING: Final = "# The device order\n"
SECTION: Final = "verify-order"


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.compiler", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {TABLE.name}")
    files = (PAGE, TABLE) if parser.parse_args().write else None
    began_s = time.perf_counter()
    rows = compare_orders(CASES)
    print(f"({time.perf_counter() - began_s:.0f} s)", file=sys.stderr)
    return report(rows, files)


def report(rows: Sequence[Row], files: tuple[Path, Path] | None = None) -> int:
    """Prints the table with its sum, writes the sum into the page and the table into the file, and complains.

    Returns:
        1 when an axis is worse with our order, else 0.
    """
    table, told = build_table(rows), f"{summarize(rows)}\n\nWith jax {version('jax')} and libtpu {version('libtpu')}.\n"
    print(f"{table}\n{told}")
    if files is not None:
        page, kept = files
        page.write_text(put_section(page.read_text() if page.exists() else HEADING, SECTION, told))
        kept.write_text(table)
    complaints = list_complaints(rows)
    for complaint in complaints:
        print(f"worse: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
