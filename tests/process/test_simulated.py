"""An agent that simulates, as a process: it answers as any agent, says what it is, and touches nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from meshwright import Client, Fleet
from meshwright.preflight import check_hosts
from tests.agents import RunningAgent, start_agent
from tests.process.living import ask, find_children, list_children

TARGET = "64*h100:8"
ROUTES = (
    "/healthz", "/readyz", "/health", "/devices", "/devices?format=text", "/mesh/plan?mesh=dp:64,tp:8",
    "/batch-size", "/batch-size?hardware=h100&per_device_batch_size=256", "/placement/bench", "/runs",
    "/environment", "/metrics", "/targets", "/openapi.json", "/docs", "/",
)  # fmt: skip


@pytest.fixture(scope="module")
def simulated() -> Iterator[RunningAgent]:
    with start_agent(cpu_devices=None, MESHWRIGHT_SIMULATE=TARGET) as agent:
        yield agent


def test_every_route_answers_and_no_child_looks_at_the_host(simulated: RunningAgent) -> None:
    for route in ROUTES:
        assert httpx.get(f"{simulated.url}{route}", timeout=30).status_code == 200, route
    assert list_children(simulated.pid) == find_children(simulated, "planner")


def test_it_says_that_it_simulates_and_its_devices_are_the_targets(simulated: RunningAgent) -> None:
    assert httpx.get(f"{simulated.url}/readyz").text == f"ready: simulated {TARGET}, no device is here\n"
    assert f"simulates {TARGET}" in simulated.log_text()
    with Client(simulated.url) as client:
        devices = client.devices()
        text = client.devices_text()
    assert [(d.host, d.local_index) for d in devices.devices] == [(f"host-{n // 8}", n % 8) for n in range(512)]
    assert {device.basis for device in devices.devices} == {"declared"}
    assert [notice.code for notice in devices.warnings] == ["simulated"]
    assert "simulates" in text


def test_a_plan_on_it_is_that_of_the_target_and_says_that_it_is_of_a_simulation(simulated: RunningAgent) -> None:
    (plan,) = ask(simulated, "/mesh/plan?mesh=dp:64,tp:8")["plans"]
    assert [notice["code"] for notice in plan["warnings"]].count("simulated") == 1
    assert ask(simulated, f"/mesh/plan/{plan['fingerprint']}")["plans"] == [plan]
    (of_target,) = ask(simulated, f"/mesh/plan?mesh=dp:64,tp:8&target={TARGET}")["plans"]
    assert plan["fingerprint"] == of_target["fingerprint"]


def test_nothing_is_held_so_that_a_scheduler_goes_on(simulated: RunningAgent) -> None:
    reply = httpx.post(f"{simulated.url}/devices/release")
    assert (reply.status_code, reply.json()["released"], reply.json()["holders"]) == (200, True, [])


def test_the_command_line_shows_it_and_a_node_check_does_not_pass(simulated: RunningAgent) -> None:
    command = [Path(sys.executable).with_name("meshwright"), "--url", simulated.url]
    check = subprocess.run([*command, "health"], capture_output=True, text=True, timeout=60, check=False)
    assert check.returncode == 1
    assert "simulated" in check.stdout
    plan = subprocess.run([*command, "plan", "dp:64,tp:8"], capture_output=True, text=True, timeout=60, check=False)
    assert plan.returncode == 0, plan.stderr
    assert f"warning: this agent simulates {TARGET}" in plan.stderr


def test_a_simulated_h100_meets_a_requirement_and_its_host_stays_unknown(simulated: RunningAgent) -> None:
    def check(wanted: str) -> tuple[int, str, str, str]:
        command = [Path(sys.executable).with_name("meshwright"), "--url", simulated.url, "--format=json", "health"]
        done = subprocess.run([*command, "--expect", wanted], capture_output=True, text=True, timeout=60, check=False)
        reply = json.loads(done.stdout)
        (found,) = reply["requirements"]
        return done.returncode, reply["verdict"], found["state"], found["found"]

    there = "512 (NVIDIA H100 80GB HBM3), declared"
    assert check("h100:512") == (1, "unknown", "healthy", there)
    assert check("h100:513") == (1, "unhealthy", "unhealthy", there)


def test_a_preflight_blames_nobody_for_a_simulated_host(simulated: RunningAgent) -> None:
    with Fleet([simulated.url]) as fleet:
        report = check_hosts(fleet)
    assert report.verdict == "unknown"
    assert [each.text for each in report.hosts[0].findings] == ["its agent simulates a host"]
