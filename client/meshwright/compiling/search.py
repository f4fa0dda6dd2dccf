"""The search for the largest size that fits, where each try is a compile.

Rule: the answer was tried, and so was the next larger one, which did not fit, unless it is beyond the bound. Where to
try next is a guess along a line, since memory grows with the batch nearly as one; a guess that stalls is halved
instead, so tries grow with the logarithm of the bound at worst. Knows no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Attempt:
    """One try.

    Attributes:
        size: that was tried.
        fits: whether it does.
        bytes: its peak, or what it needs; None: not said.
        fixed_bytes: of them, those that every size needs: the arguments.
    """

    size: int
    fits: bool
    bytes: int | None = None
    fixed_bytes: int | None = None


STALLED: Final = 3
"""Guesses in a row that each moved a bound by less than half: then the middle is tried."""


def search_largest(attempt: Callable[[int], Attempt], greatest: int, capacity_bytes: int | None) -> tuple[Attempt, ...]:
    """Returns all tries, in order; the last that fits is the largest size that does, and none may.

    Args:
        attempt: tries a size.
        greatest: size that is asked for, 1 or more.
        capacity_bytes: what a try's bytes must not exceed; None: not known, as long as no try has failed.
    """
    tries = [attempt(1)]
    slow = 0
    while tries[0].fits:
        low, high = find_bounds(tries, greatest)
        if high - low.size <= 1:
            break
        middle = (low.size + high) // 2
        size = middle if slow >= STALLED else min(max(guess_size(tries, capacity_bytes), low.size + 1), high - 1)
        tries.append(attempt(size))
        after, above = find_bounds(tries, greatest)
        slow = 0 if 2 * (above - after.size) <= high - low.size else slow + 1
    return tuple(tries)


def find_bounds(tries: Sequence[Attempt], greatest: int) -> tuple[Attempt, int]:
    """Returns the largest try that fits, and the least size that does not, or is not asked for."""
    low = max((each for each in tries if each.fits), key=lambda each: each.size)
    return low, min((each.size for each in tries if not each.fits), default=greatest + 1)


def guess_size(tries: Sequence[Attempt], capacity_bytes: int | None) -> int:
    """Returns the largest size that a line through the nearest tries says fits."""
    low = max((each for each in tries if each.fits), key=lambda each: each.size)
    slope = measure_slope(low, tries)
    if low.bytes is None or capacity_bytes is None or slope is None:
        return 2 * low.size
    return low.size + int((capacity_bytes - low.bytes) / slope)


def measure_slope(low: Attempt, tries: Sequence[Attempt]) -> float | None:
    """Returns bytes a unit of size: towards the nearest try that fails, else from the try below, else at most."""
    failed = [each for each in tries if not each.fits and each.bytes is not None]
    below = [each for each in tries if each.fits and each.size < low.size and each.bytes is not None]
    if failed:
        return _rise(low, min(failed, key=lambda each: each.size))
    if below:
        return _rise(max(below, key=lambda each: each.size), low)
    moving = (low.bytes or 0) - (low.fixed_bytes or 0)
    return moving / low.size if moving > 0 and low.fixed_bytes is not None else None


def _rise(a: Attempt, b: Attempt) -> float | None:
    rise = ((b.bytes or 0) - (a.bytes or 0)) / (b.size - a.size)
    return rise if rise > 0 else None
