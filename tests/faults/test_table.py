"""The table of docs/explanation/robustness.md names tests that exist, and every test of a fault stands in it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.documents import ROOT, Document

PAGE = Document.read("docs/explanation/robustness.md")
NAMED = {row[-1] for row in PAGE.table("Faults")}


def has_test(name: str) -> bool:
    path, _, function = name.partition("::")
    return (ROOT / path).is_file() and bool(re.search(rf"(?m)^(async )?def {function}\(", (ROOT / path).read_text()))


def test_every_named_test_exists() -> None:
    assert [name for name in sorted(NAMED) if not has_test(name)] == []


def test_every_module_of_faults_stands_in_the_table() -> None:
    modules = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {"test_table.py"}
    assert modules <= {name.partition("::")[0].rpartition("/")[2] for name in NAMED}
