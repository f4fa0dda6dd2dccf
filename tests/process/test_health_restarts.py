"""Health over restarts of a living agent: what is as it was keeps its `since` and is no event, however the agent ended.

The host is a recorded machine, or this one; its kernel log is a file that grows. `QUICK` looks often, so that some
looks of each life are past when it is compared.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.well import write_record, xid
from tests.process.living import ask, await_newer_look, await_state, read_component, start_long_bench
from tests.process.test_agent_health import plant_host
from tests.process.test_health_events import CARD, LOST, QUICK, events, host

Ending = Callable[[RunningAgent], object]


def kill(agent: RunningAgent) -> None:
    agent.process.kill()
    agent.process.wait()


ENDINGS = [pytest.param(RunningAgent.stop, id="SIGTERM"), pytest.param(kill, id="SIGKILL")]


def read_since(agent: RunningAgent) -> dict[str, tuple[str, str | None]]:
    """Each component with its state and since when, once all have been looked at twice."""

    def is_settled() -> bool:
        parts = ask(agent, "/health")["components"]
        return all(part["since"] for part in parts)

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
@pytest.mark.parametrize("end", ENDINGS)
def test_an_ill_host_is_ill_since_it_fell_ill_and_a_restart_is_no_event(end: Ending, tmp_path: Path) -> None:
    settings, state = host(tmp_path), tmp_path / "state"
    with start_agent(cpu_devices=2, state_dir=state, **settings) as agent:
        await_state(agent, "kernel_log", "healthy")
        write_record(tmp_path / "kmsg", 10, xid(LOST, 79, "GPU has fallen off the bus."))
        await_state(agent, CARD, "unhealthy")
        before = read_since(agent), await_written(agent)
        assert set(before[0]) > {"worker", "driver", "store", "kernel_log", "device:0", CARD}
        end(agent)
    with start_agent(cpu_devices=2, state_dir=state, **settings) as agent:
        assert read_component(agent, CARD)["since"] == before[0][CARD][1]  # before anybody has looked again
        assert (read_since(agent), await_written(agent)) == before


@pytest.mark.exhaustive
def test_a_kill_in_the_middle_of_a_bench_is_no_event_either(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, state_dir=tmp_path, **QUICK) as agent:
        before = read_since(agent), await_written(agent)
        start_long_bench(agent)
        kill(agent)
    with start_agent(cpu_devices=2, state_dir=tmp_path, **QUICK) as agent:
        assert (read_since(agent), await_written(agent)) == before


@pytest.mark.exhaustive
def test_what_changed_while_no_agent_ran_is_an_event_with_the_state_of_before(tmp_path: Path) -> None:
    settings, state = plant_host("tpu-v5p-4", tmp_path / "host"), tmp_path / "state"
    name, chip = "device:0000:86:00.0", tmp_path / "host/sys/bus/pci/devices/0000:86:00.0"
    with start_agent(cpu_devices=None, state_dir=state, **settings, **QUICK) as agent:
        before, known = read_since(agent), await_written(agent)[-1]["seq"]
        kill(agent)
    chip.unlink()
    with start_agent(cpu_devices=None, state_dir=state, **settings, **QUICK) as agent:
        lost = await_state(agent, name, "unhealthy")
        after = read_since(agent)
        told = {event["component"]: event for event in await_written(agent) if event["seq"] > known}
    assert set(told) == {name, "inventory"}
    assert (told[name]["before"], told[name]["state"], told[name]["at"]) == ("healthy", "unhealthy", lost["since"])
    assert {part for part in before if before[part] != after[part]} == {name, "inventory"}


@pytest.mark.exhaustive
def test_with_a_store_that_begins_anew_health_does_too(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, state_dir=tmp_path, **QUICK) as agent:
        before = read_since(agent)
        assert agent.stop() == 0
    (tmp_path / "meshwright.sqlite3").write_bytes(b"no database" * 1000)
    with start_agent(cpu_devices=2, state_dir=tmp_path, **QUICK) as agent:
        after, told = read_since(agent), await_written(agent)
        assert after["store"][0] == "degraded"
        assert all(after[name][1] != since for name, (_, since) in before.items())
        assert {event["before"] for event in told} == {"initializing"}
        assert {event["component"] for event in told} == set(after)


@pytest.mark.exhaustive
def test_a_document_that_cannot_be_read_holds_no_start_up(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, state_dir=tmp_path, **QUICK) as agent:
        read_since(agent)
        assert agent.stop() == 0
    connection = sqlite3.connect(tmp_path / "meshwright.sqlite3")
    with connection:
        connection.execute("UPDATE documents SET body = ? WHERE kind = 'health'", ('{"states": [1], "faults": 3}',))
    connection.close()
    with start_agent(cpu_devices=2, state_dir=tmp_path, **QUICK) as agent:
        assert "cannot be read and is forgotten" in agent.log_text()
        assert {state for name, (state, _) in read_since(agent).items() if name != "store"} == {"healthy"}


def test_no_answer_of_any_start_is_healthy_before_each_device_was_looked_at(tmp_path: Path) -> None:
    for _ in range(2):
        with start_agent(cpu_devices=4, state_dir=tmp_path, ready=False) as agent:

            def find_first_look(agent: RunningAgent = agent) -> set[str]:
                health = ask(agent, "/health")
                if health["state"] == "initializing":
                    return set()
                return {part["name"] for part in health["components"] if part["observed_at"]}

            looked_at = wait_for(find_first_look, agent)
            assert looked_at >= {"device:0", "device:1", "device:2", "device:3", "worker", "driver", "store"}
            assert agent.stop() == 0
