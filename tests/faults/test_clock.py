"""The wall clock jumps, as when NTP or a person sets it, while the agent looks, waits and measures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent
from tests.process.living import (
    QUICK,
    ask,
    await_end,
    await_newer_look,
    await_state,
    do_bench,
    read_component,
    read_run,
    start_long_bench,
    submit,
    worker_pid,
)

pytestmark = pytest.mark.exhaustive

DAY_S = 86400.0


@dataclass(frozen=True)
class Watched:
    """An agent, and its wall clock."""

    agent: RunningAgent
    offset: Path

    def jump(self, seconds: float) -> None:
        """Sets the wall clock to the machine's and so much."""
        self.offset.with_suffix(".new").write_text(str(seconds))
        self.offset.with_suffix(".new").rename(self.offset)


@contextlib.contextmanager
def start_watched(folder: Path, offset_s: float = 0.0, interval_s: float = 0.5) -> Iterator[Watched]:
    offset = folder / "offset"
    offset.write_text(str(offset_s))
    settings = {"MW_CLOCK_OFFSET": str(offset), "MESHWRIGHT_PROBE_INTERVAL_S": str(interval_s)}
    with start_agent(cpu_devices=2, state_dir=folder / "state", module="tests.fakes.altered", **settings) as agent:
        yield Watched(agent, offset)


@pytest.mark.parametrize("seconds", [DAY_S, -DAY_S], ids=["a day forward", "a day back"])
def test_runs_plans_and_health_go_on_and_no_time_is_negative(seconds: float, tmp_path: Path) -> None:
    with start_watched(tmp_path) as host:
        agent = host.agent
        before = do_bench(agent)
        await_state(agent, "driver", "healthy")
        running, waiting = start_long_bench(agent), submit(agent, QUICK)
        host.jump(seconds)
        for name in ("driver", "store", "worker"):
            await_state(agent, name, "healthy", limit_s=30)
        await_newer_look(agent, "driver") if seconds > 0 else None
        assert httpx.delete(f"{agent.url}/runs/{running}", timeout=30).json()["state"] == "cancelled"
        after = await_end(agent, waiting)
        assert after["state"] == "succeeded"
        records = ask(agent, "/placement/bench")["records"]
        assert all(record["age_s"] >= 0 for record in (*records, *after["result"]["records"]))
        assert [run["id"] for run in ask(agent, "/runs")["runs"]] == [waiting, running, before["id"]]
        assert waiting > running > before["id"]  # ids go on in the order of submission
        assert httpx.get(f"{agent.url}/mesh/plan?mesh=dp:2").status_code == 200
        assert worker_pid(agent)
        assert "Traceback" not in agent.log_text()


@pytest.mark.parametrize("seconds", [DAY_S, -DAY_S], ids=["a day forward", "a day back"])
def test_a_clock_that_jumps_leaves_nothing_healthy_that_was_not_looked_at_since(seconds: float, tmp_path: Path) -> None:
    with start_watched(tmp_path, interval_s=3600) as host:
        await_state(host.agent, "driver", "healthy")
        host.jump(seconds)
        assert read_component(host.agent, "driver")["state"] == "unknown"
        assert httpx.get(f"{host.agent.url}/mesh/plan?mesh=dp:2").status_code == 200


def test_what_is_kept_goes_by_order_and_not_by_date(tmp_path: Path) -> None:
    with start_watched(tmp_path, offset_s=DAY_S) as host:
        first = do_bench(host.agent)["id"]
        assert host.agent.stop() == 0
    with start_watched(tmp_path) as host:  # the clock was a day ahead, and has been set right
        second = do_bench(host.agent)
        assert [run["id"] for run in ask(host.agent, "/runs")["runs"]] == [second["id"], first]
        assert datetime.fromisoformat(second["created_at"]) <= datetime.now(UTC)
        assert read_run(host.agent, first)["state"] == "succeeded"
        newest = ask(host.agent, "/placement/bench")["records"]
        assert all(datetime.fromisoformat(record["observed_at"]) <= datetime.now(UTC) for record in newest)
