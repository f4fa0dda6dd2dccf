"""The user's step, found again in the child: by module, by file, or out of a pickle.

Rule: a name that is not there is a wrong question; code that fails is an answer, with its own words. Runs in the child.
Knows no jax.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import importlib.util
import pickle
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from meshwright._verify.job import Step
from meshwright.errors import InvalidRequestError

MAIN_NAME: Final = "__meshwright_main__"
"""What a script's `__name__` is here: not `__main__`, so that what stands under its guard does not run."""

LOG_LINES: Final = 30
_RULE: Final = 'write "module:function" or "file.py:function", such as train:build'


class StepError(Exception):
    """The user's code failed: what it was doing and its error; `log` has the last frames."""

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
        step: where it is.
        main: what stands for `__main__`; None: nothing speaks of it.

    Raises:
        InvalidRequestError: no such module, file or name, or what it names cannot be called.
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
        names = ", ".join(sorted(name for name, value in vars(module).items() if _is_own(value, module))[:8])
        raise _refuse(f"step {step}: {step.where} has no {step.name}; it has {names or 'no function'}") from error
    if not callable(found):
        raise _refuse(f"step {step} is a {type(found).__name__}; a step is a function")
    return found


def load_pickle(text: str) -> Any:
    """Returns what the parent pickled.

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


def _is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _refuse(detail: str) -> InvalidRequestError:
    return InvalidRequestError(detail, hint=_RULE)
