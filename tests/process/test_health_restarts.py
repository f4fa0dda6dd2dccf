"""Health over restarts of a living agent: what is as it was keeps its `since` and is no event, however the agent ended.

The host is a recorded machine, or this one; its kernel log is a file that grows. `QUICK` looks often, so that some
looks of each life are past when it is compared.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.well import write_record, xid
from tests.process.living import ask, await_newer_look, await_state, read_component
from tests.process.test_health_events import CARD, LOST, events, host


def read_since(agent: RunningAgent) -> dict[str, tuple[str, str | None]]:
    """Each component with its state and since when, once all have been looked at twice."""

    def is_settled() -> bool:
        parts = ask(agent, "/health")["components"]
        return all(part["since"] or part["observed_at"] for part in parts)  # a port without a cable is left alone

    wait_for(is_settled, agent, limit_s=60)
    for name in ("driver", "store"):
        for _ in range(2):
            await_newer_look(agent, name)
    return {part["name"]: (part["state"], part["since"]) for part in ask(agent, "/health")["components"]}


def await_written(agent: RunningAgent) -> list[dict[str, Any]]:
    """All events, once no more of them reach the store."""
    found: list[dict[str, Any]] | None = None
    while found != (found := events(agent, after=0, limit=1000)):
        time.sleep(1)
    return found


@pytest.mark.exhaustive
def test_an_ill_host_is_ill_since_it_fell_ill_and_a_restart_is_no_event(tmp_path: Path) -> None:
    settings, state = host(tmp_path), tmp_path / "state"
    with start_agent(cpu_devices=2, state_dir=state, **settings) as agent:
        await_state(agent, "kernel_log", "healthy")
        write_record(tmp_path / "kmsg", 10, xid(LOST, 79, "GPU has fallen off the bus."))
        await_state(agent, CARD, "unhealthy")
        before = read_since(agent), await_written(agent)
        assert set(before[0]) > {"worker", "driver", "store", "kernel_log", "device:0", CARD}
        agent.kill()
    with start_agent(cpu_devices=2, state_dir=state, **settings) as agent:
        assert read_component(agent, CARD)["since"] == before[0][CARD][1]  # before anybody has looked again
        assert (read_since(agent), await_written(agent)) == before


def test_no_answer_of_any_start_is_healthy_before_each_device_was_looked_at(tmp_path: Path) -> None:
    with start_agent(cpu_devices=4, state_dir=tmp_path, ready=False) as agent:

        def find_first_look() -> set[str]:
            health = ask(agent, "/health")
            if health["state"] == "initializing":
                return set()
            return {part["name"] for part in health["components"] if part["observed_at"]}

        looked_at = wait_for(find_first_look, agent)
        assert looked_at >= {"device:0", "device:1", "device:2", "device:3", "worker", "driver", "store"}
