"""Durations: how often something took how long, by what it was. What /metrics makes histograms of.

Rule: a count in a bucket, so that memory does not grow. Lives on the event loop; knows nothing of Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

CALL_BOUNDS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""From an answer out of memory to the longest compile."""
RELEASE_BOUNDS_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 5.0)
"""Fine up to the bound of a release, 2 s."""
WRITE_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""From a page into a log in memory to a disk that hangs; at 2 s a lease comes too late, after 10 s nobody waits."""

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Spread:
    """How the durations of one kind are spread.

    Attributes:
        labels: of what.
        cumulative: by bound, how many took at most so long; the last is all of them, its bound infinite.
        total_s: their sum.
    """

    labels: Labels
    cumulative: tuple[tuple[float, int], ...]
    total_s: float


class Durations:
    """Counts durations by labels, in buckets whose upper bounds belong to them."""

    def __init__(self, bounds_s: tuple[float, ...] = CALL_BOUNDS_S) -> None:
        self._bounds_s = bounds_s
        self._counts: dict[Labels, list[int]] = {}
        self._totals_s: dict[Labels, float] = {}

    def observe(self, labels: Labels, seconds: float) -> None:
        """Counts one; a clock that was set back makes none shorter than 0."""
        seconds = max(0.0, seconds)
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds_s) + 1))
        counts[bisect_left(self._bounds_s, seconds)] += 1
        self._totals_s[labels] = self._totals_s.get(labels, 0.0) + seconds

    def spreads(self) -> Iterator[Spread]:
        """Yields what was counted, by labels in the order in which they were first seen."""
        bounds_s = (*self._bounds_s, float("inf"))
        for labels, counts in self._counts.items():
            yield Spread(labels, tuple(zip(bounds_s, accumulate(counts), strict=True)), self._totals_s[labels])
