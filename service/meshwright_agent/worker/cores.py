"""leave_a_core(): while the worker measures, one core is the agent's and the host's. Runs in the worker; Linux only.

Rule: niceness does not keep a core free: who runs finishes its slice, some milliseconds, and who answers in half a
millisecond waits for it. Every thread of the process keeps off, also those that begin meanwhile; afterwards each has
the core again, but for threads that some library put elsewhere. Knows no JAX.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from meshwright.wire.base import Notice
from meshwright.wire.devices import Platform

_THREADS: Final = Path("/proc/self/task")
_PASSES: Final = 8
"""Over the threads, as long as one was found that began on the core while the others were told: two, mostly."""


@contextlib.contextmanager
def leave_a_core(threads: Path = _THREADS) -> Iterator[int]:
    """Yields how many cores are left free: 1, or 0 where this process has but one or the system does not allow it.

    Args:
        threads: has an entry for each thread of the process, named by its number.
    """
    cores = os.sched_getaffinity(0)
    core = min(cores)
    elsewhere = {thread for thread, mask in _read_masks(threads) if core not in mask}
    moved = _keep_off(core, threads) if len(cores) > 1 else set()
    try:
        yield int(bool(moved))
    finally:
        for thread, mask in _read_masks(threads):
            if mask in moved and thread not in elsewhere:
                _move(thread, mask | {core})


def tell_cores(left: int, platform: Platform) -> tuple[Notice, ...]:
    """Returns what a reader of figures must know of the cores: of CPU devices they are what is measured."""
    if not left or platform != "cpu":
        return ()
    cores = len(os.sched_getaffinity(0))
    message = f"measured on {cores - left} of {cores} cores: a bench leaves one to the agent and the host"
    return (Notice(code="core_left_free", message=message, hint="CPU devices of a job that has every core are faster"),)


def _keep_off(core: int, threads: Path) -> set[frozenset[int]]:
    """Returns the masks that threads have now, for whom the core was one of several."""
    moved = set()
    for _ in range(_PASSES):
        on_core = [(thread, mask) for thread, mask in _read_masks(threads) if core in mask and len(mask) > 1]
        moved |= {mask - {core} for thread, mask in on_core if _move(thread, mask - {core})}
        if not on_core:
            break
    return moved


def _read_masks(threads: Path) -> Iterator[tuple[int, frozenset[int]]]:
    with contextlib.suppress(OSError):
        for entry in list(threads.iterdir()):
            with contextlib.suppress(ProcessLookupError):
                yield int(entry.name), frozenset(os.sched_getaffinity(int(entry.name)))


def _move(thread: int, cores: frozenset[int]) -> bool:
    """Returns whether the thread runs on these cores now: it may have ended, or a sandbox may forbid it."""
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:
        return False
    return True
