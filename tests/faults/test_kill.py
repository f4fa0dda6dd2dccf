"""SIGKILL at random moments of a bench: after each restart no run is under way, and no child has survived."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.living import FINAL, ask, await_end, do_bench, is_alive, list_children, read_run, submit

pytestmark = pytest.mark.exhaustive

MOMENTS = int(os.environ.get("FAULT_KILLS", "3"))
SPREAD = 1.3
"""Of the time of a bench: from its submission to beyond its end."""
BENCH = {"cases": ["host_to_device", "all_reduce"], "sizes_bytes": [65536, 1 << 20], "samples": 20, "max_s": 30}


def kill_in_a_bench(agent: RunningAgent, after_s: float) -> str:
    """Returns the run during which the agent was killed; its children must go with it."""
    run_id = submit(agent, BENCH)
    time.sleep(after_s)
    children = list_children(agent.pid)
    agent.kill()
    wait_for(lambda: not any(map(is_alive, children)), limit_s=30)
    return run_id


@pytest.mark.timeout(1800)
def test_a_kill_at_any_moment_of_a_bench_leaves_no_run_under_way_and_no_child(tmp_path: Path) -> None:
    moments = random.Random(None if "FAULT_KILLS" in os.environ else 20261122)
    killed: list[str] = []
    with start_agent(cpu_devices=2, state_dir=tmp_path) as agent:
        began_s = time.monotonic()
        assert await_end(agent, submit(agent, BENCH))["state"] == "succeeded"
        spread_s = SPREAD * (time.monotonic() - began_s)
    for number in range(MOMENTS):
        with start_agent(cpu_devices=2, state_dir=tmp_path) as agent:
            for state in ("queued", "running"):
                assert ask(agent, f"/runs?state={state}")["runs"] == []
            killed.append(kill_in_a_bench(agent, moments.uniform(number, number + 1) / MOMENTS * spread_s))
    with start_agent(cpu_devices=2, state_dir=tmp_path) as agent:
        runs = [read_run(agent, run_id) for run_id in killed]
        assert {run["state"] for run in runs} <= FINAL
        cancelled = [run for run in runs if run["state"] == "cancelled"]
        assert cancelled
        assert all("the agent stopped while this run was under way" in run["error"]["detail"] for run in cancelled)
        assert len(ask(agent, "/runs?limit=1000")["runs"]) == 1 + MOMENTS
        assert not list(tmp_path.glob("*.set-aside-*"))
        assert do_bench(agent)
