"""A function of this process, as a child finds it again.

Rule: by name where it has one, which needs nothing; what has none is pickled, by value with cloudpickle where plain
pickle cannot. What was typed in (`python -c`, a REPL, a notebook) has a name that means nothing in another process, so
it goes by value. Imports no jax.
"""

from __future__ import annotations

import base64
import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright._verify.asking import parse_step
from meshwright._verify.job import Step

_MAIN = "__main__"


def pack_step(step: Callable[..., Any] | str) -> Step:
    """Returns where the child finds a function.

    Raises:
        InvalidRequestError: a text that names none.
        TypeError: it is no function, or one that cannot be named, and cloudpickle is not installed.
    """
    if isinstance(step, str):
        return parse_step(step)
    if not callable(step):
        raise TypeError(
            f"step is a {type(step).__name__}; it is a function, or its name as text, such as 'train:train_step'"
        )
    named = _find_name(step)
    if named is not None:
        module, name = named
        main = find_main() if module == _MAIN else Step(kind="module", where=module)
        if main is not None:
            return main.model_copy(update={"name": name})
    return Step(kind="pickle", where=pack(step, f"step {getattr(step, '__qualname__', step)!r}"))


def _find_name(step: Any) -> tuple[str, str] | None:
    """Returns (module, name) of a function; a jitted one may stand under another name than it was defined by."""
    module = sys.modules.get(getattr(step, "__module__", None) or "")
    if module is None:
        return None
    own = getattr(step, "__qualname__", "")
    if vars(module).get(own) is step:
        return module.__name__, own
    return next(((module.__name__, name) for name, value in vars(module).items() if value is step), None)


def find_main() -> Step | None:
    """Returns what `__main__` is: a module that was run with -m, or a script; None where code was typed in.

    `sys.ps1` is there only at a prompt; Python 3.13's own says that `__main__` is its module _pyrepl.
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
    """Plain pickle writes the names of functions and classes; of a `__main__` without a file nobody else knows them."""
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
            above = getattr(super(), "reducer_override", None)  # plain pickle has none
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
