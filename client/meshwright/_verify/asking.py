"""A step named or packed, sent to a child that compiles it. Knows no jax: the command asks this way too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from meshwright._verify.job import Step, StepJob
from meshwright._verify.loading import MAIN_NAME
from meshwright._verify.plans import PlanLike, find_hardware, read_plan
from meshwright.compiling.child import LIMIT_S, Ended, OnProgress, build_aborted, run_child
from meshwright.compiling.compilers import explain_missing
from meshwright.compiling.identity import read_versions
from meshwright.compiling.limits import read_default_limit_bytes
from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.wire.verification import Verification


def parse_step(text: str) -> Step:
    """Returns the step that "module:function" or "file.py:function" names.

    Raises:
        InvalidRequestError: it is neither.
    """
    where, _, name = text.rpartition(":")
    if not where or not all(part.isidentifier() for part in name.split(".")):
        raise InvalidRequestError(
            f"step {text!r} names no function; a step is module:function or file.py:function", hint="write train:build"
        )
    if where.endswith(".py"):
        return Step(kind="file", where=str(Path(where).absolute()), name=name)
    return Step(kind="module", where=where, name=name)


def ask_child(
    plan: PlanLike,
    step: Step,
    *,
    target: str | None = None,
    limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> Verification:
    """Returns the report of a step; `fields` are those of StepJob.

    Raises:
        SettingsError, PlanInfeasibleError: the plan cannot be used.
        InvalidRequestError: there is no such step.
        InternalError: a bug of ours.
        RuntimeError: this is the child, which imports the script that asks.
    """
    if MAIN_NAME in sys.modules:
        raise RuntimeError(
            "verify was called while the compiling process imports the script; put what the script does under "
            "`if __name__ == '__main__':`"
        )
    read = read_plan(plan)
    try:
        hardware, mesh, capacity_bytes = find_hardware(read, target)
    except NotCompiledError as error:
        return Verification(status="not_compiled", reason=str(error), target=target or read.target)
    if missing := explain_missing(read_versions(hardware.platform), hardware.platform):
        return Verification(status="not_compiled", reason=missing, target=hardware.name)
    job = StepJob(target=hardware, mesh=mesh, capacity_bytes=capacity_bytes, step=step, **fields)
    found = run_child(
        "meshwright._verify",
        {"operation": "verify", "job": job.model_dump(mode="json")},
        limit_s=LIMIT_S if limit_s is None else limit_s,
        memory_limit_bytes=memory_limit_bytes or read_default_limit_bytes() or None,
        on_progress=on_progress,
    )
    return build_aborted(found, hardware.name) if isinstance(found, Ended) else Verification.model_validate(found)
