"""What a process that compiles may take of its host: memory, and its turn. No jax; called before jax is imported.

Rule: a process over its limit says so on stderr and ends with `MEMORY_EXIT_STATUS`, so that the host and its jobs live
on, and whoever waits can tell this end from an abort. Linux only; elsewhere nothing is limited. Knows no job.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

MEMORY_EXIT_STATUS: Final = 77
"""Exit status of a process that was over its limit. Ours: neither Python, XLA nor a shell uses it."""
HOST_RATIO: Final = 0.75
"""Of the memory that there is: the rest is for the agent and the host's jobs."""
INTERVAL_S: Final = 0.05
"""Between two looks: a process that touches fresh memory at 2 GB/s is caught 100 MB late."""
HEADROOM_BYTES: Final = 2 * 2**30
"""Memory that a compiler reserves and does not touch: arenas and stacks of threads. libtpu 0.0.42 reserves 0.15 GB more
than it touches on 2 cores; it grows with the number of threads."""
NICENESS: Final = 10
OOM_SCORE: Final = 500
"""Added to the kernel's score of −1000 to 1000: of agent, job and compiler, the compiler is the first to go."""

_PAGE_BYTES: Final = resource.getpagesize()
_PROC: Final = Path("/proc")
_CGROUP_LIMITS: Final = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Of this process's cgroup as a container sees it: version 2, version 1 (which says 2⁶³ where there is none)."""


def read_default_limit_bytes(root: Path = Path("/")) -> int:
    """Returns 3/4 of the host's memory, or of the cgroup's limit where that is less; 0 where nothing tells.

    Args:
        root: where /proc and /sys are.
    """
    found = [_read_host_bytes(root), *(_read_number(root / name) for name in _CGROUP_LIMITS)]
    return int(HOST_RATIO * min((size for size in found if size), default=0))


def _read_host_bytes(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), 0)


def _read_number(path: Path) -> int:
    """Returns a limit in bytes; 0 where there is no such file, or no limit in it ("max")."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def read_memory_bytes(statm: Path = _PROC / "self/statm") -> int:
    """Returns the memory of this process that is its own and resident; pages of files, which the kernel may drop, not.

    Source: Linux, Documentation/filesystems/proc.rst, "statm": size, resident, shared, in pages.

    Raises:
        OSError: there is no such file.
    """
    _, resident, shared, *_ = statm.read_text().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def limit_process(memory_limit_bytes: int | None) -> None:
    """Lets the host's other work go first, and bounds the memory of this process from now on.

    Args:
        memory_limit_bytes: None: no bound.

    Raises:
        ValueError: the limit is not positive.
    """
    _step_back()
    if memory_limit_bytes is not None:
        watch_memory(memory_limit_bytes)


def watch_memory(limit_bytes: int) -> None:
    """Bounds the memory of this process from now on.

    Two lines of defence. A thread looks at what the process holds, and ends it with words and `MEMORY_EXIT_STATUS`. It
    cannot look while C++ holds the interpreter's lock; then the kernel refuses memory beyond the limit and
    `HEADROOM_BYTES`, upon which C++ aborts (std::bad_alloc) and Python raises MemoryError.

    Raises:
        ValueError: the limit is not positive.
    """
    if limit_bytes <= 0:
        raise ValueError(f"memory limit {limit_bytes} bytes; a process needs memory; give None for no limit")
    _limit_data(limit_bytes + HEADROOM_BYTES)
    end = partial(end_over_limit, stderr=os.dup(2))  # as it is now: fd 2 may lead nowhere for a while
    look = partial(look_at_memory, limit_bytes, end=end)
    threading.Thread(target=look, name="memory", daemon=True).start()


def give_way(niceness: int) -> None:
    """Lets other processes go first, by 0 to 19; before threads are started, which take it over.

    Where the kernel shares the cores out among sessions, niceness counts inside a session alone, and the session's own
    is set as well; only where this process leads it, so that nobody's terminal goes behind.

    Source: sched(7), "The autogroup feature".
    """
    os.nice(niceness)
    if os.getsid(0) != os.getpid():
        return
    with contextlib.suppress(OSError):  # a kernel without it, or a /proc that is not writable
        (_PROC / "self/autogroup").write_text(str(niceness))


def _step_back() -> None:
    give_way(NICENESS)
    try:
        (_PROC / "self/oom_score_adj").write_text(str(OOM_SCORE))
    except OSError:  # not Linux, or a sandbox without a writable /proc: the order of victims stays the kernel's
        return


def _limit_data(limit_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))


def look_at_memory(
    limit_bytes: int,
    *,
    read: Callable[[], int] = read_memory_bytes,
    end: Callable[[int, int], None] | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Looks until the process is over its limit, and ends it. Returns only where the memory cannot be read.

    Args:
        limit_bytes: the limit.
        read: what the process holds now.
        end: gets what it holds and the limit; None ends the process.
        wait: between two looks.
    """
    while True:
        try:
            held_bytes = read()
        except OSError:
            return
        if held_bytes > limit_bytes:
            (end or end_over_limit)(held_bytes, limit_bytes)
            return
        wait(INTERVAL_S)


def end_over_limit(held_bytes: int, limit_bytes: int, *, stderr: int = 2) -> NoReturn:
    """Ends this process with `MEMORY_EXIT_STATUS`, after words on stderr. For a MemoryError of Python too."""
    words = f"this process holds {held_bytes} bytes of the host's memory; it may have {limit_bytes}, so it ends\n"
    os.write(stderr, words.encode())  # not print: another thread may hold the stream's lock
    os._exit(MEMORY_EXIT_STATUS)


def describe_limit(limit_bytes: int | None) -> str:
    """Returns why a process that ended with `MEMORY_EXIT_STATUS` did, for a verification's `reason`."""
    bound = "its limit" if limit_bytes is None else f"{limit_bytes:,} bytes"
    return f"the compiler used more than {bound} of the host's memory and was ended"
