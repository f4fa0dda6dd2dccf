"""How long a large trial would take, told from two much smaller ones of its kind, before its first full-size call.

Rule: one call on a device cannot be interrupted, so a trial that cannot give `MIN_SAMPLES` in the time that is left is
not begun. What grows with S (data on the host, checks) and what grows with the work (bytes; for a matmul n³) is each
taken as a straight line through two small sizes, so that what is paid once (compiling) is not multiplied. Small trials
are not forecast: they cost less than asking. Knows no jax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meshwright.wire.devices import Platform
from meshwright_agent.bench.scope import ITEM_BYTES
from meshwright_agent.bench.timing import (
    MIN_SAMPLES,
    RESERVE_RATIO,
    WARMUP_COUNT,
    OutOfTime,
    Timetable,
    measure_samples,
)
from meshwright_agent.bench.trials import Subject, Trial

CALL_COUNT: Final = WARMUP_COUNT + MIN_SAMPLES
SHRINK: Final = 4
"""The larger probe is at most a quarter of the trial's S, the smaller one a quarter of that."""

MIB: Final = 2**20
FRESH_RATIO: Final = 2.0
"""By how much a large array costs more to make than small ones tell, which get memory that was used before: 2.4 (array
sent, 1 GiB, two cores)."""

MARGIN: Final = 1.2
LONGEST_S: Final = 3600.0
"""The most that a request may set as max_s."""


@dataclass(frozen=True)
class Thresholds:
    """From which work on a trial is forecast, and the largest S of a probe.

    Attributes:
        moved_bytes: S times the devices that take part, of what is no matmul.
    """

    moved_bytes: int
    flops: float
    probe_bytes: int
    probe_matmul_bytes: int


ON_CPU: Final = Thresholds(256 * MIB, 1.5e10, probe_bytes=64 * MIB, probe_matmul_bytes=16 * MIB)
"""About half a second of one call on two slow cores (about 1 GB/s and 30 GFLOP/s)."""
ELSEWHERE: Final = Thresholds(8192 * MIB, 2e12, probe_bytes=256 * MIB, probe_matmul_bytes=128 * MIB)
"""About a second over PCIe (about 10 GB/s), and above the quick suite's matmul."""


@dataclass(frozen=True)
class Cost:
    """What a trial takes: seconds of one call, and all seconds around the calls (preparing, checking)."""

    call_s: float
    aside_s: float

    @property
    def total_s(self) -> float:
        """Seconds until `MIN_SAMPLES` are there and checked."""
        return CALL_COUNT * self.call_s + self.aside_s

    def scale(self, ratio: float, power: float) -> Cost:
        """Returns the cost at `ratio` times the S."""
        return Cost(self.call_s * ratio**power, self.aside_s * ratio)


def check_forecast(trial: Trial, platform: Platform, timetable: Timetable, check: Callable[[], None]) -> None:
    """Does nothing if the trial is small, cannot be made smaller, or ends in time as far as can be told.

    Args:
        check: called before each call on a device; raises to cancel.

    Raises:
        OutOfTime: it does not end in time; the message tells the estimate and what would work.
    """
    limits = ON_CPU if platform == "cpu" else ELSEWHERE
    if trial.at_size is None or not is_large(trial, limits):
        return
    cost = forecast(trial, limits, timetable, check)
    if cost.total_s > timetable.left_s:
        raise OutOfTime(explain(trial, cost, timetable))


def is_large(trial: Trial, limits: Thresholds) -> bool:
    """Whether the trial's work is worth a forecast."""
    if trial.flops:
        return trial.flops >= limits.flops
    return trial.size_bytes * len(trial.device_indices) >= limits.moved_bytes


def forecast(trial: Trial, limits: Thresholds, timetable: Timetable, check: Callable[[], None]) -> Cost:
    """Returns the trial's cost, from two probes."""
    assert trial.at_size is not None
    large = min(trial.size_bytes // SHRINK, limits.probe_matmul_bytes if trial.flops else limits.probe_bytes)
    small = large // SHRINK
    low, high = (probe(trial.at_size, size, timetable, check) for size in (small, large))
    work = [float(size) ** trial.power for size in (small, large, trial.size_bytes)]
    return Cost(
        extrapolate((work[0], low.call_s), (work[1], high.call_s), work[2]),
        FRESH_RATIO * extrapolate((small, low.aside_s), (large, high.aside_s), trial.size_bytes),
    )


def extrapolate(low: tuple[float, float], high: tuple[float, float], x: float) -> float:
    """Returns y at x on the line through two points; never below the higher point's y."""
    slope = max(0.0, (high[1] - low[1]) / (high[0] - low[0]))
    return high[1] + slope * (x - high[0])


def probe(at_size: Callable[[int], Subject], size_bytes: int, timetable: Timetable, check: Callable[[], None]) -> Cost:
    """Returns the cost of a small trial, by making it."""
    check()
    began_s = timetable.clock.monotonic()
    subject = at_size(size_bytes)
    summary = measure_samples(subject.sample, count=MIN_SAMPLES, until_s=began_s, timetable=timetable, check=check)
    subject.verify()
    took_s = timetable.clock.monotonic() - began_s
    return Cost(summary.median_s, max(0.0, took_s - CALL_COUNT * summary.median_s))


def explain(trial: Trial, cost: Cost, timetable: Timetable) -> str:
    """Returns the estimate, what is left, and values that work."""
    return (
        f"it would take about {cost.total_s:.3g} s ({CALL_COUNT} calls of {cost.call_s:.3g} s, and {cost.aside_s:.3g} "
        f"s to prepare and check; told from smaller sizes): {max(0.0, timetable.left_s):.2g} s are left of the time "
        f"limit of {timetable.limit_s:g} s; use {' or '.join(list_remedies(trial, cost, timetable))}"
    )


def list_remedies(trial: Trial, cost: Cost, timetable: Timetable) -> list[str]:
    """Returns a max_s that is long enough, where one may be asked for, and a size that is small enough."""
    spent_s = timetable.limit_s * (1 - RESERVE_RATIO) - timetable.left_s
    enough_s = math.ceil(MARGIN * (spent_s + cost.total_s) / (1 - RESERVE_RATIO))
    longer = [f'"max_s": {enough_s}'] if enough_s <= LONGEST_S else []
    return [*longer, name_size(trial, shrink_to_fit(cost, trial.power, timetable.left_s / MARGIN))]


def shrink_to_fit(cost: Cost, power: float, left_s: float) -> float:
    """Returns the part of S that takes no longer than `left_s`."""
    ratio = 1.0
    while ratio > 1e-6 and cost.scale(ratio, power).total_s > left_s:
        ratio *= 0.9
    return ratio


def name_size(trial: Trial, ratio: float) -> str:
    """Returns the request's field with a size of that part of S: a power of two, or n as a multiple of 8."""
    size = trial.size_bytes * ratio
    if trial.flops:
        return f'"matmul_size": {8 * max(1, int(math.sqrt(size / (3 * ITEM_BYTES[trial.dtype])) // 8))}'
    return f'"sizes_bytes": [{2 ** int(math.log2(max(4.0, size)))}]'
