"""The first bench of a default install: on an idle card it is done, beside a job it is refused.

Everything is real but the driver, a fake `pynvml`, and that a CPU device of JAX stands for the card.
"""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.cards import DOCUMENT, plant_cards
from tests.process.living import await_end, read_worker

JOB_PID = 4242
"""The job on GPU 3 of the recorded host."""


def ask_for_bench(agent: RunningAgent) -> httpx.Response:
    """Asks for a bench as an admin on the host does."""
    with agent.connect() as unix:
        return unix.post("/placement/bench", json={})


def test_the_first_bench_of_a_default_install_is_done_on_an_idle_card(tmp_path: Path) -> None:
    with start_agent(cpu_devices=None, **plant_cards(tmp_path, DOCUMENT["gpus"][:1], seen=1)) as agent:
        reply = ask_for_bench(agent)
        assert reply.status_code == 202, reply.text
        run = await_end(agent, reply.json()["id"])
    assert run["state"] == "succeeded", run["error"]
    result = run["result"]
    assert (result["platform"], result["device_count"]) == ("gpu", 1)
    assert result["records"]
    assert all(record["correct"] for record in result["records"])


def test_a_bench_is_refused_beside_a_job_with_the_job_named_and_jax_is_not_started(tmp_path: Path) -> None:
    with start_agent(cpu_devices=None, **plant_cards(tmp_path, DOCUMENT["gpus"][3:4], seen=1)) as agent:
        wait_for(lambda: httpx.get(f"{agent.url}/devices").json().get("devices"), agent)
        reply = ask_for_bench(agent)
        assert (reply.status_code, reply.json()["code"]) == (409, "device_busy")
        assert f"device 0 (NVIDIA H100 80GB HBM3), which is held by process {JOB_PID} (" in reply.json()["detail"]
        assert (read_worker(agent)["state"], read_worker(agent)["generation"]) == ("stopped", 0)
