"""How far predictions are from what was measured: errors, ranking, intervals, memory.

Rule: figures in, figures out; knows no run. Errors are shares of what was measured (0.05: 5 %), arrays are one figure a
row, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """Errors of several rows.

    Attributes:
        count: of rows.
        median, mean, p90, worst: of their sizes.
        bias: the median with its sign; above 0: predicted too much.
    """

    count: int
    median: float
    mean: float
    p90: float
    worst: float
    bias: float


@dataclass(frozen=True)
class Ranking:
    """How well groups of rows are put in order.

    Attributes:
        groups: how many have enough rows.
        median_tau, least_tau: Kendall's τ over those groups in which it is defined; None: in none.
        median_regret, worst_regret: of the row that was predicted to be the best.
    """

    groups: int
    median_tau: float | None
    least_tau: float | None
    median_regret: float
    worst_regret: float


@dataclass(frozen=True)
class Coverage:
    """Intervals beside what was measured. `median_width`: high ÷ low − 1."""

    count: int
    share: float
    median_width: float


@dataclass(frozen=True)
class MemoryVerdicts:
    """Rows that ran out of memory and were not predicted to (`misses`), and the other way (`false_alarms`)."""

    count: int
    misses: int
    false_alarms: int


def find_errors(predicted: ArrayLike, measured: ArrayLike) -> Floats:
    """Returns predicted ÷ measured − 1 of each row."""
    return np.asarray(predicted, float) / np.asarray(measured, float) - 1


def summarize_errors(predicted: ArrayLike, measured: ArrayLike) -> Errors:
    """Returns the summary of the errors; percentiles are interpolated between rows.

    Raises:
        ValueError: there is no row.
    """
    signed = find_errors(predicted, measured)
    if not signed.size:
        raise ValueError("there is no row; errors need at least one")
    sizes = np.abs(signed)
    return Errors(
        count=int(signed.size),
        median=float(np.median(sizes)),
        mean=float(np.mean(sizes)),
        p90=float(np.percentile(sizes, 90)),
        worst=float(np.max(sizes)),
        bias=float(np.median(signed)),
    )


def fit_scale(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Returns the factor by which predictions come nearest: the median of measured ÷ predicted."""
    return float(np.median(np.asarray(measured, float) / np.asarray(predicted, float)))


def find_kendall_tau(predicted: ArrayLike, measured: ArrayLike) -> float | None:
    """Returns Kendall's τ-b: 1 for the same order, −1 for the reverse; None where all of one side are equal.

    Source: Kendall, The treatment of ties in ranking problems, Biometrika 33 (1945).
    """
    first, second = (np.sign(np.subtract.outer(side, side)) for side in (np.asarray(predicted), np.asarray(measured)))
    norm = float(np.sqrt(np.sum(first**2) * np.sum(second**2)))
    return float(np.sum(first * second)) / norm if norm else None


def find_regret(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Returns how much slower the row that is predicted to be the fastest is than the fastest, as a share.

    Of several that are predicted alike, their mean.
    """
    predictions, times = np.asarray(predicted, float), np.asarray(measured, float)
    chosen = times[predictions == predictions.min()]
    return float(chosen.mean() / times.min() - 1)


def rank_groups(
    predicted: ArrayLike, measured: ArrayLike, groups: Sequence[str], *, least_rows: int = 2
) -> Ranking | None:
    """Returns how rows are ranked within their groups; None where no group has `least_rows` rows."""
    predictions, times = np.asarray(predicted, float), np.asarray(measured, float)
    members = [chosen for chosen in _split(groups) if chosen.size >= least_rows]
    if not members:
        return None
    taus = [tau for rows in members if (tau := find_kendall_tau(predictions[rows], times[rows])) is not None]
    regrets = [find_regret(predictions[rows], times[rows]) for rows in members]
    return Ranking(
        groups=len(members),
        median_tau=float(np.median(taus)) if taus else None,
        least_tau=min(taus) if taus else None,
        median_regret=float(np.median(regrets)),
        worst_regret=max(regrets),
    )


def measure_coverage(low: ArrayLike, high: ArrayLike, measured: ArrayLike) -> Coverage:
    """Returns the share of rows whose interval has what was measured, and how wide intervals are.

    Raises:
        ValueError: there is no row.
    """
    lows, highs, times = np.asarray(low, float), np.asarray(high, float), np.asarray(measured, float)
    if not times.size:
        raise ValueError("there is no row; a coverage needs at least one")
    return Coverage(
        count=int(times.size),
        share=float(np.mean((lows <= times) & (times <= highs))),
        median_width=float(np.median(highs / lows - 1)),
    )


def judge_memory(predicted: Iterable[bool], measured: Iterable[bool]) -> MemoryVerdicts:
    """Returns how often a verdict on memory (True: it runs out) was wrong, each way."""
    pairs = list(zip(predicted, measured, strict=True))
    return MemoryVerdicts(
        count=len(pairs),
        misses=sum(truth and not told for told, truth in pairs),
        false_alarms=sum(told and not truth for told, truth in pairs),
    )


def _split(groups: Sequence[str]) -> list[NDArray[np.int64]]:
    places: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    return [np.asarray(members, np.int64) for members in places.values()]
