"""Runs that nobody made, for tests of what is done with runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.accuracy.run import Run
from tests.accuracy.runs import read_runs


def build_run(step_s: float | None, *, fold: str = "a", **other: Any) -> Run:
    """Returns the first of SC21's runs with another time, fold and whatever else is named."""
    [first, *_] = read_runs("sc21")
    return replace(first, step_s=step_s, fold=fold, **{"group": fold, **other})
