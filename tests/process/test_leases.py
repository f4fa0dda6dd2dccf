"""Leases on a living agent: benches give way within the bound, plans leave devices out, a restart forgets nothing."""

from __future__ import annotations

import re
import statistics
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.living import (
    LONG,
    QUICK,
    RELEASE_LIMIT_S,
    TRIES,
    ask,
    await_end,
    post_bench,
    read_run,
    start_long_bench,
)

pytestmark = pytest.mark.usefixtures("no_leases")


def put_lease(agent: RunningAgent, devices: Any = "all", *, lease_id: str = "", **fields: Any) -> httpx.Response:
    body = {"devices": devices, "purpose": "test", **fields}
    return httpx.put(f"{agent.url}/leases/{lease_id or uuid.uuid4().hex}", json=body, timeout=60)


def lease(agent: RunningAgent, devices: Any = "all", **fields: Any) -> dict[str, Any]:
    reply = put_lease(agent, devices, **fields)
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    assert reply.headers["location"] == f"/leases/{made['id']}"
    return made


def plan(agent: RunningAgent, **fields: Any) -> httpx.Response:
    return httpx.post(f"{agent.url}/mesh/plan", json=fields, timeout=60)


def indices(reply: httpx.Response) -> list[int]:
    assert reply.status_code == 200, reply.text
    return sorted(device["local_index"] for device in reply.json()["plans"][0]["devices"])


@pytest.mark.parametrize(("devices", "fields", "status", "words"), [
    ([0], {}, 409, "it holds device 0, 1, and device 0 is asked for"), ("all", {}, 409, "device 0, 1, 2"),
    ({"count": 3}, {}, 409, "3 device(s)"), ({"exclude": [1]}, {}, 409, "without 1"), ({"count": 2}, {}, 200, ""),
    ([0, 1], {"preemptible": True}, 409, "preemptible False"), ([99], {}, 422, "names 99"),
    ({"exclude": [99]}, {}, 422, "names 99"),
])  # fmt: skip
def test_a_renewal_is_of_the_same_devices(
    agent: RunningAgent, devices: Any, fields: dict[str, Any], status: int, words: str
) -> None:
    made = lease(agent, [0, 1])
    renewed = put_lease(agent, devices, lease_id=made["id"], **fields)
    assert (renewed.status_code, words in renewed.text) == (status, True), renewed.text


def test_a_lease_of_no_device_is_refused(agent: RunningAgent) -> None:
    refused = put_lease(agent, {"exclude": list(range(8))})
    assert (refused.status_code, "8 are excluded" in refused.text) == (422, True)


def test_a_lease_is_made_read_renewed_and_ended_once(agent: RunningAgent) -> None:
    made = lease(agent, [0, 1], purpose="slurm job 7", ttl_s=100)
    assert ask(agent, "/leases")["leases"][0]["purpose"] == "slurm job 7"
    assert 0 < ask(agent, f"/leases/{made['id']}")["expires_in_s"] <= 100
    renewed = put_lease(agent, [0, 1], lease_id=made["id"], ttl_s=500)
    assert renewed.status_code == 200
    assert 400 < renewed.json()["expires_in_s"] <= 500
    path = f"{agent.url}/leases/{made['id']}"
    assert httpx.delete(path, timeout=30).json()["id"] == made["id"]
    again = httpx.delete(path, timeout=30)
    assert (again.status_code, again.json()["code"]) == (404, "not_found")
    assert "ended by request" in again.json()["detail"]
    assert ask(agent, "/leases")["leases"] == []


def test_an_id_that_is_not_allowed_is_refused_with_the_rule(agent: RunningAgent) -> None:
    for lease_id in (".a", "a" * 65, "a b", "%C3%A4"):
        reply = put_lease(agent, [0], lease_id=lease_id)
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "lease_id")
        assert "it should be 1 to 64 letters" in reply.json()["detail"]


def test_a_running_bench_gives_way_and_a_preemptible_lease_is_refused(agent: RunningAgent) -> None:
    run_id = start_long_bench(agent)
    waiting = post_bench(agent, LONG).json()["id"]
    refused = put_lease(agent, [0], preemptible=True)
    assert (refused.status_code, refused.json()["code"]) == (409, "device_busy")
    assert read_run(agent, run_id)["state"] == "running"
    made = lease(agent, [0], purpose="slurm job 7")
    assert set(made["cancelled_runs"]) == {run_id, waiting}
    for each in (run_id, waiting):
        run = await_end(agent, each)
        assert run["state"] == "cancelled"
        assert f"preempted by lease {made['id']} (slurm job 7)" in run["error"]["detail"]


@pytest.mark.exhaustive
def test_running_benches_give_way_within_the_bound(agent: RunningAgent) -> None:
    duration_s = []
    for _ in range(TRIES):
        start_long_bench(agent)
        began_s = time.monotonic()
        made = lease(agent, [0])
        duration_s.append(time.monotonic() - began_s)
        httpx.delete(f"{agent.url}/leases/{made['id']}", timeout=30)
    assert statistics.median(duration_s) <= RELEASE_LIMIT_S


def test_a_bench_waits_for_the_end_of_a_lease_unless_it_is_its_own_or_elsewhere(agent: RunningAgent) -> None:
    made = lease(agent, [0, 1], ttl_s=100)
    refused = post_bench(agent, QUICK)
    assert (refused.status_code, refused.json()["code"]) == (409, "device_leased")
    assert made["id"] in refused.json()["detail"]
    assert post_bench(agent, {**QUICK, "devices": [0], "lease": "lease-nope"}).json()["code"] == "not_found"
    for fields in ({"devices": [2, 3]}, {"devices": [0, 1], "lease": made["id"]}):
        run = await_end(agent, post_bench(agent, QUICK | fields).json()["id"])
        assert run["state"] == "succeeded", run["error"]
    lease(agent, [4])
    refused = post_bench(agent, {**QUICK, "lease": made["id"]})
    assert refused.json()["code"] == "device_leased"
    assert made["id"] not in refused.json()["detail"]


def test_plans_leave_leased_devices_out_unless_named_or_the_jobs_own(agent: RunningAgent) -> None:
    made = lease(agent, [0, 1, 2], purpose="slurm job 7")
    shown = ask(agent, "/devices")["devices"]
    assert [device["lease"] is not None for device in shown] == [True] * 3 + [False] * 5

    assert indices(plan(agent, mesh="x:-1")) == [3, 4, 5, 6, 7]
    assert indices(plan(agent, mesh="x:-1", lease=made["id"])) == [0, 1, 2]
    named = plan(agent, mesh="x:2", devices=[0, 3])
    assert indices(named) == [0, 3]
    (warning,) = (each for each in named.json()["plans"][0]["warnings"] if each["code"] == "devices_leased")
    assert made["id"] in warning["message"]
    assert plan(agent, mesh="x:1", lease="lease-nope").json()["code"] == "not_found"
    httpx.delete(f"{agent.url}/leases/{made['id']}")
    assert "has ended: ended by request" in plan(agent, mesh="x:1", lease=made["id"]).json()["detail"]
    assert indices(plan(agent, mesh="x:-1")) == list(range(8))


def test_where_all_devices_are_leased_every_request_for_some_is_409(agent: RunningAgent) -> None:
    made = lease(agent, purpose="slurm job 7")
    model = {"model": "llama3-8b", "training": {"global_batch_size": 8, "seq_len": 128}}
    asked = [{"mesh": "x:-1"}, {"mesh": "x:8"}, {"mesh": "x:2", "devices": {"count": 2}}]
    replies = [plan(agent, **fields) for fields in asked]
    replies += [httpx.post(f"{agent.url}/mesh/search", json=model, timeout=60)]
    replies += [post_bench(agent, QUICK), put_lease(agent, {"count": 1}), put_lease(agent, [4])]
    replies += [httpx.get(f"{agent.url}/mesh/plan?mesh=x:-1", timeout=60)]
    for reply in replies:
        assert (reply.status_code, reply.json()["code"]) == (409, "device_leased"), reply.text
        assert made["id"] in reply.json()["detail"]
        assert f"DELETE /leases/{made['id']}" in reply.json()["hint"]


def test_a_number_of_devices_is_leased_of_those_that_are_free(agent: RunningAgent) -> None:
    def take(count: int, **fields: Any) -> list[int]:
        return [device["local_index"] for device in lease(agent, {"count": count}, **fields)["devices"]]

    lease(agent, [0, 3], purpose="slurm job 7")
    assert take(4, purpose="evaluation", preemptible=True) == [1, 2, 4, 5]
    refused = put_lease(agent, {"count": 3}, preemptible=True)
    assert (refused.status_code, "ask for 2 or fewer" in refused.json()["hint"]) == (409, True)
    assert take(2) == [6, 7]
    assert len(take(3, purpose="slurm job 8")) == 3  # from the preemptible lease
    assert sorted(each["purpose"] for each in ask(agent, "/leases")["leases"]) == ["slurm job 7", "slurm job 8", "test"]
    refused = put_lease(agent, {"count": 2})
    assert "slurm job 8" in refused.json()["detail"]
    refused = put_lease(agent, {"count": 9})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")


def test_the_devices_say_who_has_leased_them_and_for_how_long(agent: RunningAgent) -> None:
    lease(agent, [2], purpose="slurm job 7", ttl_s=3600)
    (leased,) = (device["lease"] for device in ask(agent, "/devices")["devices"] if device["lease"])
    assert 3000 < leased["expires_in_s"] <= 3600
    said = re.compile(r"leased, [56]\d min left: slurm job 7")
    rows = httpx.get(f"{agent.url}/devices?format=text").text.splitlines()
    assert [row[:3] for row in rows if said.search(row)] == ["[2]"]


def test_a_lease_ends_by_itself(agent: RunningAgent) -> None:
    made = lease(agent, [0], ttl_s=0.5)
    wait_for(lambda: ask(agent, "/leases")["leases"] == [], agent, limit_s=30)
    gone = httpx.get(f"{agent.url}/leases/{made['id']}")
    assert (gone.status_code, "not renewed in time" in gone.json()["detail"]) == (404, True)
    assert [device["lease"] for device in ask(agent, "/devices")["devices"]] == [None] * 8


def test_leases_outlive_their_agent(tmp_path: Path) -> None:
    with start_agent(state_dir=tmp_path) as agent:
        made = lease(agent, [0], ttl_s=1000, purpose="slurm job 7")
        brief = lease(agent, [1], ttl_s=1)
        agent.kill()
    time.sleep(1.0)  # the real clock of the machine is what is tested
    with start_agent(state_dir=tmp_path) as agent:
        (kept,) = ask(agent, "/leases")["leases"]
        assert (kept["id"], kept["purpose"]) == (made["id"], "slurm job 7")
        assert 900 < kept["expires_in_s"] < 1000
        assert post_bench(agent, {**QUICK, "devices": [0]}).json()["code"] == "device_leased"
        assert httpx.get(f"{agent.url}/leases/{brief['id']}").status_code == 404


def test_simulated_devices_can_be_leased_by_a_scheduler_under_test() -> None:
    with start_agent(cpu_devices=None, MESHWRIGHT_SIMULATE="cpu:128") as agent:
        made = lease(agent, list(range(64)))
        assert len(made["devices"]) == 64
        # by the planner child: a agent of 128 devices is not planned on the loop
        assert indices(plan(agent, mesh="x:-1")) == list(range(64, 128))
        assert indices(plan(agent, mesh="x:-1", lease=made["id"])) == list(range(64))
        assert "leased by" in plan(agent, mesh="x:128").json()["detail"]
        left_s = ask(agent, "/devices")["devices"][0]["lease"]["expires_in_s"]
        # a simulated agent's answer is kept while nothing changes, but not the time that a lease has left
        wait_for(lambda: ask(agent, "/devices")["devices"][0]["lease"]["expires_in_s"] < left_s, agent, limit_s=30)


def test_a_verdict_lives_as_long_as_the_lease(agent: RunningAgent) -> None:
    made_id = lease(agent, [0])["id"]
    path = f"{agent.url}/leases/{made_id}/verdict"
    missing = httpx.get(path)
    assert (missing.status_code, missing.json()["detail"]) == (404, f"no preflight under lease {made_id} has ended yet")
    wrong = httpx.put(path, json={"state": "bad", "reason": "two\nlines"})
    assert (wrong.status_code, {each["field"] for each in wrong.json()["errors"]}) == (422, {"state", "reason"})
    verdict = {"state": "fault", "reason": "device 3: matmul 101 TFLOP/s, peers' median 610 TFLOP/s"}
    assert httpx.put(path, json=verdict).json() == httpx.get(path).json() == verdict
    put_lease(agent, [0], lease_id=made_id, ttl_s=7200).raise_for_status()  # renewed
    assert httpx.get(path).json() == verdict
    httpx.delete(f"{agent.url}/leases/{made_id}").raise_for_status()
    assert "has ended" in httpx.get(path).json()["detail"]
    put_lease(agent, [0], lease_id=made_id).raise_for_status()  # a requeued job
    assert httpx.get(path).status_code == 404
