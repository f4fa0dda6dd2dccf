"""A load beside what is measured, in a process of its own: `python -m tests.bench.strain searches PORT`, or `… spin`.

Rule: it works for as many seconds as a line of its stdin says, then prints how often it got through and what each took.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from meshwright_agent.children.planner import NICENESS
from tests.bench.load import Target, fetch

LIMIT_S: Final = 120.0
"""An end that does not come within so long after its time is an error."""


@dataclass(frozen=True)
class Done:
    """What a load did in one round.

    Attributes:
        count: how often it got through.
        median_s: of what each took.
    """

    count: int
    median_s: float


class Strain:
    """The process of a load, which waits until it is told to work."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, seconds: float) -> None:
        """Lets it work for so long."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def end(self) -> Done:
        """Returns what it did, when its time is over."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load ended with status {self._process.wait(LIMIT_S)}")
        return Done(**json.loads(line))


@contextlib.contextmanager
def start_strain(*arguments: str) -> Iterator[Strain]:
    """Yields a load that has been through once, so that what it asks of is warm."""
    command = [sys.executable, "-m", "tests.bench.strain", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        strain = Strain(process)
        try:
            strain.begin(0.0)
            strain.end()
            yield strain
        finally:
            process.kill()


def search(port: int) -> Callable[[], object]:
    """Returns a call that asks an agent for the best mesh of a 70B model on 512 GPUs."""
    training = {"sequence_length": 8192, "global_batch": 512}
    asked: dict[str, Any] = {"model": "llama3-70b", "target": "64*h100:8", "training": training}
    body = json.dumps({**asked, "include_devices": False, "top": 1}).encode()
    target = Target("search", port, "/mesh/plan", body)
    return lambda: fetch(target)


def spin() -> None:
    """Counts for some milliseconds: what a planner would do to others if it only took a core."""
    for _ in range(1_000_000):
        pass


def repeat(call: Callable[[], object], seconds: float) -> Done:
    """Returns what came of calls back to back, at least one, for so long."""
    ended_s = time.perf_counter() + seconds
    taken: list[float] = []
    while not taken or time.perf_counter() < ended_s:
        began_s = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began_s)
    return Done(len(taken), statistics.median(taken))


def main() -> None:
    """Works for as long as each line says."""
    if sys.argv[1] == "spin":
        os.nice(NICENESS)
    call = spin if sys.argv[1] == "spin" else search(int(sys.argv[2]))
    for line in sys.stdin:
        done = repeat(call, float(line))
        print(json.dumps({"count": done.count, "median_s": done.median_s}), flush=True)


if __name__ == "__main__":
    main()
