"""Health of a living agent: each component is healthy only while its source answers, `unknown` when it falls silent.

The sources are real: a stopped worker, a probe caught in a file that never answers, a database that another
process has locked, a chip that is gone from the PCI bus.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.tree import plant_host
from tests.process.living import (
    LONG,
    ask,
    await_end,
    await_newer_look,
    await_state,
    end_leases,
    plant_jax,
    read_component,
    read_run,
    read_worker,
    release,
    start_long_bench,
    stopped,
    submit,
    worker_pid,
)
from tests.process.test_leases import put_lease

OFTEN = {"MESHWRIGHT_PROBE_INTERVAL_S": "0.5"}
WATCHFUL = {**OFTEN, "MESHWRIGHT_PROBE_TIMEOUT_S": "2"}
STALE_S = 3 * (0.2 + 2)


def silence(path: Path) -> Callable[[], None]:
    """Makes a file that blocks whoever opens it, as a hung driver's does; returns how to fix it."""
    text = path.read_text()
    path.unlink()
    os.mkfifo(path)

    def fix() -> None:
        path.unlink()
        path.write_text(text)

    return fix


def states(agent: RunningAgent) -> dict[str, str]:
    return {part["name"]: part["state"] for part in ask(agent, "/health")["components"]}


def chips(agent: RunningAgent) -> dict[str, str]:
    """The components of accelerators, by PCI address."""
    return {name: state for name, state in states(agent).items() if name.startswith("device:0000:")}


# ---- agents of their own --------------------------------------------------------------------------------------------


def test_no_component_is_healthy_before_it_was_looked_at(tmp_path: Path) -> None:
    settings = plant_host("cpu-vm", tmp_path)
    fix = silence(tmp_path / "proc/cpuinfo")
    slow = {"PYTHONPATH": plant_jax(tmp_path / "path", "import time; time.sleep(3600)")}
    with start_agent(cpu_devices=2, ready=False, **settings, **slow) as agent:
        assert [states(agent)[name] for name in ("worker", "driver")] == ["initializing", "initializing"]
        assert ask(agent, "/health")["state"] == "initializing"
        ready = httpx.get(f"{agent.url}/readyz")
        assert (ready.status_code, ready.text[:8]) == (503, "starting")
        assert httpx.get(f"{agent.url}/mesh/plan?mesh=dp:2").json()["code"] == "not_ready"
        fix()


@pytest.mark.exhaustive
def test_a_release_does_not_wait_for_a_driver_that_hangs(tmp_path: Path) -> None:
    settings = plant_host("cpu-vm", tmp_path)
    with start_agent(cpu_devices=2, MESHWRIGHT_PROBE_TIMEOUT_S="5", **settings, **OFTEN) as agent:
        run_id = start_long_bench(agent)
        silence(tmp_path / "proc/cpuinfo")
        await_state(agent, "driver", "unknown", limit_s=30)
        answer = release(agent)
        assert answer["released"]
        assert answer["holders"] is None  # not known
        assert answer["cancelled_runs"] == [run_id]
        assert read_worker(agent)["state"] == "stopped"


def test_chips_that_jax_does_not_see_are_not_benched_and_the_worker_is_degraded(tmp_path: Path) -> None:
    settings = plant_host("tpu-v5p-4", tmp_path)
    with start_agent(cpu_devices=None, MESHWRIGHT_PROBE_INTERVAL_S="1", **settings) as agent:
        run_id = submit(agent, {"cases": ["host_to_device"], "sizes_bytes": [65536], "samples": 3})
        run = wait_for(lambda: (r := read_run(agent, run_id))["state"] == "failed" and r, agent, limit_s=60)
        assert run["error"]["code"] == "worker_failed"
        assert "4 tpu devices, but its JAX runs on cpu" in run["error"]["detail"]
        assert "doctor" in await_state(agent, "worker", "degraded")["action"]
        assert all("JAX" not in read_component(agent, name)["reason"] for name in chips(agent))
        assert ask(agent, "/devices")["platform"] == "tpu"


def test_a_store_whose_file_is_gone_is_unhealthy_and_plans_are_still_made(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with start_agent(cpu_devices=2, state_dir=state_dir, **WATCHFUL) as agent:
        await_state(agent, "store", "healthy")
        shutil.rmtree(state_dir)
        seen = await_state(agent, "store", "unhealthy", limit_s=30)
        assert "removed or replaced" in seen["reason"]
        assert str(state_dir) in seen["action"]
        assert (put_lease(agent).status_code, put_lease(agent).json()["code"]) == (503, "store_unavailable")
        assert httpx.get(f"{agent.url}/mesh/plan?mesh=dp:2").status_code == 200


# ---- one agent, after all others: it never rests --------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("host")


@pytest.fixture(scope="module")
def watched(root: Path) -> Iterator[RunningAgent]:
    """An agent on a recorded host, which is well again after each test."""
    with start_agent(cpu_devices=2, **plant_host("cpu-vm", root), **WATCHFUL) as agent:
        yield agent


@pytest.mark.exhaustive
def test_a_worker_that_falls_silent_is_unknown_and_so_are_its_devices(watched: RunningAgent) -> None:
    assert set(wait_for(lambda: states(watched), watched)) >= {"worker", "driver", "store", "device:0", "device:1"}
    for name in ("worker", "device:0", "device:1"):
        await_state(watched, name, "healthy")
    with stopped(worker_pid(watched)):
        for name in ("worker", "device:0", "device:1"):
            seen = await_state(watched, name, "unknown", limit_s=30)
            assert "last seen healthy" in seen["reason"]
            assert seen["age_s"] > STALE_S
        assert states(watched)["store"] == "healthy"
        assert ask(watched, "/health")["state"] == "unknown"
        assert httpx.get(f"{watched.url}/mesh/plan?mesh=dp:2").status_code == 200
    for name in ("worker", "device:0", "device:1"):
        await_state(watched, name, "healthy", limit_s=30)


def test_while_a_bench_runs_all_is_looked_at_and_its_worker_and_what_it_has_measured_are_healthy(
    watched: RunningAgent,
) -> None:
    both = {**LONG, "cases": ["matmul", "all_reduce"], "matmul_size": 64}  # the first is over in a moment
    await_state(watched, "driver", "healthy")  # until then the host's memory is not known, and a bench is small
    run_id = submit(watched, both)
    wait_for(lambda: "matmul" in read_component(watched, "device:0")["reason"], watched, limit_s=30)
    for name in ("worker", "driver", "store"):
        assert await_newer_look(watched, name)["state"] == "healthy"
    assert read_run(watched, run_id)["state"] == "running"
    httpx.delete(f"{watched.url}/runs/{run_id}").raise_for_status()
    await_end(watched, run_id)


@pytest.mark.exhaustive
def test_a_driver_that_hangs_is_unknown_and_healthy_when_it_answers_again(watched: RunningAgent, root: Path) -> None:
    await_state(watched, "driver", "healthy")
    fix = silence(root / "proc/cpuinfo")
    assert await_state(watched, "driver", "unknown", limit_s=30)["reason"]
    for _ in range(3):  # more often than a child may crash
        assert await_newer_look(watched, "driver")["state"] == "unknown"
    assert httpx.get(f"{watched.url}/readyz").status_code == 200
    assert ask(watched, "/devices")["cpu"]  # what was read before, with its age
    fix()
    await_state(watched, "driver", "healthy", limit_s=30)


@pytest.mark.exhaustive
def test_a_store_that_takes_no_write_is_unhealthy_then_healthy_again(watched: RunningAgent) -> None:
    await_state(watched, "store", "healthy")
    other = sqlite3.connect(watched.state_dir / "meshwright.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # the one writer's lock
    assert put_lease(watched).json()["code"] == "store_unavailable"
    assert "locked" in await_state(watched, "store", "unhealthy", limit_s=30)["reason"]
    assert httpx.get(f"{watched.url}/healthz").status_code == 200
    other.execute("ROLLBACK")
    other.close()
    await_state(watched, "store", "healthy", limit_s=30)
    assert put_lease(watched).status_code == 201
    end_leases(watched)
