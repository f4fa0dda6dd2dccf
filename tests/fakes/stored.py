"""Small, valid runs, records and plans, and clocks that move when told; for the store and the queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from meshwright.wire.base import DeviceRef
from meshwright.wire.bench import BenchRecord
from meshwright.wire.mesh import Plan
from meshwright.wire.runs import Run, RunEvent

EPOCH = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


class ManualClock:
    """A clock that stands still until `advance`."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._now = start
        self._monotonic_s = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += max(0.0, seconds)


@dataclass
class ManualBoot:
    """Time since the machine started, which goes on when told to, and no more than that."""

    boot_id: str = "boot-1"
    now_s: float = 1000.0

    def since_boot_s(self) -> float:
        return self.now_s


def build_run(number: int = 1, **fields: Any) -> Run:
    known = {
        "id": f"run-{number:04}", "kind": "bench", "state": "queued", "created_at": EPOCH, "request": {"n": number},
    }  # fmt: skip
    return Run.model_validate(known | fields)


def build_event(run: Run, seq: int, **fields: Any) -> RunEvent:
    known = {"seq": seq, "at": EPOCH, "type": "state", "run_id": run.id, "state": run.state}
    return RunEvent.model_validate(known | fields)


def build_record(**fields: Any) -> BenchRecord:
    known: dict[str, Any] = {
        "basis": "measured", "observed_at": EPOCH, "age_s": 0.0, "case": "all_reduce", "device_indices": (0, 1),
        "device_kind": "cpu", "axis": "dp", "axis_size": 2, "dtype": "float32", "size_bytes": 1024,
        "samples_s": (0.1, 0.2, 0.3), "median_s": 0.2, "p10_s": 0.1, "p90_s": 0.3, "wrong_elements": 0, "correct": True,
    }  # fmt: skip
    return BenchRecord.model_validate(known | fields)


def build_record_json(**fields: Any) -> dict[str, Any]:
    return build_record(**fields).model_dump(mode="json")


def build_plan(number: int = 1, **fields: Any) -> Plan:
    known: dict[str, Any] = {
        "fingerprint": f"mw1-{number:032x}", "mesh_shape": {"dp": 2, "tp": 1},
        "axis_types": {"dp": "auto", "tp": "auto"}, "platform": "cpu",
        "devices": tuple(DeviceRef(host="a", local_index=index, position=index) for index in range(2)),
    }  # fmt: skip
    return Plan.model_validate(known | fields)
