"""`make verify-order`: prints the table, and exits 1 when an axis is worse with our order than with JAX's.

`--write` puts its sum into docs/explanation/device-order.md and the table into tests/compiler/axes.md.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.compiler.cases import CASES
from tests.compiler.compare import build_table, compare_orders, list_complaints, summarize
from tests.compiler.page import put_section

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "device-order.md"
TABLE: Final = Path(__file__).with_name("axes.md")
SECTION: Final = "verify-order"


def main() -> int:
    """Returns the exit status: 1 when an axis is worse with our order."""
    parser = argparse.ArgumentParser(prog="python -m tests.compiler", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {TABLE.name}")
    is_written = parser.parse_args().write
    rows = compare_orders(CASES)
    table, told = build_table(rows), f"{summarize(rows)}\n\nWith jax {version('jax')} and libtpu {version('libtpu')}.\n"
    print(f"{table}\n{told}")
    if is_written:
        PAGE.write_text(put_section(PAGE.read_text(), SECTION, told))
        TABLE.write_text(table)
    complaints = list_complaints(rows)
    for complaint in complaints:
        print(f"worse: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
