"""From the agent to a product of matrices: other processes take plans, make the meshes, compute, and are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from meshwright import Client
from tests.agents import RunningAgent
from tests.process.jobs import read_answer

TRAINER = Path(__file__).with_name("trainer.py")
LIMIT_S = 120


def start(agent_url: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a trainer that knows where the agent is, and nothing else of it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "MESHW"))}
    return subprocess.Popen(
        [sys.executable, str(TRAINER), *arguments],
        env={**inherited, "MESHWRIGHT_URL": agent_url, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(trainer: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns what a trainer reports."""
    try:
        out, err = trainer.communicate(timeout=LIMIT_S)
    finally:
        trainer.kill()
        trainer.wait()
    assert trainer.returncode == 0, err[-4000:]
    return read_answer(out)


def test_a_trainer_computes_on_the_mesh_that_the_agent_planned(agent: RunningAgent) -> None:
    report = finish(start(f"unix://{agent.uds}", "dp:2,tp:-1"))
    assert report["mesh"] == report["plan"]
    assert report["shape"] == {"dp": 2, "tp": 4}
    assert report["right"]
    with Client(agent.url) as client:  # the agent knows the plan under the name that the mesh has
        planned = client.get_plan(report["mesh"]).devices
    assert planned is not None
    assert report["order"] == [device.local_index for device in planned]


def test_a_trainer_has_the_order_and_the_part_of_the_devices_that_were_planned(agent: RunningAgent) -> None:
    turned = {"devices": [5, 0, 7, 2, 1, 6, 3, 4], "device_order": "given", "axis_types": ["explicit", "auto"]}
    part = {"devices": [6, 1, 3, 4], "device_order": "given"}
    both = [start(agent.url, "dp:4,tp:2", json.dumps(turned)), start(agent.url, "dp:2,tp:2", json.dumps(part))]
    whole, some = map(finish, both)
    assert whole["order"] == turned["devices"]
    assert whole["mesh"] == whole["plan"]
    assert some["seen"] == 4  # the plan's environment shows the trainer its part only
    assert some["order"] == [3, 0, 1, 2]
    assert some["mesh"] == some["plan"]


def test_a_plan_that_the_command_line_kept_in_a_file_needs_no_agent(agent: RunningAgent, tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    command = [Path(sys.executable).with_name("meshwright"), "--url", agent.url, "plan", "dp:8,tp:1", "--save", kept]
    planned = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert planned.returncode == 0, planned.stderr
    report = finish(start("http://127.0.0.1:1", MESHWRIGHT_PLAN=str(kept)))  # where nobody answers
    assert report["mesh"] == report["plan"]
    assert report["right"]
