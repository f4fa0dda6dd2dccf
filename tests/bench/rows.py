"""Rows of the table, measured by a program in a process of its own: `python -m MODULE` for people, `… rows` for us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

Row = tuple[str, str, str]
"""What was measured, the figure, and what it was measured on or against."""


OVER: Final = "OVER"


def judge(note: str, budget: str, *, is_kept: bool) -> str:
    """Returns the note with the budget of the row, and the word that it was not kept."""
    return f"{note}; budget {budget}" + ("" if is_kept else f", {OVER}")


def run_rows(module: str, environ: Mapping[str, str]) -> list[Row]:
    """Returns what `module` measures under these variables."""
    command = [sys.executable, "-m", module, "rows"]
    done = subprocess.run(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True, check=True)
    return [(name, value, note) for name, value, note in json.loads(done.stdout.splitlines()[-1])]


def tell_rows(measure: Callable[[], list[Row]], run: Callable[[], list[Row]]) -> None:
    """Prints what `measure` returns as JSON when called as `rows`; else, for people, what `run` does."""
    if sys.argv[1:] == ["rows"]:
        print(json.dumps(measure()))
        return
    for name, value, note in run():
        print(f"{name:<64} {value:>12}   {note}")
