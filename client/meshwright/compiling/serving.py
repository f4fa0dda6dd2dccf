"""The child's side of a compile: read the one job, tell how far it is, answer, and be gone.

Rule: a child never outlives its parent: it asks the kernel to be killed with it, and a thread ends it when the job's
pipe closes. stdin is empty, so that a user's code that reads it does not wait. It does one job; its answer comes before
Python's own shutdown, in which compilers are known to crash. Knows no jax: operations import it when they run. The
parent's side is `child`.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from pydantic import BaseModel

from meshwright.compiling.limits import end_over_limit, limit_process, read_memory_bytes
from meshwright.errors import RequestError

Tell = Callable[[str, int, int], None]
"""Says how far a job is: a message, parts done, parts in all."""
Operation = Callable[[dict[str, Any], Tell], BaseModel]
"""Does a job."""

_PR_SET_PDEATHSIG: Final = 1
"""Source: Linux, include/uapi/linux/prctl.h."""
_TRACEBACK_LINES: Final = 40


def serve(operations: Mapping[str, Operation]) -> NoReturn:
    """Does the one job that stands on stdin, and ends the process.

    Raises:
        SystemExit: the command line is not `child`'s.
    """
    parser = argparse.ArgumentParser(description="Started by meshwright, never by hand.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    birth = parser.parse_args()
    _die_with(birth.parent)
    faulthandler.enable()  # an abort names the Python code that it came from
    message = json.loads(sys.stdin.buffer.readline() or _leave())
    threading.Thread(target=_watch_parent, args=(_take_stdin(),), name="parent", daemon=True).start()
    limit_process(message["memory_limit_bytes"])
    with os.fdopen(birth.fd, "w", encoding="utf-8", buffering=1) as frames:
        _answer(operations, message, lambda frame: print(json.dumps(frame), file=frames))
    _leave()


def _answer(
    operations: Mapping[str, Operation], message: dict[str, Any], send: Callable[[dict[str, Any]], None]
) -> None:
    def tell(text: str, done: int, total: int) -> None:
        send({"type": "progress", "message": text, "done": done, "total": total})

    try:
        tell("starting the compiler", 0, 1)
        reply = operations[message["operation"]](message["job"], tell)
        send({"type": "answer", "value": reply.model_dump(mode="json")})
    except MemoryError:
        if (limit_bytes := message["memory_limit_bytes"]) is None:
            raise
        end_over_limit(read_memory_bytes(), limit_bytes)
    except RequestError as error:
        send({"type": "refused", "message": error.detail, "hint": error.hint})
    except Exception as error:
        lines = traceback.format_exc().splitlines()[-_TRACEBACK_LINES:]
        send({"type": "bug", "message": f"{type(error).__name__}: {error}", "log": lines})


def _die_with(parent: int) -> None:
    """Asks for SIGKILL when the parent dies; one that has died before that was asked is found by its number."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _leave()


def _take_stdin() -> int:
    """Returns the job's pipe, in whose place stdin is empty."""
    pipe = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return pipe


def _watch_parent(pipe: int) -> None:
    while os.read(pipe, 4096):
        pass
    os.killpg(0, signal.SIGKILL)  # what the compiler started, such as ptxas, goes with it


def _leave() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
