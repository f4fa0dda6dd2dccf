"""The log of a living agent: lines of JSON, of requests and of children; and a stderr that nobody reads."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, spawn, start_agent, wait_for
from tests.process.living import plant_jax

JAX_SPEAKS = "import sys; print('jax was here', file=sys.stderr); raise ImportError('no jax today')"


def read_lines(agent: RunningAgent) -> list[dict[str, Any]]:
    """Returns the lines of stdout and stderr together, each of which must be an object."""
    return [json.loads(line) for line in agent.log_text().splitlines()]


def find(agent: RunningAgent, **fields: Any) -> list[dict[str, Any]]:
    return [line for line in read_lines(agent) if fields.items() <= line.items()]


def test_json_lines_carry_the_id_of_their_request_and_the_audit_is_never_silent() -> None:
    settings = {"MESHWRIGHT_LOG_FORMAT": "json", "MESHWRIGHT_LOG_LEVEL": "warning"}
    with start_agent(cpu_devices=2, **settings) as agent:
        began = datetime.now(UTC)
        httpx.delete(f"{agent.url}/runs/run-secret?token=hunter2", headers={"X-Request-ID": "mine-1"})
        (line,) = wait_for(lambda: find(agent, request_id="mine-1"), agent)
        assert abs((datetime.fromisoformat(line["time"]) - began).total_seconds()) < 60
        assert (line["level"], line["logger"]) == ("info", "meshwright.audit")
        said = {"caller": "addr:127.0.0.1", "scope": "admin", "method": "DELETE", "path": "/runs/run-secret"}
        assert line["audit"] == {**said, "status": 404, "request_id": "mine-1"}
        (listening,) = find(agent, logger="meshwright.listening")  # also at level warning
        assert listening["addresses"] == [agent.url, f"unix://{agent.uds}"]
        assert (listening["version"], listening.get("simulates")) == (version("meshwright"), None)
        assert "hunter2" not in agent.log_text()


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
    command = [sys.executable, "-m", "meshwright_agent", "serve", "--port", "0", "--cpu-devices", "1"]
    agent = spawn(command, tmp_path, {}, stderr=subprocess.PIPE)  # which we hold open, and do not read
    try:
        with httpx.Client(base_url=agent.url, timeout=30) as client:
            for _ in range(2000):  # some 400 KB of audit lines: the pipe holds 64
                assert client.delete("/leases/none").status_code == 404
        assert agent.stop() == 0
    finally:
        agent.process.kill()
        agent.process.communicate()
