"""`python -m tests.device [--write]`: the checks on the cards of this host, cheap and important ones first.

A run may be cut short: each finding is in the file as soon as it is made, `--continue` goes on where it was, and
`--from FILE --write` writes the page of a file from another machine. Without a card it says so and ends with 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Final

from tests.compiler.page import put_section
from tests.device.bed import Bed, explain_no_card
from tests.device.facts import check_facts, check_health
from tests.device.owning import (
    check_hold,
    check_idle,
    check_kill,
    check_lease,
    check_owners,
    check_quick,
    check_release,
    check_release_from_gil,
    check_rest,
)
from tests.device.record import PAGE, Done, Finding, Record, format_page, read_record
from tests.device.speed import check_speed
from tests.device.training import check_batch, check_step
from tests.documents import ROOT


@dataclass(frozen=True)
class Check:
    """A check, how long it may take, and whether CPUs have what it looks at."""

    run: Callable[[Bed], Iterator[Finding]]
    limit_s: float = 120.0
    on_cpu: bool = True


CHECKS: Final = {
    "facts": Check(check_facts), "rest": Check(check_rest), "quick": Check(check_quick),
    "release": Check(check_release, 240.0), "release from the GIL": Check(check_release_from_gil, 150.0),
    "owners": Check(check_owners, on_cpu=False), "lease": Check(check_lease, 150.0), "kill": Check(check_kill, 150.0),
    "health": Check(check_health), "speed": Check(check_speed, 240.0), "step": Check(check_step, 500.0),
    "batch": Check(check_batch, 400.0), "idle": Check(check_idle, on_cpu=False),
    "hold": Check(check_hold, on_cpu=False),
}  # fmt: skip
PACKAGES: Final = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "nvidia-ml-py", "fastapi", "pydantic")


class OutOfTimeError(Exception):
    """A check took too long."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises OutOfTimeError in the block when it takes longer."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError(f"it took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_check(name: str, check: Check, bed: Bed, record: Record, left_s: float) -> None:
    """Does one check; whatever it raises is how it ended."""
    record.begin(name)
    if bed.platform == "cpu" and not check.on_cpu:
        record.end(name, Done("skipped", 0.0, "it is about cards"))
        return
    if left_s <= 5.0:
        record.end(name, Done("skipped", 0.0, "no time was left; --continue does it"))
        return
    began_s, state, reason = time.monotonic(), "done", ""
    try:
        with limited(min(check.limit_s, left_s)):
            for finding in check.run(bed):
                record.note(name, finding)
    except Exception as error:  # the next check may tell something all the same
        words = str(error).partition("\n")[0][:300]  # the agent's log follows; it is printed, not kept
        state, reason = "failed", f"{type(error).__name__}: {words}"
        traceback.print_exc()
    record.end(name, Done(state, time.monotonic() - began_s, reason))


def run_checks(bed: Bed, record: Record, names: list[str], limit_s: float) -> None:
    """Does these checks, in the order of CHECKS, while there is time."""
    began_s = time.monotonic()
    record.note_run(describe_run(bed))
    for name, check in CHECKS.items():
        if name in names:
            run_check(name, check, bed, record, began_s + limit_s - time.monotonic())


def describe_run(bed: Bed) -> dict[str, str]:
    """Returns what the checks run on, for the record."""
    cards = bed.read_cards()
    what = f"{len(cards)} × {cards[0].kind}, driver {cards[0].driver}" if cards else "virtual CPU devices, no card"
    packages = {name: found for name in PACKAGES if (found := find_version(name))}
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}"
    return {"on": what, "host": machine, "Python": platform.python_version(), **packages}


def find_version(package: str) -> str | None:
    """Returns the version of a package; None where it is not installed."""
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def set_path() -> None:
    """Makes this tree what children import, wherever they run: nothing has to be installed."""
    folders = [str(ROOT / "client"), str(ROOT / "service"), str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 where all holds, or there is no card; 1 where something does not hold; 2: no such check."""
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument("--on", choices=("gpu", "cpu"), default="gpu", help="cpu: virtual devices, to try the checks")
    parser.add_argument("--only", default=",".join(CHECKS), help=f"of: {', '.join(CHECKS)}")
    parser.add_argument("--tries", type=int, default=5, help="how often what may vary is done")
    parser.add_argument("--limit-s", type=float, default=540.0, help="no check begins or lasts after so long")
    parser.add_argument("--out", type=Path, default=Path("device.jsonl"), help="the record; lines are added")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="leave out what the record has as done")
    parser.add_argument("--from", dest="source", type=Path, help="run nothing: take this record")
    parser.add_argument("--write", action="store_true", help=f"write the record into {PAGE.name}")
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.only.split(",")]
    if unknown := [name for name in names if name not in CHECKS]:
        print(f"there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
        return 2
    record = read_record(options.source or options.out)
    if options.source is None:
        if options.on == "gpu" and (reason := explain_no_card()):
            print(f"skipped, all of it: {reason}")
            return 0
        set_path()
        if options.goes_on:
            names = [name for name in names if name not in record.checks or record.checks[name].done.state != "done"]
        run_checks(Bed(options.on, options.tries), record, names, options.limit_s)
    if options.write:
        PAGE.write_text(put_section(PAGE.read_text(), "device", f"\n{format_page(record)}\n"))
    return 0 if record.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
