"""The planner child of a real agent: it is not felt, its refusals are the agent's own, and it may die at any time."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright import Client
from meshwright.testing import FakeAgent
from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.hosts import build_devices
from tests.process.living import find_children, is_alive, list_mapped_files, stopped
from tests.process.polling import polling

LARGE = "v5p:16x20x28"
MESHES = ("dp:56,fsdp:20,tp:8", "dp:28,fsdp:40,tp:8", "pp:4,dp:28,fsdp:10,tp:8")
POLL_LIMIT_S = 0.5
"""A poll of /healthz takes 1 ms here; one that waits for a plan of 8,960 devices takes as long as the plan."""
HEAVY_FILE = re.compile(r"_multiarray|jaxlib|libtpu")


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    """An agent of our own: its planner is killed."""
    with start_agent(cpu_devices=4) as running:
        yield running


def ask(agent: RunningAgent, **body: Any) -> httpx.Response:
    return httpx.post(f"{agent.url}/mesh/plan", json=body, timeout=120)


def find_planner(agent: RunningAgent) -> int:
    """Returns the process id of the planner, which must run."""
    (pid,) = find_children(agent, "planner")
    return pid


# ---- it is not felt -------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_plans_on_9000_chips_are_not_felt_by_those_who_ask_whether_the_agent_lives() -> None:
    with start_agent(cpu_devices=4) as host, polling(host, every_s=0.005) as duration_s:
        replies = [ask(host, mesh=mesh, target=LARGE, include_devices=False) for mesh in (*MESHES, *MESHES)]
        mapped = list_mapped_files(host.pid)
    assert [reply.status_code for reply in replies] == [200] * len(replies)
    assert len(duration_s) > 20
    assert max(duration_s) < POLL_LIMIT_S
    assert not {path for path in mapped if HEAVY_FILE.search(path)}


# ---- what it answers ------------------------------------------------------------------------------------------------


def test_its_answer_is_that_of_planning_in_this_process(host: RunningAgent) -> None:
    body = {"mesh": "dp:2,tp:-1", "target": "2*v5e:4x4", "dcn": "dp:2", "importance": {"dp": 2, "tp": 1}}
    with httpx.Client(transport=FakeAgent().transport(), base_url="http://fake-agent") as here:
        assert ask(host, **body).text == here.post("/mesh/plan", json=body).text


@pytest.mark.parametrize("body", [
    {"mesh": "dp:9", "target": "v5e:2x4"},
    {"mesh": "dp:8", "target": "v5q:2x4"},
    {"mesh": "dp:8", "target": "v5e:2x4", "dcn": "zz:2"},
    {"mesh": "dp:8", "topology": []},
])  # fmt: skip
def test_its_refusals_are_those_of_planning_in_this_process(host: RunningAgent, body: dict[str, Any]) -> None:
    with httpx.Client(transport=FakeAgent().transport(), base_url="http://fake-agent") as here:
        refused, reply = here.post("/mesh/plan", json=body), ask(host, **body)
    assert refused.headers["content-type"] == reply.headers["content-type"] == "application/problem+json"
    assert reply.status_code == refused.status_code
    assert {**reply.json(), "request_id": ""} == {**refused.json(), "request_id": ""}


def test_more_devices_than_an_agent_lists_are_refused_with_what_works(agent: RunningAgent) -> None:
    asked = {"mesh": "dp:8960", "target": LARGE}
    refused, bare = ask(agent, **asked), ask(agent, **asked, include_devices=False)
    assert (refused.status_code, [each["field"] for each in refused.json()["errors"]]) == (422, ["include_devices"])
    assert "8,960 devices" in refused.json()["detail"]
    assert "--offline" in refused.json()["hint"]
    assert (bare.status_code, bare.json()["plans"][0]["devices"]) == (200, [])


def test_a_plan_for_a_target_is_kept_for_the_ranks_of_a_job(host: RunningAgent) -> None:
    with Client(host.url) as client:
        plan = client.plan("dp:56,tp:8", target="v5p:4x4x28")
        assert client.get_plan(plan.fingerprint) == plan
        bare = client.plan("dp:2,tp:-1", target="v5e:4x4", include_devices=False)
        assert bare.devices == ()
        assert len(client.get_plan(bare.fingerprint).devices) == 16


# ---- large bodies ---------------------------------------------------------------------------------------------------


def build_hosts(count: int) -> list[dict[str, Any]]:
    """Returns what the agents of so many hosts of 8 GPUs answer to GET /devices."""
    hosts = []
    for number in range(count):
        name = f"gpu-{number}"
        devices = build_devices("h100:8").model_dump(mode="json")
        devices["host"] |= {"name": name, "boot_id": name}
        for device in devices["devices"]:
            device |= {"host": name, "uuid": f"GPU-{number}-{device['local_index']}"}
        hosts.append(devices)
    return hosts


def test_a_topology_of_many_hosts_is_planned_and_not_felt(host: RunningAgent) -> None:
    body = {"mesh": "dp:20,tp:8", "topology": build_hosts(20)}
    assert len(json.dumps(body)) > 1 << 17
    with polling(host, every_s=0.005) as duration_s:
        reply = ask(host, **body)
    assert reply.status_code == 200, reply.text[:2000]
    assert {device["host"] for device in reply.json()["plans"][0]["devices"]} == {f"gpu-{n}" for n in range(20)}
    assert max(duration_s) < POLL_LIMIT_S


def test_a_large_body_is_read_as_strictly_as_a_small_one(host: RunningAgent) -> None:
    filler = " " * (1 << 17)
    headers = {"Content-Type": "application/json"}
    for text, field in (('{"mesh": "x:4", "color": 1}', "color"), ('{"mesh": 8}', "mesh"), ("[" * 100_000, "body")):
        reply = httpx.post(f"{host.url}/mesh/plan", content=text + filler, headers=headers, timeout=60)
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, field)
    reply = httpx.post(f"{host.url}/mesh/plan", content='{"mesh": "x:4"}' + filler, headers=headers, timeout=60)
    assert reply.json()["plans"][0]["mesh_shape"] == {"x": 4}


# ---- when it dies ---------------------------------------------------------------------------------------------------


def send_plan(agent: RunningAgent) -> http.client.HTTPConnection:
    """Returns the connection of a request for a plan that the agent has handed to its planner."""
    url = httpx.URL(agent.url)
    connection = http.client.HTTPConnection(url.host, url.port, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/mesh/plan", '{"mesh": "dp:8", "target": "v5e:2x4"}', headers)
    for _ in range(10):  # each is a turn of the agent's loop after the one that took the request
        assert httpx.get(f"{agent.url}/healthz").status_code == 200
    return connection


def test_a_planner_that_is_killed_at_work_is_told_and_the_next_request_is_answered(host: RunningAgent) -> None:
    assert ask(host, mesh="dp:8", target="v5e:2x4").status_code == 200
    planner = find_planner(host)
    with stopped(planner), contextlib.closing(send_plan(host)) as asking:
        os.kill(planner, signal.SIGKILL)
        reply = asking.getresponse()
        said = json.loads(reply.read())
    assert (reply.status, said["code"]) == (503, "worker_failed")
    assert "plan was asked of the planner worker" in said["detail"]
    assert "ask again" in said["hint"]
    assert ask(host, mesh="dp:8", target="v5e:2x4").status_code == 200
    assert not is_alive(planner)


@pytest.mark.exhaustive
def test_a_plan_that_takes_too_long_is_ended_and_the_next_request_is_answered() -> None:
    with start_agent(cpu_devices=2, module="tests.fakes.altered", MW_PLAN_TIMEOUT_S="2") as agent:
        assert ask(agent, mesh="dp:8", target="v5e:2x4").status_code == 200
        planner = find_planner(agent)
        with stopped(planner):
            reply = ask(agent, mesh="dp:8", target="v5e:2x4")
        assert (reply.status_code, reply.json()["code"]) == (503, "worker_failed")
        assert ask(agent, mesh="dp:8", target="v5e:2x4").status_code == 200
        assert not is_alive(planner)


@pytest.mark.exhaustive
def test_an_agent_that_is_stopped_while_it_plans_leaves_and_takes_the_planner_with_it() -> None:
    with start_agent(cpu_devices=2) as agent:
        assert ask(agent, mesh="dp:8", target="v5e:2x4").status_code == 200
        planner = find_planner(agent)
        with stopped(planner), contextlib.closing(send_plan(agent)):
            assert agent.stop() == 0
        wait_for(lambda: not is_alive(planner), limit_s=5)
        assert "Traceback" not in agent.log_text()


# ---- without an agent -----------------------------------------------------------------------------------------------


def run(*command: str) -> str:
    """Returns what a command of this installation prints; it must succeed."""
    name, *arguments = command
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("MESHWRIGHT_", "JAX_"))}
    return subprocess.check_output([Path(sys.executable).with_name(name), *arguments], env=inherited, text=True)


def test_without_an_agent_the_same_bytes_are_printed(host: RunningAgent, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text('{"importance": {"dp": 1, "tp": 8}}')
    answered = ask(host, mesh="dp:56,tp:8", target="v5p:4x4x28", importance={"dp": 1, "tp": 8}).text + "\n"
    options = ("--target", "v5p:4x4x28", "--request", str(tmp_path / "request.json"), "--format=json")
    assert run("meshwright", "plan", "dp:56,tp:8", "--offline", *options) == answered
    assert run("meshwright", "--url", host.url, "plan", "dp:56,tp:8", *options) == answered


def test_a_kept_topology_is_planned_on_as_the_agent_plans_on_it(host: RunningAgent, tmp_path: Path) -> None:
    devices = httpx.get(f"{host.url}/devices").text
    (tmp_path / "request.json").write_text(f'{{"topology": [{devices}]}}')
    options = ("--offline", "--request", str(tmp_path / "request.json"), "--format=json")
    planned = ask(host, mesh="dp:2,tp:-1", topology=[json.loads(devices)]).text
    assert run("meshwright", "plan", "dp:2,tp:-1", *options) == planned + "\n"
