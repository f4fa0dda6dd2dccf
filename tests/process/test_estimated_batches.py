"""The batch of a model's step, asked of a real agent over HTTP: estimated by the planner child, at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.testing import FakeAgent
from tests.agents import RunningAgent, start_agent
from tests.process.living import ask

ON_V5E: dict[str, Any] = {"model": "llama3-8b", "target": "v5e:4x4", "mesh": "fsdp:16", "training": {"seq_len": 512}}


@pytest.fixture(scope="module")
def simulated() -> Iterator[RunningAgent]:
    with start_agent(cpu_devices=None, MESHWRIGHT_SIMULATE="h100:8") as agent:
        yield agent


def post(agent: RunningAgent, **fields: Any) -> httpx.Response:
    return httpx.post(f"{agent.url}/batch-size", json=fields, timeout=60)


def test_the_agent_answers_what_the_library_does_and_loads_no_numpy(agent: RunningAgent) -> None:
    reply = post(agent, **ON_V5E)
    assert reply.status_code == 200, reply.text
    with httpx.Client(transport=FakeAgent().transport(), base_url="http://fake-agent") as here:
        assert reply.json()["estimated"] == here.post("/batch-size", json=ON_V5E).json()["estimated"]
    assert (reply.json()["hardware_type"], reply.json()["basis"]) == ("tpu_v5e", "declared")
    assert reply.json()["compiled"] is None
    assert not any("numpy" in line for line in Path(f"/proc/{agent.pid}/maps").read_text().splitlines())


def test_a_plan_that_the_agent_keeps_gives_the_mesh(agent: RunningAgent) -> None:
    plan = ask(agent, "/mesh/plan?mesh=fsdp:16&target=v5e:4x4")["plans"][0]
    named = {"model": ON_V5E["model"], "training": ON_V5E["training"], "plan": plan["fingerprint"]}
    estimated = post(agent, **named).json()["estimated"]
    assert estimated == post(agent, **ON_V5E).json()["estimated"]
    missing = post(agent, **{**named, "plan": "mw1-none"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_a_host_with_figures_is_estimated_on_itself(simulated: RunningAgent) -> None:
    reply = post(simulated, model="llama3.2-1b", mesh="fsdp:8").json()
    with httpx.Client(transport=FakeAgent().transport(), base_url="http://fake-agent") as here:
        asked = {"model": "llama3.2-1b", "mesh": "fsdp:8", "target": "h100:8"}
        known = here.post("/batch-size", json=asked).json()["estimated"]
    plan, there = reply["estimated"].pop("plan"), known.pop("plan")
    assert reply["estimated"] == known
    assert {name: plan[name] for name in ("memory", "schedule", "step_time")} == {
        name: there[name] for name in ("memory", "schedule", "step_time")
    }
    assert (plan["target"], reply["hardware_type"]) == (None, "h100")
