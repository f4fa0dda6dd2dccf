"""The child's side of a compile: reads the one job on stdin, reports progress, answers, and ends.

It asks the kernel to be killed with its parent, and lets the host's other work go first. Its answer comes before
Python's own shutdown, in which compilers are known to crash. Imports no jax; the function that it runs does.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NoReturn

from meshwright.errors import RequestError

Tell = Callable[[str, int, int], None]
"""Reports how far a job is: a message, parts done, parts in all."""

NICENESS: Final = 10
OOM_SCORE: Final = 500
"""Added to the kernel's score of −1000 to 1000: of agent, job and compiler, the compiler is the first to go."""

_PROC: Final = Path("/proc/self")
_PR_SET_PDEATHSIG: Final = 1
"""Source: Linux, include/uapi/linux/prctl.h."""


def lower_priority(niceness: int) -> None:
    """Lets other processes go first, by 0 to 19; before threads are started, which take it over.

    Where the kernel shares the cores out among sessions, niceness counts inside a session alone, and the session's own
    is set as well; only where this process leads it, so that a user's terminal does not go behind.

    Source: sched(7), "The autogroup feature".
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        write_proc("autogroup", niceness)


def write_proc(name: str, number: int) -> None:
    """Writes one of this process's files under /proc, where the kernel has it and allows it."""
    with contextlib.suppress(OSError):
        (_PROC / name).write_text(str(number))


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends; ends it if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def read_version(distribution: str) -> str | None:
    """Returns the version of an installed distribution."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def serve(parent: int) -> NoReturn:
    """Does the one job that is on stdin, and ends the process."""
    end_with_parent(parent)
    faulthandler.enable()  # an abort names the Python code that it came from
    lower_priority(NICENESS)
    write_proc("oom_score_adj", OOM_SCORE)
    frames = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def send(kind: str, **fields: Any) -> None:
        print(json.dumps({"type": kind, **fields}), file=frames)

    def tell(message: str, done: int, total: int) -> None:
        send("progress", value={"message": message, "done": done, "total": total})

    message = json.load(sys.stdin)
    try:
        tell("starting the compiler", 0, 1)
        sys.path[:] = message["paths"] or sys.path
        module, _, name = message["function"].partition(":")
        answer = getattr(importlib.import_module(module), name)(message["job"], tell)
        send("answer", value=answer.model_dump(mode="json"))
    except MemoryError:
        traceback.print_exc()
        os.abort()
    except RequestError as error:
        send("refused", message=error.detail, hint=error.hint)
    except Exception as error:
        traceback.print_exc()
        send("bug", message=f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
