"""Records as a run writes them, with the figures that a test asks for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from meshwright.wire.bench import BenchRecord
from meshwright_agent.children.bench.measure import Outcome, Subject, Trial, build_record

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class NoSubject(Subject):
    def sample(self) -> float:
        return 1.0

    def verify(self) -> Outcome:
        return Outcome(0)


def make_record(
    case: Any,
    devices: tuple[int, ...],
    *,
    duration_s: float = 1e-3,
    size: int = 1 << 20,
    wrong_elements: int = 0,
    **fields: Any,
) -> BenchRecord:
    """`duration_s` for each of three samples; `fields` are the trial's."""
    made = {"description": case, "dtype": "float32", "prepare": NoSubject, **fields}
    trial = Trial(case=case, device_indices=devices, size_bytes=size, **made)
    at = AT + timedelta(seconds=size % 7)
    common = {"host": "a", "device_kind": "cpu"}
    return build_record(trial, [duration_s] * 3, Outcome(wrong_elements), at=at, common=common)


def make_collective(case: Any = "all_reduce", *, count: int = 4, factor: float = 1.5, **fields: Any) -> BenchRecord:
    return make_record(case, tuple(range(count)), axis="x", axis_size=count, busbw_factor=factor, **fields)
