"""A job on the TPUs of a recorded host, asked by a living agent: its gRPC service is real, comes, hangs and garbles."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.machines import RECORDED
from tests.fakes.tpu_runtime import read_values, serving
from tests.fakes.tree import plant
from tests.process.living import ask, await_state, read_component

NAME = "tpu_runtime"
CHECK = (sys.executable, "-c", "from meshwright.cli import main; main()", "check")
JOB = "3110"
"""The process that holds the recorded host's eight chips."""


@pytest.fixture(scope="module")
def grpc() -> Any:
    return pytest.importorskip("grpc", reason="needs the extra tpu-metrics")


def plant_host(folder: Path, port: int) -> dict[str, str]:
    """Returns the settings with which an agent takes the recorded TPU host for its own, and asks this port."""
    plant((RECORDED / "tpu-v5e-8" / "tree.txt").read_text(), folder)
    (folder / "dev").mkdir(exist_ok=True)
    roots = {"sysfs": "sys", "proc": "proc", "dev": "dev"}
    return {
        **{f"MESHWRIGHT_{root.upper()}_ROOT": str(folder / place) for root, place in roots.items()},
        "MESHWRIGHT_PROBE_INTERVAL_S": "0.3",
        "TPU_RUNTIME_METRICS_PORTS": str(port),
    }


def find_free_port() -> int:
    with socket.create_server(("localhost", 0)) as listener:
        return int(listener.getsockname()[1])


def list_states(agent: RunningAgent) -> list[str]:
    return [event["state"] for event in ask(agent, f"/events?component={NAME}")["events"]]


def test_a_job_is_silent_then_tells_then_hangs_then_garbles_then_ends(grpc: Any, tmp_path: Path) -> None:
    port = find_free_port()
    with start_agent(cpu_devices=None, **plant_host(tmp_path, port)) as agent:
        silent = await_state(agent, NAME, "degraded")
        assert "process 3110" in silent["reason"]
        assert f"port {port}: nobody listens" in silent["reason"]
        assert (silent["permanence"], "TPU_RUNTIME_METRICS_PORTS" in silent["action"]) == ("transient", True)
        assert httpx.get(f"{agent.url}/readyz").status_code == 200
        assert ask(agent, "/health")["state"] == "degraded"
        checked = subprocess.run([*CHECK, "--url", agent.url], capture_output=True, text=True, timeout=60, check=False)
        assert (checked.returncode, NAME in checked.stdout) == (0, True), checked.stdout
        with serving(grpc, read_values("v5litepod-8"), port=port):
            assert "tells of 8 devices" in await_state(agent, NAME, "healthy")["reason"]
            used = [device["memory"]["used_bytes"] for device in ask(agent, "/devices")["devices"]]
            assert used == read_values("v5litepod-8")["tpu.runtime.hbm.memory.usage.bytes"]
        with serving(grpc, {}, hangs=True, port=port):
            assert "no answer in time" in await_state(agent, NAME, "degraded")["reason"]
            began_s = time.monotonic()
            assert ask(agent, "/devices")["devices"]
            assert time.monotonic() - began_s < 1.0
        with serving(grpc, {}, answer_bytes=b"\x0a\xff", port=port):
            wait_for(lambda: "what answers is no libtpu" in read_component(agent, NAME)["reason"], agent, limit_s=30)
        shutil.rmtree(tmp_path / "proc" / JOB)
        gone = await_state(agent, NAME, "initializing")
        assert gone["reason"] == "no job holds a TPU: there is nobody to ask"
        assert (
            f'meshwright_component_health{{component="{NAME}",state="initializing"}} 1.0'
            in httpx.get(f"{agent.url}/metrics").text
        )
        told = ["degraded", "healthy", "degraded", "initializing"]
        wait_for(lambda: list_states(agent) == told, agent, limit_s=10)  # an event is told once it is stored
