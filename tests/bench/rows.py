"""Rows of the table, measured by a program in a process of its own: `python -m MODULE` for people, `… rows` for us."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

Row = tuple[str, str, str]
"""What was measured, the figure, and what it was measured on or against."""

Call = Callable[[], Any]

OVER: Final = "OVER"


def judge(note: str, budget: str, *, is_kept: bool) -> str:
    """Returns the note with the budget of the row, and the word that it was not kept."""
    return f"{note}; budget {budget}" + ("" if is_kept else f", {OVER}")


def time_in_turns(*ways: tuple[Call | None, Call], rounds: int) -> list[float]:
    """Returns median seconds of calls that take turns, after a first round that is not counted.

    The first of a pair prepares the second, and is not counted either.
    """
    taken: list[list[float]] = [[] for _ in ways]
    for turn in range(rounds + 1):
        for (prepare, way), seconds in zip(ways, taken, strict=True):
            if prepare is not None:
                prepare()
            began_s = time.perf_counter()
            way()
            if turn:
                seconds.append(time.perf_counter() - began_s)
    return [statistics.median(seconds) for seconds in taken]


def time_call(call: Call, *, rounds: int) -> float:
    """Returns the median seconds of a call, after a first one that is not counted."""
    return time_in_turns((None, call), rounds=rounds)[0]


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
