"""Checks the code of an error in `pytest.raises(…, check=has_code("worker_failed"))`."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.errors import ProblemError


def has_code(code: str) -> Callable[[ProblemError], bool]:
    return lambda error: error.code == code
