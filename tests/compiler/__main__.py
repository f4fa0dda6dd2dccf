"""`make verify-order`: prints the table, and exits 1 when an axis is worse with our order than with JAX's.

`--write` puts the table into docs/device-order.md.
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
from tests.compiler.compare import Row, build_table, compare_orders, list_complaints
from tests.compiler.page import put_section

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "device-order.md"
HEADING: Final = "# The device order\n"
SECTION: Final = "verify-order"


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.compiler", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    page = PAGE if parser.parse_args().write else None
    began_s = time.perf_counter()
    rows = compare_orders(CASES)
    print(f"({time.perf_counter() - began_s:.0f} s)", file=sys.stderr)
    return report(rows, page)


def report(rows: Sequence[Row], page: Path | None = None) -> int:
    """Prints the table, writes it into `page`, complains; returns 1 when an axis is worse with our order, else 0."""
    table = build_table(rows) + f"\nWith jax {version('jax')} and libtpu {version('libtpu')}.\n"
    print(table)
    if page is not None:
        page.parent.mkdir(exist_ok=True)
        page.write_text(put_section(page.read_text() if page.exists() else HEADING, SECTION, table))
    complaints = list_complaints(rows)
    for complaint in complaints:
        print(f"worse: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
