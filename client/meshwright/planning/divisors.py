"""Divisors of a number, and the nearest of some values: what a refusal offers instead. Knows no model and no mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def list_divisors(number: int) -> list[int]:
    """Returns all divisors of a positive number, ascending. Takes √number steps: 2**40 in a tenth of a second."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]


def choose_near(values: Iterable[int], asked: int, *, most: int = 3) -> tuple[int, ...]:
    """Returns the values that are nearest to `asked` by their ratio to it, ascending; all are positive."""
    nearest = sorted(set(values) - {asked}, key=lambda value: (round(abs(math.log(value / asked)), 9), -value))
    return tuple(sorted(nearest[:most]))


def write_values(values: Sequence[int]) -> str:
    """Returns one or more values as a sentence offers them: 2, 4 or 8."""
    return " or ".join(filter(None, (", ".join(map(str, values[:-1])), str(values[-1]))))
