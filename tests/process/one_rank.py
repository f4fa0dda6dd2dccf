"""For programs of the jobs, which import it from their own folder: stdout for one writer, and an end that comes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn, TextIO

import jax


def take_stdout() -> TextIO:
    """Returns stdout for the answer alone: gloo's threads write there, at any time, into any line."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own


def join() -> tuple[int, Any, TextIO]:
    """Joins the job of the arguments RANK COUNT PORT STEPS; returns rank, steps, and where the answer goes."""
    out, (rank, count, port, path) = take_stdout(), sys.argv[1:5]
    if int(count) > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(rank))
    return int(rank), json.loads(Path(path).read_text()), out


def answer_and_leave(answer: dict[str, Any], out: TextIO) -> NoReturn:
    """Prints the answer, leaves the job if it is one, and ends the process without taking JAX down.

    Once in some hundred jobs of four processes (jaxlib 0.12.0.1) the interpreter's last garbage collection, which takes
    gloo's connections down, waits for ever in two of them after all have answered.
    """
    print(json.dumps(answer), file=out, flush=True)
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    os._exit(0)
