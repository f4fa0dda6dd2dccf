"""The best mesh for a model, asked of a real agent over HTTP: priced by the planner child, compiled where wanted."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.testing import FakeAgent
from tests.agents import RunningAgent
from tests.process.living import ask, await_end
from tests.process.slice_environment import needs_tpu_compiler

TRAINING = {"global_batch_size": 64, "seq_len": 4096}
SMALL = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def post(agent: RunningAgent, **fields: Any) -> httpx.Response:
    asked = {"targets": ["v5e:4x4"], "model": "llama3-8b", "training": TRAINING, **fields}
    return httpx.post(f"{agent.url}/mesh/search", json=asked, timeout=60)


def test_the_agent_answers_what_the_library_does_and_loads_no_numpy(agent: RunningAgent) -> None:
    reply = post(agent, include_devices=False)
    assert reply.status_code == 200, reply.text
    asked = {"targets": ["v5e:4x4"], "model": "llama3-8b", "training": TRAINING, "include_devices": False}
    with httpx.Client(transport=FakeAgent().transport(), base_url="http://fake-agent") as here:
        assert reply.json() == here.post("/mesh/search", json=asked).json()
    assert len(reply.json()["plans"]) == 3
    assert not any("numpy" in line for line in Path(f"/proc/{agent.pid}/maps").read_text().splitlines())


def test_small_searches_are_answered_while_a_large_one_runs(agent: RunningAgent) -> None:
    training = {"global_batch_size": 16384, "seq_len": 4096}
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(post, agent, targets=["2048*h100:8"], training=training, include_devices=False)
        answered = 0
        while not large.done():
            assert post(agent, targets=["h100:8"], include_devices=False).status_code == 200
            answered += 1
    assert large.result().status_code == 200
    assert answered > 1, "one that waited for the large search is answered too"


def test_a_given_mesh_on_a_small_host_is_priced_by_the_planner_too(agent: RunningAgent) -> None:
    asked = {"mesh": "fsdp:16", "target": "v5e:4x4", "model": "llama3-8b", "training": TRAINING}
    reply = httpx.post(f"{agent.url}/mesh/plan", json=asked, timeout=60)
    (plan,) = reply.json()["plans"]
    assert plan["step_time"]["total_s"] > 0
    assert plan["memory"]["parts"]
    # What a stored plan says is the mesh's alone: another training may ask for the same one.
    stored = ask(agent, f"/mesh/plan/{plan['fingerprint']}")["plans"][0]
    assert stored["step_time"] is None
    assert stored["memory"] is None
    assert stored["schedule"] is None


def test_the_plan_for_when_a_device_fails_is_kept_for_its_ranks(agent: RunningAgent) -> None:
    reply = post(agent, targets=["4*h100:8"], fallback=True, top=1, include_devices=False)
    fallback = reply.json()["fallback"]
    (left,) = fallback["plans"]
    assert left["devices"] == []
    stored = ask(agent, f"/mesh/plan/{left['fingerprint']}")["plans"][0]
    assert len(stored["devices"]) == math.prod(left["mesh_shape"].values()) > 8
    assert len({device["host"] for device in stored["devices"]}) < 4
    assert stored["step_time"] is None


@pytest.mark.exhaustive
@needs_tpu_compiler
def test_the_best_are_compiled_as_they_are_scheduled(agent: RunningAgent) -> None:
    training = {"global_batch_size": 8, "seq_len": 128}
    reply = post(agent, targets=["v5e:2x2"], model=SMALL, training=training, top=2, compile=True)
    assert reply.status_code == 202, reply.text
    run = await_end(agent, reply.json()["id"], limit_s=300)
    assert run["state"] == "succeeded", run["error"]
    plans = run["result"]["plans"]
    assert len(plans) == 2
    assert [plan["verification"]["status"] for plan in plans] == ["verified"] * 2
    for plan in plans:
        # The state that the compiler counts is what was estimated, so that it is this mesh's.
        parts = plan["memory"]["parts"]
        estimated = parts["parameters"] + parts["optimizer"]
        assert plan["verification"]["memory"]["argument_bytes"] == pytest.approx(estimated, rel=0.1)
