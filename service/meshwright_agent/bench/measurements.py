"""What this host's benches found, kept for plans: of each case and set of devices the newest timing that plans take.

Rule: only right results of runs that succeeded. All of it is in memory, read from the store once when the agent starts,
so that no plan waits for a disk. What a plan makes of it is `meshwright.planning.search.measured`'s to say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from meshwright.planning.search.measured import Measurement, pick_newest
from meshwright.wire.bench import BenchRecord, BenchResult
from meshwright.wire.runs import Run

BENCHES_MOST: Final = 32
"""Runs that are read again when an agent starts, the newest."""

log = logging.getLogger(__name__)


class HostMeasurements:
    """Measurements of one host."""

    def __init__(self) -> None:
        self._rows: tuple[Measurement, ...] = ()

    def recall(self, runs: tuple[Run, ...]) -> None:
        """Takes benches that succeeded before, given newest first."""
        for run in reversed(runs):
            self.note(run.id, run.result or {})

    def note(self, run_id: str, result: dict[str, Any]) -> None:
        """Takes the result of a bench that succeeded; one that this release cannot read is logged and passed over."""
        try:
            found = read_measurements(run_id, BenchResult.model_validate(result))
        except ValidationError as error:
            log.warning("the result of %s is not read for plans: %s", run_id, error)
            return
        self._rows = pick_newest((*self._rows, *found))

    def tell(self, now: datetime) -> list[dict[str, Any]]:
        """Returns them as the planner takes them, the oldest first, with their age in seconds."""
        return [_age(row, now).model_dump(mode="json") for row in self._rows]


def read_measurements(run_id: str, result: BenchResult) -> Iterator[Measurement]:
    """Yields what a bench timed; not what came out wrong, nor a collective that the compiler took out."""
    for record in result.records:
        is_there = record.collective is None or record.collective.count > 0
        if record.correct and record.nwrong == 0 and is_there:
            yield _build(run_id, record, result.device_kind)


def _build(run_id: str, record: BenchRecord, device_kind: str) -> Measurement:
    return Measurement(
        case=record.case,
        dtype=record.dtype,
        device_kind=str(record.detail.get("device_kind", device_kind)),
        device_indices=record.device_indices,
        axis_size=record.axis_size,
        size_bytes=record.size_bytes,
        median_s=record.median_s,
        flop_count=(record.flops_per_s or 0.0) * record.median_s,
        busbw_factor=record.busbw_factor or 0.0,
        run_id=run_id,
        observed_at=record.observed_at,
    )


def _age(row: Measurement, now: datetime) -> Measurement:
    return row.model_copy(update={"age_s": max(0.0, (now - row.observed_at).total_seconds())})
