"""Plans of an agent whose host was measured before it started: the runs come out of its store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright_agent.clock import SystemClock
from meshwright_agent.store import RUN, Document, Store
from tests.agents import RunningAgent, start_agent
from tests.fakes.measured import build_bench_record, build_bench_result, build_host
from tests.fakes.stored import build_run
from tests.process.living import ask

TRAINING = {"global_batch": 32, "sequence_length": 4096}


async def _write_runs(folder: Path) -> None:
    """Stores a bench that succeeded and a later one that failed, as an agent that measured here would have."""
    async with Store.open(folder / "simulated.sqlite3", clock=SystemClock()) as store:
        for number, state, rate in ((1, "succeeded", 4e14), (2, "failed", 2e14)):
            records = [build_bench_record(row) for row in build_host(rate)]
            run = build_run(number, state=state, result=build_bench_result(records))
            await store.write(Document(RUN, run.id, run.model_dump_json(), run.state))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("measured")
    asyncio.run(_write_runs(folder))
    with start_agent(cpu_devices=None, state_dir=folder, MESHWRIGHT_SIMULATE="h100:8") as agent:
        yield agent


def post(agent: RunningAgent, **fields: Any) -> dict[str, Any]:
    asked = {"model": "llama3-8b", "training": TRAINING, "include_devices": False, **fields}
    reply = httpx.post(f"{agent.url}/mesh/plan", json=asked, timeout=60)
    assert reply.status_code == 200, reply.text
    plan: dict[str, Any] = reply.json()["plans"][0]
    return plan


@pytest.mark.parametrize("mesh", [None, "fsdp:8"])
def test_a_plan_on_this_host_is_priced_with_what_was_measured_and_says_so(
    measured: RunningAgent, mesh: str | None
) -> None:
    plan = post(measured, **({} if mesh is None else {"mesh": mesh}))
    (figure,) = plan["measured"]
    assert figure["value"] == pytest.approx(4e14)
    assert figure["default"] == pytest.approx(794.5e12, rel=1e-3)
    assert figure["run_id"] == "run-0001"
    assert figure["age_s"] > 0
    assert plan["step_time"]["basis"].endswith("measured on this host: matmul")


def test_a_plan_on_a_target_is_priced_with_the_tables(measured: RunningAgent) -> None:
    target, here = post(measured, target="h100:8", mesh="fsdp:8"), post(measured, mesh="fsdp:8")
    assert target["measured"] == []
    assert "measured" not in target["step_time"]["basis"]
    assert target["step_time"]["compute_s"] < here["step_time"]["compute_s"]


def test_a_stored_plan_forgets_what_was_measured_as_it_forgets_the_price(measured: RunningAgent) -> None:
    plan = post(measured, mesh="fsdp:8")
    stored = ask(measured, f"/mesh/plan/{plan['fingerprint']}")["plans"][0]
    assert stored["step_time"] is None
    assert not stored["measured"]
