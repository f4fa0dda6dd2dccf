"""The log of a living agent: lines of JSON, of requests and of children; and a stderr that nobody reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.living import plant_jax

JAX_SPEAKS = "import sys; print('jax was here', file=sys.stderr); raise ImportError('no jax today')"


def read_lines(agent: RunningAgent) -> list[dict[str, Any]]:
    """Returns the lines of stdout and stderr together, each of which must be an object."""
    return [json.loads(line) for line in agent.log_text().splitlines()]


def find(agent: RunningAgent, **fields: Any) -> list[dict[str, Any]]:
    return [line for line in read_lines(agent) if fields.items() <= line.items()]


def test_every_request_is_a_line_of_json_with_its_id_and_template_once_that_was_asked_for() -> None:
    settings = {"MESHWRIGHT_LOG_FORMAT": "json", "MESHWRIGHT_ACCESS_LOG": "true", "MESHWRIGHT_LOG_LEVEL": "warning"}
    with start_agent(cpu_devices=2, **settings) as agent:
        began = datetime.now(UTC)
        httpx.get(f"{agent.url}/runs/run-secret?token=hunter2", headers={"X-Request-ID": "mine-1"})
        httpx.get(f"{agent.url}/devices", headers={"X-Request-ID": "mine-2"})
        wait_for(lambda: find(agent, request_id="mine-2"), agent)
        (missing,), (devices,) = find(agent, request_id="mine-1"), find(agent, request_id="mine-2")
        assert abs((datetime.fromisoformat(missing.pop("time")) - began).total_seconds()) < 60
        assert 0 <= missing.pop("duration_s") < 60
        assert re.fullmatch(r"GET /runs/\{run_id\} 422 in [\d.]+ s", missing.pop("message"))
        assert missing == {
            "level": "info",
            "logger": "meshwright.access",
            "request_id": "mine-1",
            "route": "/runs/{run_id}",
            "method": "GET",
            "status": 422,
        }
        assert (devices["route"], devices["status"]) == ("/devices", 200)
        (listening,) = find(agent, logger="meshwright.listening")  # also at level warning
        assert listening["addresses"] == [agent.url, f"unix://{agent.uds}"]
        assert (listening["version"], listening["simulates"]) == (version("meshwright"), None)
        assert "hunter2" not in agent.log_text()


@pytest.mark.exhaustive
def test_without_being_asked_no_request_is_logged() -> None:
    with start_agent(cpu_devices=2) as agent:
        httpx.get(f"{agent.url}/devices")
        assert agent.stop() == 0
        assert "meshwright.access" not in agent.log_text()
        assert re.search(r"^\d{4}-\d\d-\d\dT[\d:.]+Z INFO [\w.]+: ", agent.log_text(), re.MULTILINE)


def test_what_a_child_prints_is_told_with_its_name_and_generation(tmp_path: Path) -> None:
    settings = {
        "MESHWRIGHT_LOG_FORMAT": "json",
        "MESHWRIGHT_PROBE_INTERVAL_S": "1",
        "PYTHONPATH": plant_jax(tmp_path, JAX_SPEAKS),
    }
    with start_agent(cpu_devices=2, ready=False, **settings) as agent:
        wait_for(lambda: find(agent, logger="meshwright.worker.device", generation=2), agent)
        first = find(agent, logger="meshwright.worker.device", generation=1)
        spoken = [line for line in first if line["message"].endswith("]: jax was here")]
        assert len(spoken) == 1
        assert spoken[0]["message"] == f"device[{spoken[0]['child_pid']}]: jax was here"


@pytest.mark.exhaustive
def test_a_stderr_that_nobody_reads_holds_up_neither_answers_nor_the_end(tmp_path: Path) -> None:
    agent = _start_on_a_full_pipe(tmp_path)
    try:
        with httpx.Client(base_url=agent.url, timeout=30) as client:
            for _ in range(2000):  # some 250 KB of log: the pipe holds 64
                assert client.get("/healthz").status_code == 200
        assert agent.stop() == 0
    finally:
        agent.process.kill()
        agent.process.communicate()


def _start_on_a_full_pipe(folder: Path) -> RunningAgent:
    """Starts an agent with an access log whose stderr is a pipe that we hold open, and do not read."""
    printed = folder / "stdout"
    with printed.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "meshwright_agent", "serve", "--port", "0", "--state-dir", str(folder / "state")],
            env={**os.environ, "MESHWRIGHT_ACCESS_LOG": "true", "MESHWRIGHT_CPU_DEVICES": "1"},
            stdout=file,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
    agent = RunningAgent(process, "", folder / "none", folder / "state", printed)
    found = wait_for(lambda: re.search(r"listens on (http://\S+?)\s", printed.read_text()), agent)
    assert found is not None
    agent.url = found.group(1)
    return agent
