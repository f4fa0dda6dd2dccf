"""A predictor judged on rows that it has not seen: fitted without a fold, asked about the fold, fold by fold.

Rule: what is reported of a row was predicted with constants that were fitted without any row of its fold. Knows no
formula; a predictor is a pair of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import numpy as np

from tests.accuracy.run import Run

LEAST_RESIDUALS: Final = 10
"""Residuals that an interval needs; with fewer of the nearest kind, the next nearest is taken."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a run; None: not this. `low_s` and `high_s`: of an 80 % interval.

    Attributes:
        step_s: seconds of a step.
        peak_bytes: of the fullest device.
        runs_out: whether it runs out of memory.
    """

    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    peak_bytes: float | None = None
    runs_out: bool | None = None


Constants = TypeVar("Constants")
Fit = Callable[[Sequence[Run]], Constants]
"""Returns constants fitted to runs; any type."""
Predict = Callable[[Constants, Sequence[Run]], Sequence[Prediction]]
"""Returns a prediction for each run, in their order."""
Fold = Callable[[Run], str]
"""Returns what is left out together with a run."""


@dataclass(frozen=True)
class Predictor(Generic[Constants]):
    """A way to predict.

    Attributes:
        name: what the page calls it.
        fit, predict: its two halves.
        fold: what it is judged without; None: `by_fold`.
    """

    name: str
    fit: Fit[Constants]
    predict: Predict[Constants]
    fold: Fold | None = None

    def evaluate(self, runs: Sequence[Run], *, sets: Collection[str] = ()) -> tuple[Row, ...]:
        """Returns `evaluate` with this predictor."""
        return evaluate(runs, self.fit, self.predict, fold=self.fold or by_fold, sets=sets)


@dataclass(frozen=True)
class Row:
    """A run and what was predicted of it, unseen."""

    run: Run
    prediction: Prediction

    @property
    def error(self) -> float | None:
        """Predicted seconds ÷ measured − 1; None where one of them is not there."""
        if self.run.step_s is None or self.prediction.step_s is None:
            return None
        return self.prediction.step_s / self.run.step_s - 1


def by_fold(run: Run) -> str:
    """Returns the run's own fold: its relatives are left out with it."""
    return run.fold


def by_row(run: Run) -> str:
    """Returns the run alone: its relatives stay."""
    return f"{run.set_name}/{run.id}"


def evaluate(
    runs: Sequence[Run],
    fit: Fit[Constants],
    predict: Predict[Constants],
    *,
    fold: Fold = by_fold,
    sets: Collection[str] = (),
) -> tuple[Row, ...]:
    """Returns each run with its prediction, in their order.

    Args:
        runs: what there is to fit on and to be asked about.
        fit: called once a fold, with all runs of other folds.
        predict: called once a fold, with its runs.
        fold: what is left out together.
        sets: asked about these sets alone; fitted on the others too. None: all.

    Raises:
        ValueError: `predict` returns another number of predictions than it was given runs.
    """
    asked = [run for run in runs if not sets or run.set_name in sets]
    answers: dict[str, Prediction] = {}
    for name in dict.fromkeys(map(fold, asked)):
        held_out = [run for run in asked if fold(run) == name]
        constants = fit([run for run in runs if fold(run) != name])
        predicted = predict(constants, held_out)
        if len(predicted) != len(held_out):
            raise ValueError(f"{name}: {len(predicted)} predictions for {len(held_out)} runs")
        answers.update({by_row(run): told for run, told in zip(held_out, predicted, strict=True)})
    return tuple(Row(run, answers[by_row(run)]) for run in asked)


def add_intervals(rows: Sequence[Row], *, share: float = 0.8) -> tuple[Row, ...]:
    """Returns the rows with intervals from the residuals of other folds: of the same set on the same kind of chip.

    A row's interval is its prediction times the quantiles of measured ÷ predicted of those residuals, so it has seen
    neither the row nor its relatives. Where there are too few, those of the set on any chip are taken, then those of
    the kind of chip in any set, then all. Rows that have an interval already, or no seconds, stay.

    Source: split conformal prediction (Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005), with
    folds in place of one split.
    """
    timed = [row for row in rows if row.error is not None]
    found = {kind: _find_bounds(kind, timed, share) for kind in dict.fromkeys(_find_kind(row.run) for row in timed)}
    return tuple(_add_interval(row, found.get(_find_kind(row.run))) for row in rows)


Kind = tuple[str, str, str]
"""A run's fold, set and kind of chip."""


def _find_kind(run: Run) -> Kind:
    return run.fold, run.set_name, run.chip_group


def _add_interval(row: Row, bounds: tuple[float, float] | None) -> Row:
    step_s = row.prediction.step_s
    if step_s is None or row.prediction.low_s is not None or bounds is None:
        return row
    return Row(row.run, replace(row.prediction, low_s=step_s * bounds[0], high_s=step_s * bounds[1]))


def _find_bounds(kind: Kind, timed: Sequence[Row], share: float) -> tuple[float, float] | None:
    """Returns quantiles of measured ÷ predicted of the rows nearest in kind of which there are enough, or of all."""
    fold, set_name, chip_group = kind
    pairs = [(_find_kind(row.run), 1 / (1 + row.error)) for row in timed if row.error is not None]
    others = [(other, ratio) for other, ratio in pairs if other[0] != fold]
    near = (
        [ratio for other, ratio in others if other[1:] == (set_name, chip_group)],
        [ratio for other, ratio in others if other[1] == set_name],
        [ratio for other, ratio in others if other[2] == chip_group],
    )
    chosen = next((ratios for ratios in near if len(ratios) >= LEAST_RESIDUALS), [ratio for _, ratio in others])
    if not chosen:
        return None
    low, high = np.quantile(chosen, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
