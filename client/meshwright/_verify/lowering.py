"""The user's step, traced for the plan's mesh and compiled: in the child.

Rule: what keeps the step from being traced is an answer, in the words of the user's own code. The mesh is in force
while it is traced, and not while a builder runs, so that a builder may make small arrays as anywhere.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import jax

from meshwright._verify.arguments import Call, count_split, describe_leaves, place_leaves
from meshwright._verify.job import StepJob
from meshwright._verify.loading import StepError, load_pickle, load_step, watch
from meshwright.compiling.identity import read_versions
from meshwright.compiling.report import STAGES, Site, open_site, report_lowered
from meshwright.errors import NotCompiledError
from meshwright.wire.base import Notice
from meshwright.wire.verification import Verification

Tell = Callable[[str, int, int], None]

_BUILDER: Final = "a builder returns (step, arguments)"


def verify_step(job: StepJob, tell: Tell) -> Verification:
    """Returns the report of the user's step; that it does not trace is one too.

    Raises:
        InvalidRequestError: there is no such step.
    """
    for name, value in job.config.items():
        jax.config.update(name, value)
    try:
        tell(f"describing {job.target.name}", 0, STAGES)
        site = open_site(job.target, job.mesh, job.capacity_bytes)
        found = _report(job, site, tell)
    except StepError as error:
        found = Verification(status="not_compiled", reason=str(error), log=error.log)
    except NotCompiledError as error:
        found = Verification(status="not_compiled", reason=str(error))
    told = {"target": job.target.name, "versions": read_versions(job.target.platform)}
    return found.model_copy(update=told)


def _report(job: StepJob, site: Site, tell: Tell) -> Verification:
    step = load_step(job.step, job.main)
    tell("tracing the step", 1, STAGES)
    function, call = (step, load_pickle(job.call)) if job.call is not None else _build(step, site)
    with watch(f"{job.step} does not trace"), jax.set_mesh(site.mesh):
        lowered = _lower(function, call, site)
    found = report_lowered(lowered, site, tell)
    array_count, split_count = count_split(call.args)
    if site.mesh.size == 1 or split_count or not array_count:
        return found
    return found.model_copy(update={"warnings": (*found.warnings, _warn_whole(array_count))})


def _build(builder: Any, site: Site) -> tuple[Any, Call]:
    """Returns the step that a builder makes for the mesh, and what it is called with."""
    with watch("the builder failed"):
        match builder(site.mesh):
            case (step, tuple() | list() as args) if callable(step):
                return step, Call(describe_leaves(tuple(args), None, dict(site.mesh.shape)))
            case other:
                raise TypeError(f"it returned a {type(other).__name__}; {_BUILDER}")


def _lower(step: Any, call: Call, site: Site) -> Any:
    args, kwargs = place_leaves(call.args, site.mesh), {}
    if _takes_mesh(step, args):
        if hasattr(step, "lower"):
            kwargs = {"mesh": site.mesh}
        else:
            step = functools.partial(step, mesh=site.mesh)
    jitted = step if hasattr(step, "lower") else jax.jit(step, donate_argnums=call.donate_argnums)
    return jitted.lower(*args, **kwargs)


def _takes_mesh(step: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether the step has a parameter `mesh` that the call leaves open."""
    try:
        signature = inspect.signature(step)
        if "mesh" not in signature.parameters:
            return False
        return "mesh" not in signature.bind_partial(*args).arguments
    except (TypeError, ValueError):
        return False


def _warn_whole(count: int) -> Notice:
    return Notice(
        code="nothing_is_split",
        message=f"none of the step's {count} arrays says how it is split, so each device holds all of them whole",
        hint="give in_specs, or arguments whose sharding is a NamedSharding on the mesh",
    )
