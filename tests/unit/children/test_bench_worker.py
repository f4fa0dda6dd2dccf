"""Benches in the real device worker, under its supervisor: updates on the way, cancel, refusal; it lives on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.wire.bench import BenchResult
from meshwright_agent.supervisor.supervisor import Supervisor
from tests.unit.children.device_workers import LIMIT_S, supervise

SMALL = {"cases": ["host_to_device", "all_reduce"], "sizes_bytes": [65536], "samples": 3}
LONG = {"cases": ["all_reduce"], "sizes_bytes": [1 << 24], "samples": 1000, "max_s": 100.0}


def test_a_bench_tells_progress_and_records_and_answers_with_its_result() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        updates: list[dict[str, Any]] = []
        answer = await supervisor.call("bench", SMALL, deadline_s=LIMIT_S, on_progress=updates.append)
        result = BenchResult.model_validate(answer.result)
        assert [record.case for record in result.records] == ["host_to_device", "all_reduce"]
        assert [update.get("done", "record") for update in updates] == [0, "record", 1, "record", 2]

    supervise(scenario)


def test_a_cancelled_bench_stops_between_samples_and_the_worker_goes_on() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        begun = asyncio.Event()
        work = asyncio.create_task(
            supervisor.call("bench", LONG, deadline_s=LIMIT_S, on_progress=lambda _: begun.set())
        )
        await begun.wait()
        began_s = time.monotonic()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        answer = await supervisor.call("bench", SMALL, deadline_s=LIMIT_S)
        assert time.monotonic() - began_s < 20
        assert answer.generation == 1

    supervise(scenario)


def test_a_device_that_jax_has_not_is_refused_by_its_own_error() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(InvalidRequestError, match="device 99 is not there"):
            await supervisor.call("bench", {**SMALL, "devices": [99]}, deadline_s=LIMIT_S)

    supervise(scenario)
