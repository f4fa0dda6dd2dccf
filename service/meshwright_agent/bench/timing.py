"""Samples and what is said of them: median, p10, p90; and how a run's time is shared out among its trials.

Rule: no sample is dropped, and nothing is reported on fewer than three. Warm-up calls are not samples. Knows no jax:
what is sampled is a callable that returns its own seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright_agent.clock import Clock

MIN_SAMPLES: Final = 3
WARMUP_COUNT: Final = 2
RESERVE_RATIO: Final = 0.1
"""Of the limit: for preparing and checking the trial that is under way when no more is begun."""


class OutOfTime(Exception):  # noqa: N818 - not a fault: the reason why something is skipped
    """A trial does not fit in the time that is left; the message says why."""


@dataclass(frozen=True)
class Summary:
    """Samples in the order in which they were taken, with their median and 10th and 90th percentile, in seconds."""

    samples_s: tuple[float, ...]
    median_s: float
    p10_s: float
    p90_s: float


def build_summary(samples_s: Sequence[float]) -> Summary:
    """Returns the summary of at least three samples.

    Raises:
        ValueError: there are fewer.
    """
    if len(samples_s) < MIN_SAMPLES:
        raise ValueError(f"{len(samples_s)} samples; a summary needs at least {MIN_SAMPLES}")
    ordered = sorted(samples_s)
    p10, median, p90 = (percentile(ordered, ratio) for ratio in (0.1, 0.5, 0.9))
    return Summary(tuple(samples_s), median, p10, p90)


def percentile(ordered: Sequence[float], ratio: float) -> float:
    """Returns the value below which `ratio` of the sorted values lie, linear between neighbours.

    Source: R. J. Hyndman, Y. Fan, "Sample Quantiles in Statistical Packages" (1996), definition 7; NumPy's default.
    """
    place = ratio * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    value = ordered[below] + (ordered[above] - ordered[below]) * (place - below)
    return min(max(value, ordered[below]), ordered[above])


@dataclass(frozen=True)
class Timetable:
    """The time of a run. Every trial may use an equal share of what is left, and three samples at least.

    Attributes:
        limit_s: of the whole run.
        end_s: on the clock's steady scale: when no more is begun.
    """

    clock: Clock
    limit_s: float
    end_s: float

    @classmethod
    def start(cls, clock: Clock, limit_s: float) -> Timetable:
        """Returns a timetable that begins now."""
        return cls(clock, limit_s, clock.monotonic() + limit_s * (1 - RESERVE_RATIO))

    @property
    def left_s(self) -> float:
        """Seconds until the end; negative after it."""
        return self.end_s - self.clock.monotonic()

    def share_until_s(self, trials_left: int) -> float:
        """Returns until when the next of `trials_left` trials may take samples beyond the third.

        Raises:
            OutOfTime: the end has come.
        """
        self._check_left()
        return self.clock.monotonic() + self.left_s / trials_left

    def _check_left(self) -> None:
        if self.left_s <= 0:
            raise OutOfTime(f"the time limit of {self.limit_s:g} s was reached")

    def check_fits(self, sample_s: float) -> None:
        """Does nothing if three samples of `sample_s` end in time.

        Raises:
            OutOfTime: they do not.
        """
        self._check_left()
        if MIN_SAMPLES * sample_s > self.left_s:
            raise OutOfTime(
                f"one sample takes {sample_s:.3g} s: {MIN_SAMPLES} of them do not fit in what is left "
                f"of the time limit of {self.limit_s:g} s"
            )


def measure_samples(
    sample: Callable[[], float], *, count: int, until_s: float, timetable: Timetable, check: Callable[[], None]
) -> Summary:
    """Returns `count` samples after the warm-up, or at least three when `until_s` comes first.

    Args:
        sample: does the work once; returns the seconds that count.
        check: called before each call; what it raises ends the measurement.

    Raises:
        OutOfTime: three samples do not fit in the time that is left.
    """
    for _ in range(WARMUP_COUNT):
        check()
        timetable.check_fits(sample())
    samples: list[float] = []
    while len(samples) < count:
        check()
        samples.append(sample())
        if len(samples) >= MIN_SAMPLES and timetable.clock.monotonic() >= until_s:
            break
    return build_summary(samples)
