"""History of health of a living agent: faults outlive it, an operator's word ends them, and all of it can be followed.

Everything is real but the host: a recorded machine whose kernel log is a file that grows. No driver lists a card there,
so that XIDs are of cards by their address.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.tree import plant_host
from tests.fakes.well import write_record, xid
from tests.process.living import await_newer_look, await_state, parse_events, read_component
from tests.process.test_agent_health import chips, silence

QUICK = {"MESHWRIGHT_PROBE_INTERVAL_S": "0.5"}
"""Looks often; and no look that a busy machine makes slow is an event of its own."""

LOST = "0000:1b:00"
CARD = f"device:{LOST}.0"


def host(folder: Path) -> dict[str, str]:
    """A recorded host with NVIDIA cards on its bus, and its kernel log."""
    log = folder / "kmsg"
    write_record(log, 0, "Linux version 6.12")
    return {**QUICK, **plant_host("dgx-h100", folder / "host"), "MESHWRIGHT_KERNEL_LOG": str(log)}


def events(agent: RunningAgent, **query: Any) -> list[dict[str, Any]]:
    reply = httpx.get(f"{agent.url}/events", params=query, timeout=30)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["events"]
    return found


def acknowledge(agent: RunningAgent, component: str, reason: str = "reseated") -> httpx.Response:
    body = {"component": component, "reason": reason}
    return httpx.post(f"{agent.url}/health/acknowledge", json=body, timeout=30)


@contextlib.contextmanager
def listening(agent: RunningAgent, query: str = "", **headers: str) -> Iterator[list[dict[str, Any]]]:
    """Collects what the stream tells, in a thread."""
    heard: list[dict[str, Any]] = []
    begun = threading.Event()

    def listen() -> None:
        text = ""
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", f"{agent.url}/events/stream{query}", headers=headers, timeout=60) as reply,
        ):
            begun.set()
            for chunk in reply.iter_text():
                text += chunk
                heard[:] = parse_events(text[: text.rfind("\n\n") + 2])

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert begun.wait(30)
    yield heard


@pytest.mark.exhaustive
def test_an_xid_outlives_the_agent_until_an_operator_speaks(tmp_path: Path) -> None:
    settings, state = host(tmp_path), tmp_path / "state"
    with start_agent(cpu_devices=2, state_dir=state, **settings) as agent:
        await_state(agent, "kernel_log", "healthy")
        write_record(tmp_path / "kmsg", 10, xid(LOST, 79, "pid=7, name=python3, GPU has fallen off the bus."))
        seen = await_state(agent, CARD, "unhealthy")
        assert "XID 79" in seen["reason"]
        assert "reboot" in seen["action"]
        assert seen["permanence"] == "permanent"
        assert seen["since"]
        wait_for(lambda: events(agent, component=CARD), agent)
        before = events(agent)[-1]["seq"]
    with start_agent(cpu_devices=2, state_dir=state, **settings) as agent:
        assert read_component(agent, CARD)["state"] == "unhealthy"  # before anybody has looked again
        await_state(agent, "kernel_log", "healthy")
        assert read_component(agent, CARD)["state"] == "unhealthy"
        assert [e["code"] for e in events(agent, component=CARD) if e["kind"] == "fault"] == ["xid_79"]  # told once
        answer = acknowledge(agent, CARD)
        assert answer.status_code == 200
        assert "XID" not in answer.json()["reason"]
        wait_for(lambda: events(agent, component=CARD)[-1]["kind"] == "acknowledged", agent)
        assert events(agent, component=CARD)[-1]["reason"].startswith("reseated")
        assert events(agent)[0]["seq"] < before < events(agent)[-1]["seq"]
        write_record(tmp_path / "kmsg", 11, xid(LOST, 48))
        assert "XID 48" in await_state(agent, CARD, "unhealthy")["reason"]
        assert "XID 79" not in read_component(agent, CARD)["reason"]


def test_a_chip_that_is_gone_stays_unhealthy_until_it_is_back_and_the_stream_tells_and_resumes(tmp_path: Path) -> None:
    settings, name = plant_host("tpu-v5p-4", tmp_path), "device:0000:86:00.0"
    chip = tmp_path / "sys/bus/pci/devices/0000:86:00.0"
    with start_agent(cpu_devices=None, **settings, **QUICK) as agent:
        assert "is listed" in await_state(agent, name, "healthy")["reason"]
        with listening(agent) as heard:
            target = chip.readlink()
            chip.unlink()
            gone = await_state(agent, name, "unhealthy")
            assert gone["action"]
            assert sorted(chips(agent).values()) == ["healthy"] * 3 + ["unhealthy"]
            for _ in range(3):  # it was not said once, to grow old and be forgotten
                assert await_newer_look(agent, name)["reason"] == gone["reason"]
            chip.symlink_to(target)
            await_state(agent, name, "healthy")
            assert len(chips(agent)) == 4

            def told() -> list[dict[str, Any]]:
                return [event for event in heard if event["data"]["component"] == name]

            lost, found = wait_for(lambda: told() if len(told()) >= 2 else [], agent)[:2]
        assert (lost["event"], lost["data"]["before"], lost["data"]["state"]) == ("state", "healthy", "unhealthy")
        assert (found["data"]["before"], found["data"]["state"]) == ("unhealthy", "healthy")
        assert int(lost["id"]) == lost["data"]["seq"]
        with listening(agent, **{"Last-Event-ID": lost["id"]}) as again:
            wait_for(lambda: again, agent)
        assert int(again[0]["id"]) == int(lost["id"]) + 1
        with listening(agent, f"?after=0&component={name}") as own:
            wait_for(lambda: len(own) >= 2, agent)
        assert {event["data"]["component"] for event in own} == {name}
        chip.unlink()
        await_state(agent, name, "unhealthy")
        assert acknowledge(agent, name, "taken out").json()["reason"] == "is not expected here any more"
        assert name not in chips(agent)


@pytest.mark.exhaustive
def test_a_client_that_never_reads_holds_nobody_up(tmp_path: Path) -> None:
    settings = host(tmp_path)
    with start_agent(cpu_devices=2, **settings) as agent, contextlib.ExitStack() as kept:
        url = httpx.URL(agent.url)
        for _ in range(20):
            deaf = kept.enter_context(socket.create_connection((url.host, url.port or 80)))
            deaf.sendall(b"GET /events/stream?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await_state(agent, "kernel_log", "healthy")
        for number in range(1, 201):
            write_record(tmp_path / "kmsg", number, xid(f"0000:{number % 250:02x}:00", 63))
        wait_for(lambda: len(events(agent, limit=1000)) >= 400, agent)
        assert httpx.get(f"{agent.url}/healthz").status_code == 200
        assert agent.stop() == 0


@pytest.mark.exhaustive
def test_chips_of_a_driver_that_hangs_are_unknown_at_once_and_their_recovery_is_an_event(tmp_path: Path) -> None:
    settings = plant_host("tpu-v5p-4", tmp_path)
    name = "device:0000:85:00.0"
    with start_agent(cpu_devices=None, MESHWRIGHT_PROBE_TIMEOUT_S="5", **settings, **QUICK) as agent:
        await_state(agent, name, "healthy")
        fix = silence(tmp_path / "sys/bus/pci/devices/0000:05:00.0/vendor")
        seen = await_state(agent, name, "unknown", limit_s=90)  # long before an observation is stale
        assert "driver does not answer" in seen["reason"]
        assert httpx.get(f"{agent.url}/devices", timeout=5).status_code == 200
        fix()
        await_state(agent, name, "healthy", limit_s=120)
        wait_for(lambda: events(agent, component=name)[-1]["state"] == "healthy", agent)
        assert [e["state"] for e in events(agent, component=name)][-2:] == ["unknown", "healthy"]


def test_a_listener_without_an_id_hears_what_comes_alone() -> None:
    with start_agent(cpu_devices=1, **QUICK) as agent:
        await_state(agent, "store", "healthy")
        with listening(agent) as heard:
            assert acknowledge(agent, "store", "a test").status_code == 200
            wait_for(lambda: heard, agent)
    assert heard[0]["event"] == "acknowledged"
