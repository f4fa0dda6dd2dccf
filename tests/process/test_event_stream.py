"""The stream of events of a living agent: where it begins, and what a listener with a wild or foreign id is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.living import await_state, parse_events
from tests.process.test_health_events import QUICK, listening


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    with start_agent(cpu_devices=1, **QUICK) as agent:
        await_state(agent, "store", "healthy")
        yield agent


@pytest.mark.parametrize("wild", ["9" * 26, "abc", "-1"])
def test_a_wild_id_is_refused_before_the_stream_begins_and_is_no_fault_of_the_agent(
    agent: RunningAgent, wild: str
) -> None:
    reply = httpx.get(f"{agent.url}/events/stream", headers={"Last-Event-ID": wild}, timeout=30)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert "Traceback" not in agent.log_text()


def test_a_listener_of_a_history_that_is_gone_hears_this_one_from_its_beginning(agent: RunningAgent) -> None:
    with listening(agent, **{"Last-Event-ID": "5000"}) as heard:
        wait_for(lambda: heard, agent)
    assert heard[0]["id"] == "1"
    assert httpx.get(f"{agent.url}/events?after=5000").json()["last_seq"] < 5000  # a poller sees it as well


def test_a_listener_without_an_id_hears_what_comes_alone(agent: RunningAgent) -> None:
    with listening(agent) as heard:
        httpx.post(f"{agent.url}/health/acknowledge", json={"component": "store", "reason": "a test"}, timeout=30)
        wait_for(lambda: heard, agent)
    assert heard[0]["event"] == "acknowledged"


def test_a_path_that_is_no_utf_8_costs_neither_health_nor_history(tmp_path: Path) -> None:
    folder = Path(f"{tmp_path}/state\udcff")
    with start_agent(cpu_devices=1, state_dir=folder, **QUICK) as agent:
        seen = await_state(agent, "store", "healthy")
        assert "state\\udcff" in seen["reason"]
        told = wait_for(lambda: httpx.get(f"{agent.url}/events?component=store").json()["events"], agent)
        assert "state\\udcff" in told[0]["reason"]


def test_a_stream_that_is_cut_and_resumed_tells_each_event_once(agent: RunningAgent) -> None:
    told: list[str] = []
    for number in range(5):
        httpx.post(f"{agent.url}/health/acknowledge", json={"component": "store", "reason": f"{number}"}, timeout=30)
    last = httpx.get(f"{agent.url}/events").json()["last_seq"]

    def hear_one(seen: str) -> str:
        text = ""
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", f"{agent.url}/events/stream", headers={"Last-Event-ID": seen}, timeout=30) as reply,
        ):
            for chunk in reply.iter_text():
                text += chunk
                if found := parse_events(text[: text.rfind("\n\n") + 2]):
                    return str(found[0]["id"])
        return ""

    while int(told[-1] if told else 0) < last:
        told.append(hear_one(told[-1] if told else "0"))
    assert told == [str(number) for number in range(1, last + 1)]
