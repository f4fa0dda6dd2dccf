"""A worker whose memory grows: at rest it is ended over its limit, and another is there when it is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.faults.causing import WATCHFUL
from tests.process.living import (
    do_bench,
    is_alive,
    list_children,
    read_component,
    read_rss_bytes,
    read_worker,
    worker_pid,
)

LIMIT_BYTES = 700_000_000
LEAK = """
import sys, threading, time
if "meshwright_agent.worker.device" in sys.orig_argv:
    def leak():
        held = []
        while len(held) < 150:
            time.sleep(0.05)
            held.append(b"x" * 10_000_000)
    threading.Thread(target=leak, daemon=True).start()
"""
"""200 MB/s, to 1.5 GB: a leak that is over the limit in seconds, and no danger to the machine of the tests."""


def plant_leak(folder: Path) -> str:
    """Returns a PYTHONPATH under which the device worker loses memory while it lives."""
    (folder / "sitecustomize.py").write_text(LEAK)
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def await_generation(agent: RunningAgent, generation: int) -> None:
    wait_for(lambda: read_worker(agent)["generation"] >= generation, agent, limit_s=120)


def test_a_worker_that_leaks_is_ended_at_rest_again_and_again_and_nothing_else_is_lost(tmp_path: Path) -> None:
    settings = {"PYTHONPATH": plant_leak(tmp_path), "MESHWRIGHT_WORKER_MEMORY_BYTES": str(LIMIT_BYTES)}
    with start_agent(cpu_devices=2, **settings, **WATCHFUL) as agent:
        first = wait_for(lambda: read_worker(agent)["pid"], agent)
        assert do_bench(agent)
        await_generation(agent, 3)
        assert not is_alive(first)
        assert do_bench(agent)
        assert read_worker(agent)["last_error"] is None  # no crash, and no budget spent
        assert read_component(agent, "worker")["state"] == "healthy"
        assert "a resting worker may hold 700000000, so it is ended" in agent.log_text()
        assert "Traceback" not in agent.log_text()


def test_a_worker_that_holds_what_it_may_stays() -> None:
    with start_agent(cpu_devices=2, **WATCHFUL) as agent:
        before = worker_pid(agent)
        for _ in range(3):
            do_bench(agent)
        assert worker_pid(agent) == before
        assert read_rss_bytes(before) < 4 << 30


def test_where_memory_runs_out_the_kernel_ends_a_child_before_the_agent() -> None:
    with start_agent(cpu_devices=1) as agent:
        scores = {pid: int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (agent.pid, worker_pid(agent))}
        assert scores[worker_pid(agent)] > scores[agent.pid]
        assert list_children(agent.pid)


@pytest.mark.parametrize("size_bytes", [1024, -1])
def test_a_limit_below_what_a_worker_needs_is_refused_at_the_start(size_bytes: int, tmp_path: Path) -> None:
    from tests.faults.causing import serve_and_leave

    refused = serve_and_leave(tmp_path, MESHWRIGHT_WORKER_MEMORY_BYTES=str(size_bytes))
    assert refused.returncode == 2
    assert "MESHWRIGHT_WORKER_MEMORY_BYTES" in refused.stderr
