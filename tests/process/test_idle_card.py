"""The first bench of a default install: on an idle card it is done, beside a job it is refused.

Everything is real but the driver, a fake `pynvml`, and that a CPU device of JAX stands for the card.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx

import tests
from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.tree import RECORDED, plant_host
from tests.fakes.well import WELL
from tests.process.living import await_end, read_worker

ROOT = Path(tests.__file__).parents[1]
CARD_OF_CPU = "from tests.fakes.altered import stand_in_for_a_card; stand_in_for_a_card()"
JOB_PID = 4242
"""The job on GPU 3 of the recorded host."""


def build_host(folder: Path, *, is_idle: bool) -> dict[str, str]:
    """Returns the settings of a recorded host with a driver, which has one card: idle, or with its job."""
    document: dict[str, Any] = json.loads((RECORDED / "dgx-h100/nvml.json").read_text())
    idle, held = document["gpus"][0], document["gpus"][3]
    document["gpus"] = [{**(idle if is_idle else held), **WELL}]
    (folder / "nvml.json").write_text(json.dumps(document))
    (folder / "sitecustomize.py").write_text(CARD_OF_CPU)
    return {
        **plant_host("dgx-h100", folder / "host"),
        "FAKE_NVML": str(folder),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT / "tests/fakes/as_pynvml"), str(ROOT))),
    }


def ask_for_bench(agent: RunningAgent) -> httpx.Response:
    """Asks for a bench as an admin on the host does."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(agent.uds)), base_url="http://agent") as unix:
        return unix.post("/placement/bench", json={}, timeout=60)


def test_the_first_bench_of_a_default_install_is_done_on_an_idle_card(tmp_path: Path) -> None:
    with start_agent(cpu_devices=None, **build_host(tmp_path, is_idle=True)) as agent:
        reply = ask_for_bench(agent)
        assert reply.status_code == 202, reply.text
        run = await_end(agent, reply.json()["id"])
    assert run["state"] == "succeeded", run["error"]
    result = run["result"]
    assert (result["platform"], result["device_count"]) == ("gpu", 1)
    assert result["records"]
    assert all(record["correct"] for record in result["records"])


def test_a_bench_is_refused_beside_a_job_with_the_job_named_and_jax_is_not_started(tmp_path: Path) -> None:
    with start_agent(cpu_devices=None, **build_host(tmp_path, is_idle=False)) as agent:
        wait_for(lambda: httpx.get(f"{agent.url}/devices").json().get("devices"), agent)
        reply = ask_for_bench(agent)
        assert (reply.status_code, reply.json()["code"]) == (409, "device_busy")
        assert f"device 0 (NVIDIA H100 80GB HBM3), which is held by process {JOB_PID} (" in reply.json()["detail"]
        assert (read_worker(agent)["state"], read_worker(agent)["generation"]) == ("stopped", 0)
