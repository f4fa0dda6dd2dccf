"""A step of the user's, sent to a child process that compiles it for a plan. Imports no jax.

The plan is read from whatever holds it. The step is named (module or file), or packed: a function of this process is
sent by its place, or by value with cloudpickle.
"""

from __future__ import annotations

import base64
import functools
import importlib
import io
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from meshwright._reference import PlanLike, read_plan
from meshwright.compiling.compilers import explain_missing
from meshwright.compiling.process import LIMIT_S, Ended, OnProgress, build_aborted, read_default_limit_bytes, run_child
from meshwright.errors import InvalidRequestError, NotCompiledError, SettingsError
from meshwright.planning.compile_job import (
    CompileMesh,
    CompileSite,
    CompileTarget,
    build_compile_mesh,
    build_compile_target,
    read_capacity,
)
from meshwright.planning.mesh_plan import list_granules
from meshwright.topology.identity import check_plan
from meshwright.topology.targets import build_target
from meshwright.wire.base import Wire
from meshwright.wire.mesh import Plan
from meshwright.wire.verification import Verification

MAIN_NAME: Final = "__meshwright_main__"
"""A script's `__name__` in the child: not `__main__`, so that code under the main guard does not run."""

JITTED: Final = "step is jitted already, and donate_argnums is for one that is not; give it to jax.jit, or leave it out"


class Step(Wire):
    """Where a function is found."""

    kind: Literal["module", "file", "pickle"]
    where: str = Field(description="module: its name; file: its path; pickle: base64")
    name: str = Field(default="", description="of the function in it, dotted")

    def __str__(self) -> str:
        return "the step" if self.kind == "pickle" else f"{self.where}:{self.name}"


class StepJob(CompileSite):
    """A step of the user's."""

    step: Step
    call: str | None = Field(default=None, description="base64 pickle of a Call; null: the step is a builder")
    main: Step | None = Field(default=None, description="what `__main__` is in the parent, where pickles speak of it")
    config: dict[str, Any] = Field(default_factory=dict, description="of jax, as the parent has it")


def find_hardware(plan: Plan, target: str | None) -> tuple[CompileTarget, CompileMesh, int | None]:
    """Returns the plan's hardware and mesh in a compiler's form, and the bytes of a device that a job may use.

    Args:
        plan: with its devices.
        target: the hardware, if not the plan's own; None: the plan's hardware.

    Raises:
        NotCompiledError: no compiler supports it.
        SettingsError: `target` is other hardware than the plan's.
        PlanMismatchError: the plan contradicts itself.
        InvalidRequestError, PlanInfeasibleError: `target` is not valid.
    """
    mesh = build_compile_mesh(plan)
    check_plan(plan)
    if target is not None:
        plan = _move(plan, mesh, target)
    return build_compile_target(plan), mesh, read_capacity(plan)


def _move(plan: Plan, mesh: CompileMesh, target: str) -> Plan:
    """Returns the plan as one on other hardware, that has a device for each of its places."""
    topology = build_target(target)
    counts = Counter(device.granule for device in topology.devices)
    if topology.platform != plan.platform or any(place >= counts[granule] for granule, place in mesh.places):
        count = len(plan.granules)
        there = f"{len(plan.devices)} {plan.platform} devices of {count} granule{'s' * (count != 1)}"
        raise SettingsError(
            f"the plan stands on {there}; target {target} is {len(counts)} granules of {counts[0]} "
            f"{topology.platform} devices; name hardware that has them all"
        )
    return plan.model_copy(update={"target": target, "granules": list_granules(topology)})


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
    paths: Sequence[str] = (),
    **fields: Any,
) -> Verification:
    """Returns the report of a step; `paths` is the child's sys.path, `fields` are those of StepJob.

    Raises:
        SettingsError, PlanInfeasibleError: the plan cannot be used.
        InvalidRequestError: the step does not exist.
        TypeError: the step is jitted, and `call` donates.
        ProblemError: a bug of Meshwright.
        RuntimeError: this process is the child, which imports the calling script.
    """
    if MAIN_NAME in sys.modules:
        rule = "put what the script does under `if __name__ == '__main__':`"
        raise RuntimeError(f"verify was called while the compiling process imports the script; {rule}")
    read = read_plan(plan)
    try:
        hardware, mesh, capacity_bytes = find_hardware(read, target)
    except NotCompiledError as error:
        return Verification(status="not_compiled", reason=str(error), target=target or read.target)
    if missing := explain_missing(hardware.platform, chip=hardware.chip):
        return Verification(status="not_compiled", reason=missing, target=hardware.name)
    job = StepJob(target=hardware, mesh=mesh, capacity_bytes=capacity_bytes, step=step, **fields)
    try:
        found = run_child(
            "meshwright._verify.trace:verify_step",
            job.model_dump(mode="json"),
            paths=paths,
            limit_s=LIMIT_S if limit_s is None else limit_s,
            memory_limit_bytes=memory_limit_bytes or read_default_limit_bytes(),
            on_progress=on_progress,
        )
    except InvalidRequestError as error:
        raise TypeError(JITTED) if error.detail == JITTED else error from None
    return build_aborted(found, hardware.name) if isinstance(found, Ended) else Verification.model_validate(found)


_MAIN = "__main__"


def pack_step(step: Callable[..., Any] | str) -> Step:
    """Returns the location of a function for the child.

    Raises:
        InvalidRequestError: the text does not name a function.
        TypeError: `step` is not a function; or it cannot be named, and cloudpickle is not installed.
    """
    if isinstance(step, str):
        return parse_step(step)
    if not callable(step):
        raise TypeError(f"step is a {type(step).__name__}; it is a function, or its name, such as 'train:train_step'")
    named = _find_name(step)
    if named is not None:
        module, name = named
        main = find_main() if module == _MAIN else Step(kind="module", where=module)
        if main is not None:
            return main.model_copy(update={"name": name})
    return Step(kind="pickle", where=pack(step, f"step {getattr(step, '__qualname__', step)!r}"))


def _find_name(step: Any) -> tuple[str, str] | None:
    """Returns (module, name) of a function; a jitted function may have another name than its definition."""
    module = sys.modules.get(getattr(step, "__module__", None) or "")
    if module is None:
        return None
    own = getattr(step, "__qualname__", "")
    if vars(module).get(own) is step:
        return module.__name__, own
    return next(((module.__name__, name) for name, value in vars(module).items() if value is step), None)


def find_main() -> Step | None:
    """Returns the source of `__main__`: a module that was run with -m, or a script; None for interactive code.

    `sys.ps1` exists only at a prompt. The prompt of Python 3.13 reports its module _pyrepl as `__main__`.
    """
    if hasattr(sys, "ps1"):
        return None
    main = sys.modules[_MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return Step(kind="module", where=spec.name)
    path = getattr(main, "__file__", None)
    return Step(kind="file", where=str(Path(path).absolute())) if path and Path(path).is_file() else None


def pack(value: Any, what: str) -> str:
    """Returns a value as base64 of its pickle.

    Raises:
        TypeError: plain pickle cannot, and cloudpickle is not installed; or neither can.
    """
    try:
        return _dump_named(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = error
    try:
        import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise TypeError(
            f"{what} cannot be sent to the process that compiles ({reason}), and cloudpickle, which can, is not "
            "installed; pip install 'meshwright[verify]', or name a function of a module: 'train:train_step'"
        ) from reason
    try:
        return _dump(cloudpickle.Pickler, value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"{what} cannot be sent to the process that compiles, by cloudpickle neither ({error}); give a builder by "
            "name, 'train:build', which makes the step and its arguments there"
        ) from error


def _dump_named(value: object) -> str:
    """Plain pickle writes the names of functions and classes. No other process can import them from a `__main__`
    without a file."""
    text = _dump(pickle.Pickler, value)
    if find_main() is None and speaks_of_main(text):
        raise pickle.PicklingError("it was typed in, so no other process finds it by its name")
    return text


def _dump(pickler: type[Any], value: object) -> str:
    """A jitted function goes by its name: as an object it cannot be made again (jaxlib's PjitFunction)."""

    class Named(pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if hasattr(value, "lower") and hasattr(value, "__wrapped__"):
                return find_function, _name_jitted(value)
            above = getattr(super(), "reducer_override", None)  # plain pickle does not have one
            return NotImplemented if above is None else above(value)

    buffer = io.BytesIO()
    Named(buffer).dump(value)
    return base64.b64encode(buffer.getvalue()).decode()


def _name_jitted(function: Any) -> tuple[str, str]:
    named = _find_name(function)
    if named is None or (named[0] == _MAIN and find_main() is None):
        raise pickle.PicklingError(
            f"the jitted function {getattr(function, '__qualname__', function)!r} stands in no module under a name; "
            "give what it jits (its __wrapped__), with donate_argnums and static_argnums"
        )
    return named


def find_function(module: str, name: str) -> Any:
    """Returns a function by the name that `pack` wrote: in the child."""
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def speaks_of_main(*texts: str | None) -> bool:
    """Returns whether a pickle names something of `__main__`."""
    return any(_MAIN.encode() in base64.b64decode(text) for text in texts if text)
