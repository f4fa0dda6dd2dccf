"""One number, or one a candidate: how formulas take both and give back what they got.

Rule: nothing else stands here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Figure = float | NDArray[np.float64]
"""A result: one number where all that went in were numbers, else an array over candidates."""

Flags = bool | NDArray[np.bool_]
"""Yes or no, or one a candidate."""


def read_figure(value: ArrayLike) -> NDArray[np.float64]:
    """Returns an array of what a formula is given, without dimensions for a single number."""
    return np.asarray(value, dtype=np.float64)


def give_figure(value: NDArray[np.float64]) -> Figure:
    """Returns a plain number for an array without dimensions, any other as it is."""
    return value if np.ndim(value) else float(value)
