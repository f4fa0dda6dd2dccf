"""Emits warnings that point at the calling line of the user's code, at any depth inside this package."""

from __future__ import annotations

import inspect
import warnings


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the nearest line outside this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "meshwright":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
