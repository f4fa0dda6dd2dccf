"""What an agent keeps of its benches for plans: right results of runs that succeeded, the newest that plans take."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshwright.planning.search.measured import Measurement
from meshwright_agent.agent import Agent
from meshwright_agent.answers.benches import HostMeasurements
from meshwright_agent.children.planner import parse_here
from meshwright_agent.settings import Settings
from tests.fakes.machines import READ_AT, plant_machine
from tests.fakes.measured import (
    MIB,
    build_bench_record,
    build_bench_result,
    build_collective,
    build_host,
    build_matmul,
    build_memory,
)
from tests.fakes.stored import EPOCH, ManualClock, build_run
from tests.unit.store.opening import build_closed_store


def read(known: HostMeasurements, later_s: float = 0.0) -> list[Measurement]:
    known._clock = ManualClock(EPOCH + timedelta(seconds=later_s))
    return [Measurement.model_validate(row) for row in json.loads(json.dumps(known.dump()))]


def result(*rows: Measurement, **fields: Any) -> dict[str, Any]:
    return build_bench_result([build_bench_record(row, **fields) for row in rows])


@pytest.mark.parametrize("fields", [{"wrong_elements": 3, "correct": False}, {"correct": False}])
def test_what_came_out_wrong_or_was_never_done_is_not_told(fields: dict[str, Any]) -> None:
    known = HostMeasurements(ManualClock())
    row = build_collective("all_reduce", 3e11, size_bytes=1024 * MIB)
    known.note("run-0001", result(row, **fields))
    assert read(known) == []
    known.note("run-0002", result(row))
    assert [each.run_id for each in read(known)] == ["run-0002"]


def test_a_quick_bench_does_not_drive_out_what_only_a_longer_one_can_tell() -> None:
    full = [build_memory(0, 2e12, size_bytes=size * MIB) for size in (256, 1024)]
    known = HostMeasurements(ManualClock())
    known.note("run-0001", result(*full))
    known.note("run-0002", result(build_memory(0, 1e12, size_bytes=256 * MIB)))  # too short to be told from its start
    assert [row.run_id for row in read(known)] == ["run-0001", "run-0001"]
    known.note("run-0003", result(*full))
    assert [row.run_id for row in read(known)] == ["run-0003", "run-0003"]


def test_stored_runs_are_recalled_in_the_order_in_which_they_were_made(caplog: pytest.LogCaptureFixture) -> None:
    older = build_run(1, state="succeeded", result=result(build_matmul(0, 3e14), build_matmul(1, 3e14)))
    newer = build_run(2, state="succeeded", result=result(build_matmul(0, 5e14)))
    other = build_run(3, state="succeeded", result={"suite": "of another release"})
    known = HostMeasurements(ManualClock())
    known.recall((other, newer, older))
    assert {row.device_indices: row.run_id for row in read(known)} == {(0,): "run-0002", (1,): "run-0001"}
    assert "run-0003" in caplog.text


def test_the_agent_tells_its_planner_what_it_has_in_memory(tmp_path: Path) -> None:
    clock = ManualClock(READ_AT)
    agent = Agent(Settings(state_dir=tmp_path), build_closed_store(tmp_path), clock=clock, environ={})
    agent.host.update(facts=plant_machine("dgx-h100", tmp_path).read(), facts_at=READ_AT)

    def dump() -> Any:
        return json.loads(json.dumps(agent.plans._try_to_dump_here()))

    assert parse_here(dump()).measured == ()
    agent.benches.measurements.note("run-0009", result(*build_host(4e14)))
    here = parse_here(dump())
    assert {row.run_id for row in here.measured} == {"run-0009"}
    assert len(here.measured) == 16
    assert {row.device_kind for row in here.measured} == {device.kind for device in here.topology.devices}
