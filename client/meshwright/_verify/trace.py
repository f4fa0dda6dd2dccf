"""The user's step in the child: loaded by name, file or pickle, traced for the plan's mesh, and compiled.

Arguments have no values: only shapes, dtypes and the mesh axes that split them.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import importlib.util
import inspect
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path

from meshwright._verify.ask import JITTED, MAIN_NAME, Step, StepJob
from meshwright.compiling.report import STAGES, Site, report_lowered, report_site
from meshwright.compiling.worker import Tell
from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.wire.base import Notice
from meshwright.wire.verification import Verification


@dataclass(frozen=True)
class ArgumentLeaf:
    """An array without its values. `spec` None: the caller does not say how it is split; `memory_kind` None: that of
    devices."""

    shape: tuple[int, ...]
    dtype: Any
    spec: PartitionSpec | None
    memory_kind: str | None = None
    weak_type: bool = False


@dataclass(frozen=True)
class Call:
    """The arguments of a step, and those that a step without jit donates."""

    args: tuple[Any, ...]
    donate_argnums: int | Sequence[int] | None = None


def describe_leaves(tree: Any, specs: Any, axes: Mapping[str, int]) -> Any:
    """Returns the tree with each array as an ArgumentLeaf.

    Args:
        tree: arrays, `jax.ShapeDtypeStruct`s, scalars and other values.
        specs: a prefix of the tree: PartitionSpecs, None where the leaf's own sharding is used.
        axes: the plan's, name to size.

    Raises:
        TypeError: `specs` holds something else.
        ValueError: the specs are not a prefix, or a leaf is split over an axis that the plan does not have, or by a
            mesh whose axes have other sizes.
    """
    structure: Any
    flat, structure = tree_flatten_with_path(tree)
    try:
        spread = jax.tree.leaves(
            jax.tree.map(lambda spec, part: jax.tree.map(lambda _: _Spec(spec), part), specs, tree, is_leaf=_is_spec)
        )
    except (ValueError, TypeError) as error:
        rule = "give one PartitionSpec an argument, or one for all, such as (P('fsdp'), P('dp'))"
        raise ValueError(f"in_specs is no prefix of the arguments ({str(error).splitlines()[0]}); {rule}") from error
    leaves = [_describe(keystr(path), leaf, spec.value, axes) for (path, leaf), spec in zip(flat, spread, strict=True)]
    return structure.unflatten(leaves)


@dataclass(frozen=True)
class _Spec:
    """Holds a spec as one leaf, also None."""

    value: PartitionSpec | None


def _is_spec(value: object) -> bool:
    return value is None or isinstance(value, PartitionSpec)


def _describe(path: str, leaf: Any, spec: PartitionSpec | None, axes: Mapping[str, int]) -> Any:
    if isinstance(leaf, bool | int | float | complex) or not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    if spec is None and isinstance(sharding, NamedSharding):
        _check_mesh(path, dict(sharding.mesh.shape), axes)
        spec = sharding.spec
    if spec is not None:
        _check_spec(path, spec, axes)
    memory_kind, is_weak = getattr(sharding, "memory_kind", None), getattr(leaf, "weak_type", False)
    memory_kind = None if memory_kind == "device" else memory_kind
    return ArgumentLeaf(tuple(leaf.shape), leaf.dtype, spec, memory_kind, is_weak)


def _check_mesh(path: str, found: Mapping[str, int], axes: Mapping[str, int]) -> None:
    if any(axes.get(name) != size for name, size in found.items()):
        raise ValueError(
            f"leaf {path} is sharded on a mesh of {dict(found)}; the plan's mesh is {dict(axes)}, and its axes must be "
            "the plan's; give in_specs, or shard it on the plan's mesh"
        )


def _check_spec(path: str, spec: PartitionSpec, axes: Mapping[str, int]) -> None:
    if not isinstance(spec, PartitionSpec):
        rule = "give PartitionSpecs, such as P('dp'); a NamedSharding has one in its spec"
        raise TypeError(f"in_specs holds {spec!r} for leaf {path}, which is a {type(spec).__name__}; {rule}")
    names = [name for entry in spec.partitions for name in (entry if isinstance(entry, tuple) else (entry,))]
    strangers = [name for name in names if isinstance(name, str) and name not in axes]
    if strangers:
        raise ValueError(
            f"leaf {path} is split over the axis {strangers[0]!r}; the plan has {', '.join(axes)}; use one of them"
        )


def place_leaves(tree: Any, mesh: Mesh) -> Any:
    """Returns the tree with each leaf as a `jax.ShapeDtypeStruct` on the mesh; without a spec, whole on each device."""

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, ArgumentLeaf):
            return leaf
        spec = PartitionSpec() if leaf.spec is None else leaf.spec
        sharding = NamedSharding(mesh, spec, memory_kind=leaf.memory_kind)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type)

    return jax.tree.map(place, tree, is_leaf=lambda value: isinstance(value, ArgumentLeaf))


def _list_arrays(tree: Any) -> list[ArgumentLeaf]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, ArgumentLeaf)]


def count_split(tree: Any) -> tuple[int, int]:
    """Returns how many arrays there are, and how many of them are split over some axis."""
    arrays = _list_arrays(tree)
    return len(arrays), sum(any(leaf.spec.partitions) for leaf in arrays if leaf.spec is not None)


LOG_LINES: Final = 30
_RULE: Final = 'write "module:function" or "file.py:function", such as train:build'


class StepError(NotCompiledError):
    """The user's code failed: the operation and its error; `log` has the last frames."""

    def __init__(self, reason: str, log: tuple[str, ...]) -> None:
        super().__init__(reason)
        self.log = log


@contextlib.contextmanager
def watch(doing: str) -> Iterator[None]:
    """Turns whatever the user's code raises in the block into a StepError.

    Raises:
        StepError: it raised.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, StepError):
            raise
        lines = "".join(traceback.format_exception(error)).splitlines()
        told = str(error).partition("\n")[0]
        raise StepError(f"{doing}: {type(error).__name__}: {told}", tuple(lines[-LOG_LINES:])) from error


def load_step(step: Step, main: Step | None) -> Any:
    """Returns the function.

    Args:
        main: the replacement of `__main__`; None: `__main__` is not used.

    Raises:
        InvalidRequestError: the module, file or name does not exist, or is not callable.
        StepError: the module fails when it is imported.
    """
    if main is not None:
        sys.modules["__main__"] = _load_module(main)
    if step.kind == "pickle":
        return load_pickle(step.where)
    module = sys.modules["__main__"] if step == main else _load_module(step)
    try:
        found = functools.reduce(getattr, step.name.split("."), module)
    except AttributeError as error:
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__]
        names = ", ".join(sorted(own)[:8])
        raise _refuse(f"step {step}: {step.where} has no {step.name}; it has {names or 'no function'}") from error
    if not callable(found):
        raise _refuse(f"step {step} is a {type(found).__name__}; a step is a function")
    return found


def load_pickle(text: str) -> Any:
    """Returns the object that the parent pickled.

    Raises:
        StepError: it cannot be made again here.
    """
    with watch("the step or its arguments cannot be brought into the compiling process"):
        return pickle.loads(base64.b64decode(text))


def _load_module(step: Step) -> ModuleType:
    return _load_file(Path(step.where)) if step.kind == "file" else _import(step)


def _import(step: Step) -> ModuleType:
    with watch(f"{step.where} does not import"):
        try:
            return importlib.import_module(step.where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{step.where}.".startswith(f"{error.name}."):
                raise
            missing = error
    raise _refuse(f"step {step}: there is no module {missing.name}; the working folder and sys.path were looked at")


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise _refuse(f"step: there is no file {path}")
    loader = SourceFileLoader(MAIN_NAME, str(path))
    spec = importlib.util.spec_from_loader(MAIN_NAME, loader)
    assert spec is not None
    module = sys.modules[MAIN_NAME] = importlib.util.module_from_spec(spec)
    with watch(f"{path} does not import"):
        loader.exec_module(module)
    return module


def _refuse(detail: str) -> InvalidRequestError:
    return InvalidRequestError(detail, hint=_RULE)


_BUILDER: Final = "a builder takes the mesh and returns (step, arguments)"


def verify_step(message: dict[str, Any], tell: Tell) -> Verification:
    """Returns the report of a StepJob, also where the step cannot be traced.

    Raises:
        InvalidRequestError: the step does not exist.
    """
    job = StepJob.model_validate(message)
    for name, value in job.config.items():
        jax.config.update(name, value)
    return report_site(job, tell, lambda site: _report(job, site, tell))


def _report(job: StepJob, site: Site, tell: Tell) -> Verification:
    if AxisType.Manual in site.mesh.axis_types:
        types = ", ".join(f"{name} {kind}" for name, kind in job.mesh.axis_types.items())
        rule = 'plan with axis_types="auto", and let the step use jax.shard_map'
        raise NotCompiledError(f"the plan's axis types are {types}; JAX traces under no mesh with manual axes; {rule}")
    step = load_step(job.step, job.main)
    tell("tracing the step", 1, STAGES)
    function, call = (step, load_pickle(job.call)) if job.call is not None else _build(step, site)
    if call.donate_argnums is not None and hasattr(function, "lower"):
        raise InvalidRequestError(JITTED)
    kinds = {leaf.memory_kind for leaf in _list_arrays(call.args)} - {None}
    if kinds and job.target.platform == "gpu":
        rule = "leave memory_kind out, for a step with all arrays on the device"
        raise NotCompiledError(f"an array is in {kinds.pop()}; GPU compilers count it as the device's memory; {rule}")
    with watch(f"{job.step} does not trace"), jax.set_mesh(site.mesh):
        lowered = _lower(function, call, site)
    found = report_lowered(lowered, site, tell)
    array_count, split_count = count_split(call.args)
    if site.mesh.size == 1 or split_count or not array_count:
        return found
    return found.model_copy(update={"warnings": (*found.warnings, _warn_whole(array_count))})


def _build(builder: Any, site: Site) -> tuple[Any, Call]:
    """Returns the step that a builder makes for the mesh, and its arguments."""
    with watch(f"the builder failed ({_BUILDER})"):
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
    message = f"none of the step's {count} arrays says how it is split, so each device holds all of them whole"
    hint = "give in_specs, or arguments whose sharding is a NamedSharding on the mesh"
    return Notice(code="nothing_is_split", message=message, hint=hint)
