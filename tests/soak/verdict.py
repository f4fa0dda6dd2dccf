"""What the samples mean: does anything grow that should not? A table of figures beside limits, and a verdict.

Rule: the beginning does not count (caches fill, modules are imported). Growth is the Theil-Sen slope (the median of the
slopes between all pairs) times the time that counts, so that a peak at either end decides nothing. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from tests.soak.samples import Sample

WARM_UP: Final = 1 / 3
"""Of the samples."""
MOST_PAIRS_OF: Final = 150
"""Samples that slopes are taken between, evenly chosen: 11,000 pairs."""


@dataclass(frozen=True)
class Watched:
    """A figure of each sample, and how much it may grow while it counts: in its own unit, or relative to its median."""

    read: Callable[[Sample], float]
    unit: str
    may_grow: float
    may_grow_ratio: float = 0.0


WATCHED: Final[dict[str, Watched]] = {
    "memory (RSS)": Watched(lambda sample: sample.rss_bytes / 1e6, "MB", 3.0),
    "descriptors": Watched(lambda sample: sample.descriptors, "", 3.0),
    "threads": Watched(lambda sample: sample.threads, "", 1.0),
    "child processes": Watched(lambda sample: sample.children, "", 1.0),
    "zombies": Watched(lambda sample: sample.zombies, "", 1.0),
    "database and its log": Watched(lambda sample: sample.store_bytes / 1e6, "MB", 0.5, 0.1),
    "events without a run": Watched(lambda sample: sample.orphans, "", 1.0),
    "most events of a run": Watched(lambda sample: sample.most_events, "", 2.0),
}


def watch_table(table: str) -> Watched:
    """Returns what the rows of one table may do."""
    return Watched(lambda sample: sample.rows[table], "", 5.0, 0.1)


@dataclass(frozen=True)
class Row:
    """One figure: at the start and end of what counts (medians of a tenth), its peak, its growth, and what it may."""

    name: str
    unit: str
    start: float
    end: float
    peak: float
    growth: float
    limit: float

    @property
    def is_leak(self) -> bool:
        return self.growth > self.limit


def judge(samples: Sequence[Sample]) -> list[Row]:
    """Returns a row for each figure, and for each table of the database.

    Raises:
        ValueError: fewer than ten samples count.
    """
    counted = samples[int(len(samples) * WARM_UP) :]
    if len(counted) < 10:
        raise ValueError(f"{len(counted)} samples count; ten are the least: soak for longer, or look more often")
    tables = {f"rows of {table}": watch_table(table) for table in counted[0].rows}
    return [_judge_one(name, watched, counted) for name, watched in (WATCHED | tables).items()]


def _judge_one(name: str, watched: Watched, counted: Sequence[Sample]) -> Row:
    values = [watched.read(sample) for sample in counted]
    tenth = max(1, len(values) // 10)
    growth = measure_slope([sample.at_s for sample in counted], values) * (counted[-1].at_s - counted[0].at_s)
    limit = max(watched.may_grow, watched.may_grow_ratio * statistics.median(values))
    start, end = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
    return Row(name, watched.unit, start, end, max(values), growth, limit)


def measure_slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Returns the Theil-Sen slope, per unit of time.

    Source: Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968).
    """
    step = max(1, len(times) // MOST_PAIRS_OF)
    points = list(zip(times, values, strict=True))[::step]
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1)


def format_table(rows: Sequence[Row]) -> str:
    """Returns the rows as Markdown."""
    lines = ["| what | start | end | peak | growth | may grow | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        figures = (row.start, row.end, row.peak, row.growth, row.limit)
        cells = [f"{figure:.1f} {row.unit}".strip() for figure in figures]
        lines.append(f"| {row.name} | {' | '.join(cells)} | {'grows' if row.is_leak else 'holds'} |")
    return "\n".join(lines)
