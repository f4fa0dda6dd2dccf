"""Compile jobs in child processes, because a bad order can abort the one that compiles it.

Rule: an abort is an answer. The child answers job by job; when it dies, the job that it had begun is tried again in a
child of its own, so it alone is blamed, and the rest go on in a new one. Knows neither JAX nor the compiler.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from tests.compiler.cases import Case
from tests.process.slice_environment import SLICE_ENVIRONMENT

COMMAND: Final = (sys.executable, "-m", "tests.compiler.job")
LIMIT_S: Final = 600.0

_ROOT: Final = Path(__file__).resolve().parents[2]
_READY: Final = "ready"
_ANSWER: Final = "answer "
"""Before each answer on stdout, which libtpu may write to as well."""

Order = Literal["ours", "jax"]


@dataclass(frozen=True)
class Job:
    """One all-reduce over one axis of a mesh in one order."""

    case: Case
    axis: int
    order: Order


@dataclass(frozen=True)
class Answer:
    """What came of a job: the collective and the axis's longest step, or why there is none.

    Attributes:
        strategy: the compiler's name for it.
        colors: None where the strategy has none.
        phases: None where the strategy has none.
        hops: the longest step between neighbors.
        failure: None where it compiled.
    """

    strategy: str | None = None
    colors: int | None = None
    phases: int | None = None
    hops: int | None = None
    failure: str | None = None


def run_jobs(jobs: Sequence[Job], command: Sequence[str] = COMMAND, limit_s: float = LIMIT_S) -> list[Answer]:
    """Returns an answer for each job, in their order; a job that kills its process is answered with that.

    Args:
        jobs: for one child, while it lives.
        command: that starts a child, which calls `serve_jobs`.
        limit_s: for each child.

    Raises:
        ChildProcessError: a child ended before it could take a job.
    """
    if not jobs:
        return []
    answers, end = _run_child(jobs, command, limit_s)
    if len(answers) == len(jobs):
        return answers
    if len(jobs) == 1:
        return [Answer(failure=end)]
    suspect = len(answers)
    alone = run_jobs(jobs[suspect : suspect + 1], command, limit_s)
    return answers + alone + run_jobs(jobs[suspect + 1 :], command, limit_s)


def _run_child(jobs: Sequence[Job], command: Sequence[str], limit_s: float) -> tuple[list[Answer], str]:
    """Returns the answers that came, and how the process ended."""
    try:
        done = subprocess.run(
            command,
            input="".join(json.dumps(asdict(job)) + "\n" for job in jobs),
            cwd=_ROOT,
            env={**os.environ, **SLICE_ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return _parse_answers((error.stdout or b"").decode()), f"no answer in {limit_s:g} s"
    if _READY not in done.stdout.splitlines():
        raise ChildProcessError(
            f"{' '.join(command)} ended with {done.returncode} before any job: {done.stderr[-2000:]}"
        )
    return _parse_answers(done.stdout), _tell_end(done.returncode)


def _parse_answers(stdout: str) -> list[Answer]:
    whole = [line for line in stdout.splitlines(keepends=True) if line.endswith("\n")]
    return [Answer(**json.loads(line.removeprefix(_ANSWER))) for line in whole if line.startswith(_ANSWER)]


def _tell_end(code: int) -> str:
    return f"process abort ({signal.Signals(-code).name})" if code < 0 else f"process ended with {code}"


def serve_jobs(compile_job: Callable[[Job], Answer]) -> None:
    """Answers the jobs on stdin, in the child; an exception of one is its answer."""
    print(_READY, flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        case = Case(told["case"]["topology"], tuple(told["case"]["sizes"]))
        try:
            answer = compile_job(Job(case, told["axis"], told["order"]))
        except Exception as error:
            answer = Answer(failure=f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}")
        print(_ANSWER + json.dumps(asdict(answer)), flush=True)
