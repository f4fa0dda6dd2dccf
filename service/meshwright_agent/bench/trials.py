"""A trial: one thing to measure, cheap to list and not yet prepared; and the record that it becomes.

Rule: `prepare` allocates and compiles, `sample` does the work once, `verify` compares the last result with what
NumPy expects. Only one trial is prepared at a time. Knows no jax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from meshwright.wire.bench import BenchCase, BenchRecord, Collective
from meshwright_agent.bench.timing import WARMUP_COUNT, Summary


@dataclass(frozen=True)
class Outcome:
    """What is known after the samples.

    Attributes:
        nwrong: elements of the last result that are not what they should be.
        collective: what stands in the compiled text; its count is 0 when it does not stand there.
    """

    nwrong: int
    detail: Mapping[str, Any] = field(default_factory=dict)
    collective: Collective | None = None

    @property
    def correct(self) -> bool:
        """No element wrong, and a collective was really there."""
        return self.nwrong == 0 and (self.collective is None or self.collective.count > 0)


class Subject(ABC):
    """Something prepared for measuring: its arrays lie ready, its programs are compiled."""

    @abstractmethod
    def sample(self) -> float:
        """Does the work once and returns the seconds that it took, without what had to be prepared for it."""

    @abstractmethod
    def verify(self) -> Outcome:
        """Returns whether the last sample's result is right."""


@dataclass(frozen=True)
class Trial:
    """One measurement to make.

    Attributes:
        size_bytes: S: of the array sent; of a collective's buffer as nccl-tests counts it; of three matrices; of
            what is read and written.
        flops: floating-point operations of one sample; then no bandwidth is stated.
        busbw_factor: busbw ÷ algbw; None for what is not a collective.
    """

    case: BenchCase
    name: str
    description: str
    device_indices: tuple[int, ...]
    dtype: str
    size_bytes: int
    prepare: Callable[[], Subject]
    axis: str | None = None
    axis_size: int | None = None
    busbw_factor: float | None = None
    flops: float | None = None

    @property
    def label(self) -> str:
        """Which of its case's trials this is, for people."""
        indices = ", ".join(str(index) for index in self.device_indices)
        over = f" over {self.axis}:{self.axis_size}" if self.axis else ""
        return f"{self.size_bytes} bytes on device {indices}{over}"


def build_record(
    trial: Trial, summary: Summary, outcome: Outcome, *, at: datetime, common: Mapping[str, Any]
) -> BenchRecord:
    """Returns the record of a measured trial; `common` is added to its detail."""
    algbw = None if trial.flops else trial.size_bytes / summary.median_s
    busbw = None if algbw is None or trial.busbw_factor is None else algbw * trial.busbw_factor
    return BenchRecord(
        case=trial.case,
        name=trial.name,
        description=trial.description,
        device_indices=trial.device_indices,
        axis=trial.axis,
        axis_size=trial.axis_size,
        dtype=trial.dtype,
        size_bytes=trial.size_bytes,
        samples_s=summary.samples_s,
        median_s=summary.median_s,
        p10_s=summary.p10_s,
        p90_s=summary.p90_s,
        algbw_bytes_per_s=algbw,
        busbw_factor=trial.busbw_factor,
        busbw_bytes_per_s=busbw,
        flops_per_s=trial.flops / summary.median_s if trial.flops else None,
        nwrong=outcome.nwrong,
        correct=outcome.correct,
        collective=outcome.collective,
        detail={"warmup_count": WARMUP_COUNT, **common, **outcome.detail},
        basis="measured",
        observed_at=at,
        age_s=0.0,
    )
