"""Constants of a framework fitted to runs: in logarithms, held near what they were before any run was seen.

Rule: two rounds. A framework's constants come from all its sets, each of the same weight; a set's own, which have the
machine's and the release's habits, are held near those. A family of chips may differ from the others by factors that
are held near 1. Nothing is keyed by a model or a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from scipy.optimize import least_squares

from meshwright.planning.cost.practice import Practice
from tests.accuracy.cost_cases import Batch, Floats, build_batches
from tests.accuracy.run import Run


@dataclass(frozen=True)
class Start:
    """A framework's constants before any run is seen, and which of them are fitted.

    Attributes:
        practice: medians of the priors; what is not fitted stays.
        names: constants that are fitted.
        by_family: family → constants that may differ there.
        spreads: of a constant's logarithm, in units of `SPREAD`.
        scale: residuals above it count by their size, not by their square.
    """

    practice: Practice
    names: tuple[str, ...]
    by_family: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)
    scale: float = 0.1


@dataclass(frozen=True)
class Tuned:
    """Constants, and the factors that families have on some of them."""

    practice: Practice
    factors: Mapping[str, Mapping[str, float]]

    def find(self, family: str) -> Practice:
        """Returns the constants of a family."""
        own = self.factors.get(family, {})
        return replace(self.practice, **{name: getattr(self.practice, name) * factor for name, factor in own.items()})


PRIOR: Final = 0.1
"""Weight of one `spreads` away from a prior, as a residual."""
SET_PRIOR: Final = 0.3
"""The same of a set's constants around its framework's: a set differs from others by less than they from a guess."""
FAMILY_SPREAD: Final = 0.3
ROWS: Final = 50
"""Rows that a set counts for in its framework's fit, and four times as many at most in its own."""
REACH: Final = 4.0
"""Logarithms that a constant may go from its prior."""
_EVALUATIONS: Final = 30


def price(batches: Sequence[Batch], tuned: Tuned, count: int) -> Floats:
    """Returns the seconds of all runs of these batches."""
    seconds = np.zeros(count)
    for batch in batches:
        seconds[batch.places] = batch.price(tuned.find(batch.family))
    return seconds


def price_runs(runs: Sequence[Run], tuned: Tuned) -> Floats:
    """Returns the seconds of runs."""
    return price(build_batches(runs), tuned, len(runs))


def fit_framework(runs: Sequence[Run], start: Start) -> Tuned:
    """Returns the constants of a framework, from runs of all its sets."""
    counts = _count(runs)
    weights = np.array([np.sqrt(min(1.0, ROWS / counts[run.set_name])) for run in runs])
    return _fit(runs, weights, start, Tuned(start.practice, {}), PRIOR)


def fit_set(runs: Sequence[Run], start: Start, framework: Tuned) -> Tuned:
    """Returns the constants of a set's runs, held near those of its framework."""
    weights = np.full(len(runs), np.sqrt(min(1.0, 4 * ROWS / len(runs))))
    return _fit(runs, weights, start, framework, SET_PRIOR)


def _count(runs: Sequence[Run]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.set_name] = counts.get(run.set_name, 0) + 1
    return counts


def _fit(runs: Sequence[Run], weights: Floats, start: Start, center: Tuned, prior: float) -> Tuned:
    batches = build_batches(runs)
    measured = np.array([run.step_s for run in runs], float)
    families = {batch.family for batch in batches}
    places = [(family, name) for family, names in start.by_family.items() if family in families for name in names]
    spreads = [start.spreads.get(name, 1.0) for name in start.names] + [FAMILY_SPREAD for _ in places]
    at = np.log(
        [getattr(center.practice, name) for name in start.names]
        + [center.factors.get(f, {}).get(n, 1.0) for f, n in places]
    )

    def read(point: Floats) -> Tuned:
        values = np.exp(np.clip(point, at - REACH, at + REACH))
        practice = replace(center.practice, **dict(zip(start.names, map(float, values), strict=False)))
        factors: dict[str, dict[str, float]] = {}
        for (family, name), factor in zip(places, values[len(start.names) :], strict=True):
            factors.setdefault(family, {})[name] = float(factor)
        return Tuned(practice, factors)

    def measure(point: Floats) -> Any:
        tuned = read(point)
        residuals = weights * np.log(price(batches, tuned, len(runs)) / measured)
        hidden = np.minimum(0.0, np.log(tuned.practice.hidden))
        return np.concatenate([residuals, prior * (point - at) / spreads, [3 * hidden]])

    found = least_squares(measure, at, loss="soft_l1", f_scale=start.scale, max_nfev=_EVALUATIONS, x_scale=0.3)
    return read(found.x)
