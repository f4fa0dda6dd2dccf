"""A fleet of three real agents on loopback, 4 virtual devices each; and a job on the mesh that it planned."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright import Client, Fleet, FleetIncompleteError, FleetState
from meshwright.errors import DeviceLeasedError
from meshwright.wire.mesh import Plan
from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.jobs import run_program
from tests.process.living import ask

PROGRAM = Path(__file__).with_name("fleet_job.py")
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def agents() -> Iterator[list[RunningAgent]]:
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(start_agent(cpu_devices=4, ready=False)) for _ in range(3)]
        for agent in started:
            wait_for(lambda agent=agent: httpx.get(f"{agent.url}/readyz").status_code == 200, agent)  # type: ignore[misc]
        yield started


@pytest.fixture(scope="module")
def urls(agents: list[RunningAgent]) -> list[str]:
    for agent in agents:
        wait_for(lambda agent=agent: ask(agent, "/health")["state"] == "healthy", agent)  # type: ignore[misc]
    return [agent.url for agent in agents]


def look(urls: list[str], **options: Any) -> FleetState:
    with Fleet(urls) as fleet:
        return fleet.devices(timeout_s=LIMIT_S, **options)


def make_plan(urls: list[str], mesh: str, **options: Any) -> Plan:
    with Fleet(urls) as fleet:
        return fleet.plan(mesh, timeout_s=LIMIT_S, **options)


def test_three_agents_are_one_topology_of_twelve_devices(urls: list[str]) -> None:
    state = look(urls, require_all=True)
    assert [host.url for host in state.hosts] == urls
    assert {host.state for host in state.hosts} == {"ok"}
    assert {host.worst for host in state.hosts} == {"healthy"}
    topology = state.topology
    assert [(device.granule, device.position) for device in topology.devices] == [
        (g, p) for g in range(3) for p in range(4)
    ]
    name = state.hosts[0].name
    assert topology.hosts == tuple(sorted(f"{name}@{url.removeprefix('http://')}" for url in urls))
    assert set(state.health.values()) == {"healthy"}
    assert {notice.code for notice in state.notices} == {"hosts_renamed", "hosts_share_machine"}


def test_a_fleet_plans_over_all_devices(urls: list[str]) -> None:
    plan = make_plan(urls, "dp:3,tp:4")
    assert sorted((ref.granule, ref.position) for ref in plan.devices) == [(g, p) for g in range(3) for p in range(4)]
    assert [len({ref.host for ref in plan.devices[row * 4 :][:4]}) for row in range(3)] == [1, 1, 1]


def test_a_job_plans_on_the_devices_that_it_has_leased_by_one_id_on_each_host(urls: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        for url in urls:
            client = stack.enter_context(Client(url))
            stack.callback(client.end_lease, client.lease("all", purpose="slurm job 7", lease_id="slurm-7"))
        with pytest.raises(DeviceLeasedError):
            make_plan(urls, "dp:12")
        assert make_plan(urls, "dp:12", lease="slurm-7").mesh_shape == {"dp": 12}
        command = [Path(sys.executable).with_name("meshwright"), "plan", "dp:12", "--hosts", ",".join(urls)]
        asked = subprocess.run(
            command, env={**os.environ, "MESHWRIGHT_LEASE": "slurm-7"}, capture_output=True, check=False
        )
        assert asked.returncode == 0, asked.stderr


def test_the_same_agent_by_two_addresses_is_refused(agents: list[RunningAgent]) -> None:
    twice = [agents[0].url, f"unix://{agents[0].uds}"]
    with pytest.raises(ValueError, match="a host can be in a topology once"):
        make_plan(twice, "dp:8")


def test_each_process_of_a_job_builds_the_planned_mesh_and_an_all_reduce_gives_the_right_sum(
    urls: list[str], tmp_path: Path
) -> None:
    first = make_plan(urls, "dp:3,tp:4", axis_types="explicit")
    names = [ref.host + f"/{ref.local_index}" for ref in first.devices]
    shuffled = make_plan(urls, "x:2,y:6", devices=[names[i * 5 % 12] for i in range(12)], device_order="given")
    part = make_plan(urls, "dp:6", devices=[name for name in names if name.endswith(("/0", "/3"))])
    small = make_plan(urls[:2], "dp:8")
    plans = [first, shuffled, part, small]
    steps = [{"plan": plan.model_dump_json()} for plan in plans]
    jobs = run_program(PROGRAM, tmp_path, steps, processes=3, devices_each=4)
    for number, plan in enumerate(plans[:3]):
        answers = [job["answers"][number] for job in jobs]
        assert {answer["fingerprint"] for answer in answers} == {plan.fingerprint}
        planned = [ref.granule for ref in plan.devices]
        assert [process for process, _ in answers[0]["order"]] == planned, "a granule is a process, in order"
        held = [tuple(pair) for answer in answers for pair in answer["all"]]
        assert sorted(held) == [(place, 2.0 ** len(planned) - 1) for place in range(len(planned))]
        sizes = list(plan.mesh_shape.values())
        rows, columns = sizes if len(sizes) == 2 else (1, sizes[0])
        last = plan.axes[-1].name
        across = dict(tuple(pair) for answer in answers for pair in answer["by_axis"][last])
        for row in range(rows):
            members = range(row * columns, (row + 1) * columns)
            assert {across[place] for place in members} == {sum(2.0**place for place in members)}
    assert all("is for 2 host(s); this job runs on 1" in job["answers"][3]["error"] for job in jobs)


def test_an_agent_that_was_killed_is_named_and_the_others_are_planned_on(
    agents: list[RunningAgent], urls: list[str]
) -> None:
    agents[1].kill()
    state = look(urls)
    (dead,) = state.failed
    assert (dead.url, dead.state) == (urls[1], "unreachable")
    assert f"no answer from {urls[1]}" in dead.detail
    plan = make_plan(urls, "dp:2,tp:4")
    (missing,) = [notice for notice in plan.warnings if notice.code == "hosts_missing"]
    assert urls[1] in missing.message
    with pytest.raises(FleetIncompleteError, match="1 of 3 hosts") as caught:
        make_plan(urls, "dp:2,tp:4", require_all=True)
    assert list(caught.value.hosts) == [urls[1]]
