"""Memory runs out: the kernel ends a child before the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents import start_agent
from tests.process.living import list_children, worker_pid

pytestmark = pytest.mark.exhaustive


def test_where_memory_runs_out_the_kernel_ends_a_child_before_the_agent() -> None:
    with start_agent(cpu_devices=1) as agent:
        scores = {pid: int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (agent.pid, worker_pid(agent))}
        assert scores[worker_pid(agent)] > scores[agent.pid]
        assert list_children(agent.pid)
