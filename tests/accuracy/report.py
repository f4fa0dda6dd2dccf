"""What the rows of one set come to: errors, order, intervals, memory, for any predictor.

Rule: rows in, figures out; writes nothing. What a predictor does not say is counted as missing, never left out quietly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.accuracy.evaluate import Row
from tests.accuracy.goals import Goal
from tests.accuracy.metrics import (
    Coverage,
    Errors,
    MemoryVerdicts,
    Ranking,
    fit_scale,
    judge_memory,
    measure_coverage,
    rank_groups,
    summarize_errors,
)


@dataclass(frozen=True)
class SetReport:
    """One set's figures. None: there is no row for it.

    Attributes:
        rows: that were asked.
        silent: timed rows for which no seconds were predicted.
        errors: as predicted; scaled: after one scale a chip.
        ranking: within groups.
        coverage: of the intervals.
        memory: errors of peaks.
        verdicts: whether rows ran out of memory.
    """

    rows: int
    silent: int
    errors: Errors | None
    scaled: Errors | None
    ranking: Ranking | None
    coverage: Coverage | None
    memory: Errors | None
    verdicts: MemoryVerdicts | None


def report_set(rows: Sequence[Row], goal: Goal) -> SetReport:
    """Returns the figures of these rows, which are of one set."""
    timed = [row for row in rows if row.error is not None]
    asked = sum(row.run.step_s is not None for row in rows)
    predicted, measured = _list_seconds(timed)
    return SetReport(
        rows=len(rows),
        silent=asked - len(timed),
        errors=summarize_errors(predicted, measured) if timed else None,
        scaled=_summarize_scaled(timed) if timed else None,
        ranking=rank_groups(predicted, measured, [row.run.group for row in timed], least_rows=goal.least_rows),
        coverage=_measure_coverage(timed),
        memory=_summarize_memory(rows),
        verdicts=_judge_memory(rows),
    )


def _list_seconds(timed: Sequence[Row]) -> tuple[list[float], list[float]]:
    pairs = [(row.prediction.step_s or 0.0, row.run.step_s or 0.0) for row in timed]
    return [predicted for predicted, _ in pairs], [measured for _, measured in pairs]


def _summarize_scaled(timed: Sequence[Row]) -> Errors:
    predicted, measured = (np.asarray(side) for side in _list_seconds(timed))
    chips = np.asarray([row.run.chip for row in timed])
    for chip in np.unique(chips):
        own = chips == chip
        predicted[own] *= fit_scale(predicted[own], measured[own])
    return summarize_errors(predicted, measured)


def _measure_coverage(timed: Sequence[Row]) -> Coverage | None:
    bounds = [
        (row.prediction.low_s, row.prediction.high_s, row.run.step_s)
        for row in timed
        if row.prediction.low_s is not None and row.prediction.high_s is not None and row.run.step_s is not None
    ]
    if not bounds:
        return None
    low, high, measured = zip(*bounds, strict=True)
    return measure_coverage(low, high, measured)


def _summarize_memory(rows: Sequence[Row]) -> Errors | None:
    pairs = [
        (row.prediction.peak_bytes, row.run.peak_bytes)
        for row in rows
        if row.prediction.peak_bytes is not None and row.run.peak_bytes is not None
    ]
    if not pairs:
        return None
    predicted, measured = zip(*pairs, strict=True)
    return summarize_errors(predicted, measured)


def _judge_memory(rows: Sequence[Row]) -> MemoryVerdicts | None:
    pairs = [
        (row.prediction.runs_out, row.run.oom)
        for row in rows
        if row.prediction.runs_out is not None and row.run.oom is not None
    ]
    if not pairs:
        return None
    predicted, measured = zip(*pairs, strict=True)
    return judge_memory(predicted, measured)
