"""libtpu's scores of a recorded TPU host: a real worker process asks, and the question may hang or kill it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.machines import RECORDED
from tests.fakes.tpu_worker import TpuWorker
from tests.fakes.tree import plant
from tests.process.living import ask, await_state, read_component, read_worker

JOB = "3110"
"""The process that holds the recorded host's chips; without it the agent may open them."""
WELL = {
    "ici_link_health": [f"tray1.chip{chip}.ici{port}.int: 0" for chip in range(8) for port in range(4)],
    "tpu_throttle_score": [f"{device}-0" for device in range(8)],
}
ILL = {
    "ici_link_health": [*WELL["ici_link_health"][:-1], "tray1.chip7.ici3.int: 10"],
    "tpu_throttle_score": ["0-2", *WELL["tpu_throttle_score"][1:]],
}


@pytest.fixture
def worker(tmp_path: Path) -> TpuWorker:
    return TpuWorker(tmp_path / "site", "tpu-v5e-8")


@pytest.fixture
def settings(worker: TpuWorker, tmp_path: Path) -> dict[str, str]:
    """The settings with which an agent takes the recorded host for its own, keeps its worker there and looks often."""
    host = tmp_path / "host"
    plant((RECORDED / "tpu-v5e-8" / "tree.txt").read_text(), host)
    shutil.rmtree(host / "proc" / JOB)
    (host / "dev").mkdir(exist_ok=True)
    return {
        **{f"MESHWRIGHT_{root}_ROOT": str(host / place) for root, place in (("SYSFS", "sys"), ("PROC", "proc"))},
        "MESHWRIGHT_DEV_ROOT": str(host / "dev"),
        "MESHWRIGHT_PROBE_INTERVAL_S": "0.3",
        "MESHWRIGHT_HOLD": "always",
        "PYTHONPATH": worker.path,
        "TPU_LIBRARY_PATH": "",  # which tests that import the real libtpu leave in our environment
    }


def list_states(agent: RunningAgent) -> list[str]:
    events = ask(agent, "/events?component=ici")["events"]
    return [event["state"] for event in events if event["kind"] == "state"]


def test_links_and_throttling_are_told_while_the_worker_has_the_tpus(
    worker: TpuWorker, settings: dict[str, str]
) -> None:
    worker.tell(WELL)
    with start_agent(cpu_devices=None, **settings) as agent:
        assert await_state(agent, "ici", "healthy")["reason"] == "all 32 ICI links scored 0 of 10, healthy"
        assert await_state(agent, "throttle", "healthy")["permanence"] is None
        worker.tell(ILL)
        bad = await_state(agent, "ici", "unhealthy")
        assert "ICI link tray1.chip7.ici3.int scored 10 of 10: not usable" in bad["reason"]
        assert "device 0 by 20 %" in await_state(agent, "throttle", "degraded")["reason"]
        assert ask(agent, "/health")["state"] == "unhealthy"
        worker.tell(WELL)
        await_state(agent, "ici", "healthy")
        told = ["healthy", "unhealthy", "healthy"]
        wait_for(lambda: list_states(agent) == told, agent, limit_s=10)  # an event is told once it is stored


@pytest.mark.parametrize("fault", ["hang", "die"])
def test_a_libtpu_that_hangs_or_aborts_costs_one_worker_and_is_not_asked_again(
    fault: str, worker: TpuWorker, settings: dict[str, str]
) -> None:
    worker.tell(fault)
    with start_agent(cpu_devices=None, **settings) as agent:
        wait_for(lambda: "the worker failed" in read_component(agent, "ici")["reason"], agent, limit_s=60)
        assert read_component(agent, "ici")["state"] == "initializing"
        await_state(agent, "worker", "healthy", limit_s=60)
        time.sleep(2)
        assert read_worker(agent)["generation"] == 2
        assert len(ask(agent, "/devices")["devices"]) == 8
        assert httpx.get(f"{agent.url}/readyz").status_code == 200


def test_what_was_well_is_not_called_so_after_the_worker_has_gone_and_a_bad_link_stays_bad(
    worker: TpuWorker, settings: dict[str, str], tmp_path: Path
) -> None:
    worker.tell({**WELL, "ici_link_health": [*WELL["ici_link_health"][:-1], "tray1.chip7.ici3.int: 10"]})
    brief = {**settings, "MESHWRIGHT_HOLD": "on_demand", "MESHWRIGHT_STALE_AFTER_S": "3"}
    with start_agent(cpu_devices=None, state_dir=tmp_path / "state", **brief) as agent:
        bad = await_state(agent, "ici", "unhealthy")
        httpx.post(f"{agent.url}/devices/release", json={}).raise_for_status()
        await_state(agent, "throttle", "initializing")
        still = read_component(agent, "ici")
        assert (still["state"], still["reason"]) == ("unhealthy", bad["reason"])
    worker.tell("hang")
    with start_agent(cpu_devices=None, state_dir=tmp_path / "state", **brief) as agent:
        assert await_state(agent, "ici", "unhealthy")["reason"] == bad["reason"]
