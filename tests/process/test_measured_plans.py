"""Plans of an agent whose host was measured before it started: the runs come out of its store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from meshwright.wire.runs import Run
from tests.agents import RunningAgent, start_agent
from tests.fakes.stored import EPOCH, build_record_json, build_run
from tests.process.kept import keep_runs
from tests.process.living import ask

TRAINING = {"global_batch_size": 32, "seq_len": 4096}


SIMULATED = {"MESHWRIGHT_SIMULATE": "h100:8"}
H100 = "NVIDIA H100 80GB HBM3"
START_S = 2e-4
"""Of each call; longer than those that were published, so that a rate from which it was not taken is far off."""


def build_bench(number: int, state: str, flops_per_s: float) -> Run:
    """Returns a bench with matmuls of two sizes on each of 8 devices, at this rate beside the start."""
    records = []
    for n in (4096, 8192):
        seconds = START_S + 2 * n**3 / flops_per_s
        known = {"case": "matmul", "name": "matmul", "axis": None, "axis_size": None, "dtype": "bfloat16"}
        known |= {"size_bytes": 6 * n * n, "flops_per_s": 2 * n**3 / seconds, "device_kind": H100}
        known |= {"samples_s": (seconds,) * 3, "median_s": seconds, "p10_s": seconds, "p90_s": seconds}
        records += [build_record_json(device_indices=(index,), **known) for index in range(8)]
    about = {"suite": "full", "platform": "gpu", "device_kind": H100, "device_count": 8, "duration_s": 60.0}
    about |= {"jax": "0.10.2", "jaxlib": "0.10.2", "started_at": EPOCH.isoformat()}
    return build_run(number, state=state, result={**about, "records": records})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("measured")
    keep_runs(folder, [build_bench(1, "succeeded", 4e14), build_bench(2, "failed", 2e14)], **SIMULATED)
    with start_agent(cpu_devices=None, state_dir=folder, **SIMULATED) as agent:
        yield agent


def post(agent: RunningAgent, **fields: Any) -> dict[str, Any]:
    asked = {"model": "llama3-8b", "training": TRAINING, "include_devices": False, **fields}
    reply = httpx.post(f"{agent.url}/mesh/{'plan' if 'mesh' in fields else 'search'}", json=asked, timeout=60)
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
    assert "measured on this host: matmul;" in plan["step_time"]["basis"]


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
