"""What an agent does when its device worker dies, hangs, cannot start, or is sent away."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.living import (
    QUICK,
    RELEASE_LIMIT_S,
    TRIES,
    ask,
    await_end,
    await_state,
    do_bench,
    is_alive,
    kill_until_it_stays_down,
    plant_jax,
    post_bench,
    read_component,
    read_run,
    read_worker,
    release,
    start_long_bench,
    stopped,
    submit,
    worker_pid,
)

WITHOUT_WORKER = (
    "/healthz", "/readyz", "/health", "/devices", "/mesh/plan?mesh=dp:2,tp:2", "/batch-size", "/runs",
    "/environment", "/metrics",
)  # fmt: skip


@pytest.fixture(scope="module")
def robust() -> Iterator[RunningAgent]:
    """An agent whose worker may be killed often, and is not started again by a look at the host."""
    with start_agent(cpu_devices=4, MESHWRIGHT_PROBE_INTERVAL_S="3600") as agent:
        yield agent


def answers(agent: RunningAgent) -> dict[str, int]:
    with httpx.Client(base_url=agent.url) as client:
        return {route: client.get(route).status_code for route in WITHOUT_WORKER}


# ---- it dies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_worker_that_dies_costs_its_run_and_nothing_else(robust: RunningAgent, number: signal.Signals) -> None:
    do_bench(robust)
    run_id, waiting = start_long_bench(robust), submit(robust, QUICK)
    worker = read_worker(robust)
    os.kill(worker["pid"], number)
    run = await_end(robust, run_id)
    assert (run["state"], run["error"]["code"]) == ("failed", "worker_failed")
    assert f"pid {worker['pid']}" in run["error"]["detail"]
    assert f"was killed by {number.name}" in run["error"]["detail"]
    assert run["error"]["hint"]
    if number != signal.SIGKILL:  # the others leave a word in its log
        assert any("Fatal Python error" in line for line in run["error"]["log"])
    assert set(answers(robust).values()) == {200}
    after = await_end(robust, waiting)
    assert after["state"] == "succeeded", after["error"]
    assert read_worker(robust)["generation"] == worker["generation"] + 1
    assert read_component(robust, "worker")["state"] == "healthy"
    assert after["error"] is None


def test_health_says_that_the_worker_died_and_that_it_comes_back(robust: RunningAgent) -> None:
    do_bench(robust)
    os.kill(worker_pid(robust), signal.SIGKILL)
    seen = await_state(robust, "worker", "degraded", limit_s=10)
    words = "was idle; it closed its socket and was killed by SIGKILL"
    assert words in seen["reason"]
    assert words in robust.log_text()
    assert seen["action"]
    wait_for(lambda: read_worker(robust)["state"] == "stopped", robust, limit_s=30)  # the pause after a crash is over
    assert read_component(robust, "worker")["state"] == ask(robust, "/health")["state"] == "degraded"
    release(robust)
    assert read_component(robust, "worker")["state"] == "degraded"
    do_bench(robust)
    await_state(robust, "worker", "healthy", limit_s=10)


@pytest.mark.exhaustive
def test_a_worker_that_dies_too_often_stays_down_and_the_agent_says_so() -> None:
    with start_agent(cpu_devices=2, MESHWRIGHT_PROBE_INTERVAL_S="0.5") as agent:
        kill_until_it_stays_down(agent)
        ready = httpx.get(f"{agent.url}/readyz")
        assert ready.status_code == 503
        assert ready.text.startswith("worker failed: ")
        assert ready.text.count("\n") == 1
        assert await_state(agent, "worker", "unhealthy")["action"]
        refused = await_end(agent, submit(agent, QUICK))
        assert (refused["state"], refused["error"]["code"]) == ("failed", "worker_failed")
        assert "stays down" in refused["error"]["detail"]
        assert httpx.get(f"{agent.url}/mesh/plan?mesh=dp:2").status_code == 200  # what was seen is still known


# ---- it cannot start ------------------------------------------------------------------------------------------------

BROKEN = {
    "raises": ('print("words before the end")\nraise ImportError("libbroken.so.1: no such file")', "libbroken.so.1"),
    "hangs": ('import time\nprint("words before the end", flush=True)\ntime.sleep(3600)', "not ready within 5 s"),
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.exhaustive if how == "hangs" else ()) for how in BROKEN]
)
def test_an_agent_whose_jax_is_broken_says_so_and_answers_what_needs_no_jax(how: str, tmp_path: Path) -> None:
    text, word = BROKEN[how]
    settings = {
        "PYTHONPATH": plant_jax(tmp_path, text),
        "MESHWRIGHT_PROBE_INTERVAL_S": "0.5",
        "MESHWRIGHT_START_TIMEOUT_S": "5" if how == "hangs" else "60",
    }
    with start_agent(cpu_devices=4, ready=False, **settings) as agent:
        await_state(agent, "worker", "unhealthy")
        assert word in read_component(agent, "worker")["reason"]
        assert httpx.get(f"{agent.url}/healthz").status_code == 200
        ready = httpx.get(f"{agent.url}/readyz")
        assert ready.status_code == 503
        assert ready.text.count("\n") == 1
        assert len(ready.text) <= 201
        for sent in (httpx.get(f"{agent.url}/mesh/plan?mesh=dp:4"), post_bench(agent, QUICK)):
            problem: dict[str, Any] = sent.json()
            assert (sent.status_code, problem["code"]) == (503, "worker_failed")
            assert word in problem["detail"]
            assert any("words before the end" in line for line in problem["log"])
            assert "meshwright-agent doctor" in problem["hint"]
        assert ask(agent, "/runs")["runs"] == []
        assert ask(agent, "/batch-size?hardware=h100")["table"]
        assert ask(agent, "/environment")["variables"]
        assert httpx.get(f"{agent.url}/metrics").status_code == 200


# ---- it is sent away ------------------------------------------------------------------------------------------------


def test_a_release_ends_the_worker_and_the_next_bench_starts_another(robust: RunningAgent) -> None:
    do_bench(robust)
    before = read_worker(robust)
    answer = release(robust)
    assert (answer["released"], answer["cancelled_runs"]) == (True, [])
    assert ask(robust, "/devices")["worker"]["state"] == "stopped"
    assert answer["holders"] == []
    assert not is_alive(before["pid"])
    assert set(answers(robust).values()) == {200}
    seen = ask(robust, "/devices")
    assert (seen["software"]["basis"], seen["devices"][0]["jax_id"]) == ("cached", 0)
    assert read_worker(robust)["state"] == "stopped"
    do_bench(robust)
    assert read_worker(robust)["generation"] == before["generation"] + 1


def test_a_release_with_nothing_to_release_says_so_at_once(robust: RunningAgent) -> None:
    release(robust)
    again = release(robust)
    assert (again["released"], again["worker_killed"], again["cancelled_runs"]) == (True, False, [])


@pytest.mark.parametrize("listens", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_release_ends_a_worker_with_the_bench_that_runs_and_those_that_wait_within_the_bound(
    robust: RunningAgent, listens: bool
) -> None:
    duration_s: list[float] = []
    while sum(each <= RELEASE_LIMIT_S for each in duration_s) <= TRIES / 2:
        assert len(duration_s) < TRIES, duration_s
        running, waiting = start_long_bench(robust), submit(robust, QUICK)
        pid = worker_pid(robust)
        with contextlib.nullcontext() if listens else stopped(pid):
            began_s = time.monotonic()
            answer = release(robust)
            duration_s.append(time.monotonic() - began_s)
            assert not is_alive(pid)
        assert answer["released"]
        assert answer["worker_killed"] or listens
        assert set(answer["cancelled_runs"]) == {running, waiting}
        for run_id in (running, waiting):
            run = read_run(robust, run_id)
            assert (run["state"], run["error"]["code"]) == ("cancelled", "run_cancelled")
            assert "the devices were released" in run["error"]["detail"]
    assert do_bench(robust)
