"""PromQL expressions as our tests look at them: which metrics they name, and with which labels. Promtool judges syntax.

Knows no more of the language than names, selectors and groupings; text in quotes is left out before.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.documents import Document

SCRAPED: Final = {"job", "instance"}
"""Labels that Prometheus adds to what it scrapes."""
FOREIGN: Final = ("up", "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds")
"""Not ours: Prometheus' own, and what prometheus-client tells of each process."""

_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_METRIC: Final = re.compile(r"\b(?:meshwright_\w+|process_\w+|up)\b(?!\s*\()")
_SELECTOR: Final = re.compile(r"(\w+)\s*\{([^}]*)\}")
_GROUPING: Final = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_VARIABLES: Final = {"$__rate_interval": "5m", "$job": "meshwright", "$instance": "a"}
"""Grafana's, as values that Prometheus takes."""


def list_metrics() -> dict[str, set[str]]:
    """Returns the labels of every metric that may be named, and of the parts of histograms."""
    known: dict[str, set[str]] = {name: set() for name in FOREIGN}
    for name, kind, labels, _ in Document.read("docs/reference/metrics.md").table("Metrics"):
        own = set(labels.replace(",", " ").split())
        if kind == "histogram":
            known |= {f"{name}_sum": own, f"{name}_count": own, f"{name}_bucket": own | {"le"}}
        else:
            known[name] = own
    return known


def find_unknown(expression: str, known: Mapping[str, set[str]]) -> list[str]:
    """Returns what an expression names that is none: metrics, labels in selectors, labels in groupings."""
    bare = _TEXT.sub('""', expression)
    names = set(_METRIC.findall(re.sub(r"\{[^}]*\}", "", bare)))
    wrong = [name for name in names if name not in known]
    for name, inside in _SELECTOR.findall(bare):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))
        wrong += [f"{name}{{{label}}}" for label in labels - known.get(name, set()) - SCRAPED]
    there = SCRAPED.union(*(known.get(name, set()) for name in names))
    for inside in _GROUPING.findall(bare):
        wrong += [f"({label})" for label in set(re.findall(r"\w+", inside)) - there]
    if not names:
        wrong.append(f"no metric in {expression!r}")
    return wrong


def fill_variables(expression: str) -> str:
    """Returns a dashboard's expression as Prometheus gets it."""
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def check_rules(expressions: Iterable[str], folder: Path) -> None:
    """Passes where promtool parses every expression."""
    rules = [f"      - record: expression:{n}\n        expr: |2\n          {e}\n" for n, e in enumerate(expressions)]
    file = folder / "rules.yaml"
    file.write_text("groups:\n  - name: all\n    rules:\n" + "".join(rules))
    run_promtool("check", "rules", str(file))


def run_promtool(*arguments: str, input_text: str | None = None, cwd: Path | None = None) -> None:
    """Passes where promtool does; where there is none, the test is skipped."""
    command = shutil.which("promtool") or pytest.skip(
        "promtool is not here; to add it: sudo apt-get install --no-install-recommends prometheus"
    )
    done = subprocess.run([command, *arguments], cwd=cwd, input=input_text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
