"""NVML's XID events in a living agent: heard where the log cannot be read, told once, let go for a reset.

Everything is real but the driver: a recorded machine whose module `pynvml` is a fake that a file makes tell events.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import httpx

import tests
from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.machines import RECORDED
from tests.fakes.well import WELL, write_record, xid
from tests.process.living import await_state, read_component, release
from tests.process.test_agent_health import plant_host
from tests.process.test_health_events import QUICK, acknowledge, events

ROOT = Path(tests.__file__).parents[1]
UUID = json.loads((RECORDED / "dgx-h100/nvml.json").read_text())["gpus"][0]["uuid"]
CARD = f"device:{UUID}"
ADDRESS = "0000:1b:00"


def build_host(folder: Path, *, has_log: bool = False) -> dict[str, str]:
    """Returns the settings of a recorded host with a driver; its kernel log is a file, or cannot be read."""
    document = json.loads((RECORDED / "dgx-h100/nvml.json").read_text())
    document["gpus"] = [{**gpu, **WELL, "processes": []} for gpu in document["gpus"]]
    (folder / "nvml.json").write_text(json.dumps(document))
    (folder / "events").touch()
    log = folder / "kmsg"
    if has_log:
        log.touch()
    return {
        **QUICK,
        **plant_host("dgx-h100", folder / "host"),
        "MESHWRIGHT_KERNEL_LOG": str(log),
        "FAKE_NVML": str(folder),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "tests/fakes/as_pynvml"), str(ROOT))),
    }


def raise_event(folder: Path, code: int, index: int = 0) -> None:
    with (folder / "events").open("a") as file:
        file.write(f"{json.dumps([index, code])}\n")


def find_listeners(agent: RunningAgent) -> list[int]:
    """The agent's children that listen, by process id."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"worker.listener" in _read_command(pid)]


def _read_command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def await_listening(agent: RunningAgent) -> None:
    await_state(agent, "kernel_log", "healthy")
    assert "NVML's events stand in" in read_component(agent, "kernel_log")["reason"]


def list_faults(agent: RunningAgent) -> list[Any]:
    return [event["code"] for event in events(agent, component=CARD) if event["kind"] == "fault"]


def test_where_the_log_cannot_be_read_an_event_makes_its_device_unhealthy(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, **build_host(tmp_path)) as agent:
        await_listening(agent)
        raise_event(tmp_path, 31)
        wait_for(lambda: list_faults(agent) == ["xid_31"], agent)
        assert not read_component(agent, CARD)  # the application's own is no fault
        raise_event(tmp_path, 79)
        seen = await_state(agent, CARD, "unhealthy")
        assert "XID 79" in seen["reason"]
        assert seen["permanence"] == "permanent"
        wait_for(lambda: list_faults(agent) == ["xid_31", "xid_79"], agent)


def test_a_card_that_waits_for_a_reset_is_not_held_open_and_listening_goes_on_after_it(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, **build_host(tmp_path)) as agent:
        await_listening(agent)
        assert len(find_listeners(agent)) == 1
        raise_event(tmp_path, 48)
        await_state(agent, CARD, "unhealthy")
        wait_for(lambda: not find_listeners(agent), agent)
        assert "waits for a reset" in await_state(agent, "kernel_log", "degraded")["reason"]
        assert acknowledge(agent, CARD).status_code == 200
        await_listening(agent)
        raise_event(tmp_path, 63, index=1)
        wait_for(lambda: [e for e in events(agent) if e["code"] == "xid_63"], agent)
        assert list_faults(agent) == ["xid_48"]  # not told again by another listener


def test_a_release_lets_the_cards_go(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, **build_host(tmp_path)) as agent:
        await_listening(agent)
        assert release(agent)["released"]
        assert find_listeners(agent) == []
        assert "were released" in await_state(agent, "kernel_log", "degraded")["reason"]


def test_a_listener_that_hangs_in_the_driver_blocks_no_route_and_no_release(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, **build_host(tmp_path)) as agent:
        await_listening(agent)
        (tmp_path / "events").unlink()
        os.mkfifo(tmp_path / "events")
        (pid,) = find_listeners(agent)
        wait_for(lambda: "fifo" in Path(f"/proc/{pid}/wchan").read_text() or _is_opening(pid), agent)
        for route in ("/healthz", "/health", "/devices", "/metrics", "/events"):
            began_s = time.monotonic()
            assert httpx.get(f"{agent.url}{route}", timeout=5).status_code == 200
            assert time.monotonic() - began_s < 2.0
        answer = release(agent)
        assert answer["released"]
        assert answer["took_s"] < 2.0
        assert find_listeners(agent) == []


def _is_opening(pid: int) -> bool:
    """openat(2) is system call 257 on x86-64, 56 on arm64: a pipe without a writer keeps it."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[0] in {"257", "56"}
    except OSError:
        return False


def test_where_the_log_is_read_nothing_is_opened(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, **build_host(tmp_path, has_log=True)) as agent:
        assert "read for XIDs" in await_state(agent, "kernel_log", "healthy")["reason"]
        assert find_listeners(agent) == []


def test_an_xid_that_log_and_events_tell_is_one(tmp_path: Path) -> None:
    settings = {**build_host(tmp_path, has_log=True), "MESHWRIGHT_XID_EVENTS": "always"}
    with start_agent(cpu_devices=2, **settings) as agent:
        await_state(agent, "kernel_log", "healthy")
        wait_for(lambda: find_listeners(agent), agent)
        wait_for(lambda: 'child="listener",op="listen",outcome="succeeded"' in read_metrics(agent), agent)
        raise_event(tmp_path, 63)
        write_record(tmp_path / "kmsg", 10, xid(ADDRESS, 63), at_s=time.monotonic())
        write_record(tmp_path / "kmsg", 11, xid(ADDRESS, 94), at_s=time.monotonic())
        wait_for(lambda: "xid_94" in list_faults(agent) and "xid_63" in list_faults(agent), agent)
        raise_event(tmp_path, 92)
        wait_for(lambda: "xid_92" in list_faults(agent), agent)
        assert sorted(list_faults(agent)) == ["xid_63", "xid_92", "xid_94"]


def read_metrics(agent: RunningAgent) -> str:
    return httpx.get(f"{agent.url}/metrics", timeout=10).text
