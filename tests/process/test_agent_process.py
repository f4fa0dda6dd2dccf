"""The agent as a process: what it loads, holds and needs; where it listens; how it leaves."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from meshwright import Client
from tests.agents import RunningAgent, start_agent, wait_for
from tests.faults.causing import serve_and_leave
from tests.process.living import (
    ask,
    do_bench,
    is_alive,
    list_children,
    list_mapped_files,
    list_open_files,
    parse_events,
    post_bench,
    read_rss_bytes,
    start_long_bench,
    stop_process,
    stopped,
    worker_pid,
)

RSS_LIMIT_BYTES = 90_000_000
DRIVER_FILE = re.compile(r"/dev/(nvidia|accel|vfio/|kfd|dri/)")
HEAVY_FILE = re.compile(r"jaxlib|libtpu|_multiarray|libcuda|libnvidia|xla_")
ROUTES = (
    "/healthz", "/readyz", "/health", "/devices", "/devices?format=text", "/mesh/plan?mesh=dp:2,tp:-1",
    "/batch-size?hardware=h100&per_device_batch_size=256", "/batch-size", "/placement/bench", "/runs",
    "/environment", "/metrics", "/openapi.json", "/docs",
)  # fmt: skip


@contextlib.contextmanager
def hangups(handler: signal.Handlers) -> Iterator[None]:
    """What a child does with SIGHUP: these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def used() -> Iterator[RunningAgent]:
    """An agent under nohup, of which everything has been asked once, a bench too."""
    with hangups(signal.SIG_IGN), start_agent(cpu_devices=4) as agent:
        for route in ROUTES:
            assert httpx.get(f"{agent.url}{route}").status_code == 200, route
        do_bench(agent)
        yield agent


def test_the_agent_loads_neither_jax_nor_numpy_nor_a_driver_and_stays_small(used: RunningAgent) -> None:
    assert not {path for path in list_mapped_files(used.pid) if HEAVY_FILE.search(path)}
    assert not {path for path in list_open_files(used.pid) if DRIVER_FILE.match(path)}
    assert read_rss_bytes(used.pid) < RSS_LIMIT_BYTES
    # The same question finds them in the worker, so it can be asked like this.
    assert {path for path in list_mapped_files(worker_pid(used)) if HEAVY_FILE.search(path)}


# ---- where it listens -----------------------------------------------------------------------------------------------


def test_one_agent_answers_over_tcp_and_over_its_unix_socket(used: RunningAgent) -> None:
    with used.connect() as unix:
        fingerprint = unix.get("/mesh/plan?mesh=dp:4").json()["plans"][0]["fingerprint"]
    assert ask(used, f"/mesh/plan/{fingerprint}")["plans"][0]["mesh_shape"] == {"dp": 4}
    with Client(f"unix://{used.uds}") as client:
        assert client.get_plan(fingerprint).fingerprint == fingerprint


def refuse(state_dir: Path, *flags: str) -> str:
    """Returns what an agent says that leaves at once."""
    ended = serve_and_leave(state_dir, "--cpu-devices", "1", *flags)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_second_agent_on_the_same_port_leaves_with_a_reason(used: RunningAgent, tmp_path: Path) -> None:
    said = refuse(tmp_path, "--port", used.url.rpartition(":")[2])
    assert "Address already in use; is an agent running already?" in said


def test_a_second_agent_on_a_living_unix_socket_leaves_and_does_no_harm(used: RunningAgent, tmp_path: Path) -> None:
    assert "another agent answers there" in refuse(tmp_path, "--uds", str(used.uds))
    with Client(f"unix://{used.uds}") as client:
        assert client.alive()


def test_a_second_agent_in_the_same_state_directory_leaves_with_a_reason(used: RunningAgent) -> None:
    assert f"in use by another agent (process {used.pid})" in refuse(used.state_dir)
    assert do_bench(used)


def test_an_agent_without_a_usable_state_directory_leaves_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refuse(tmp_path / "file" / "state")
    assert "Not a directory" in said
    assert "--state-dir" in said


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("data")
    assert "a file that is not a socket stands there" in refuse(tmp_path, "--uds", str(precious))
    assert precious.read_text() == "data"


def test_an_agent_takes_the_place_of_a_dead_ones_socket_and_leaves_its_own_to_a_successor(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with start_agent(cpu_devices=1, uds=path, ready=False) as agent, socket.socket(socket.AF_UNIX) as successor:
        with Client(f"unix://{path}") as client:
            assert client.alive()
        path.unlink()
        successor.bind(str(path))
        successor.listen()
        assert agent.stop() == 0
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


# ---- how it leaves --------------------------------------------------------------------------------------------------


def follow(agent: RunningAgent, run_id: str, heard: list[str]) -> threading.Thread:
    """Listens to a run's events in a thread, until they end."""

    def listen() -> None:
        with httpx.stream("GET", f"{agent.url}/runs/{run_id}/events", timeout=60) as stream:
            heard.extend(stream.iter_text())

    listener = threading.Thread(target=listen)
    listener.start()
    wait_for(lambda: heard, agent, limit_s=10)
    return listener


def test_sigterm_says_so_ends_the_run_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with start_agent(cpu_devices=4, state_dir=tmp_path) as agent:
        run_id, heard = start_long_bench(agent), list[str]()
        listener = follow(agent, run_id, heard)
        children = list_children(agent.pid)
        with stopped(worker_pid(agent)), httpx.Client(base_url=agent.url) as kept:  # a worker that hears no cancel
            assert kept.get("/readyz").status_code == 200
            agent.process.send_signal(signal.SIGTERM)
            wait_for(lambda: kept.get("/readyz").status_code == 503, agent, limit_s=5)
            assert kept.get("/readyz").text == "draining: the agent is shutting down\n"
            refused = post_bench(agent, {})
            assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
            assert kept.get("/mesh/plan?mesh=dp:4").status_code == 200
            assert agent.process.wait(timeout=20) == 0
        listener.join(timeout=10)
        assert not agent.uds.exists()
        wait_for(lambda: not any(map(is_alive, children)), limit_s=5)
        assert len(children) == 1
        assert "Traceback" not in agent.log_text()
    last = parse_events("".join(heard))[-1]["data"]
    assert (last["type"], last["state"]) == ("state", "cancelled")
    with start_agent(cpu_devices=4, state_dir=tmp_path, ready=False) as again:
        run = ask(again, f"/runs/{run_id}")
    assert run["state"] == "cancelled"
    assert "the agent is shutting down" in run["error"]["detail"]


@pytest.mark.exhaustive
def test_a_second_sigterm_ends_the_waiting_and_is_no_failure() -> None:
    with start_agent(cpu_devices=2) as agent:
        start_long_bench(agent)
        with stopped(worker_pid(agent)):
            agent.process.send_signal(signal.SIGTERM)
            wait_for(lambda: httpx.get(f"{agent.url}/readyz").status_code == 503, agent, limit_s=5)
            agent.process.send_signal(signal.SIGTERM)
            assert agent.process.wait(timeout=20) == 0
        assert not agent.uds.exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_agent_that_is_interrupted_while_jax_starts_leaves_at_once(number: int) -> None:
    with hangups(signal.SIG_DFL), start_agent(cpu_devices=4, ready=False) as agent:
        wait_for(lambda: list_children(agent.pid), agent, limit_s=10)
        children = list_children(agent.pid)
        began_s = time.monotonic()
        agent.process.send_signal(number)
        assert agent.process.wait(timeout=20) == 0
        assert time.monotonic() - began_s < 5
        wait_for(lambda: not any(map(is_alive, children)), limit_s=5)
        assert "Traceback" not in agent.log_text()


def test_an_agent_under_nohup_outlives_its_terminal(used: RunningAgent) -> None:
    used.process.send_signal(signal.SIGHUP)
    assert httpx.get(f"{used.url}/readyz").status_code == 200


def test_no_child_outlives_an_agent_that_was_killed() -> None:
    with start_agent(cpu_devices=2) as agent:
        start_long_bench(agent)
        worker = worker_pid(agent)
        stop_process(worker)  # not even one that hangs
        agent.kill()
        try:
            wait_for(lambda: not is_alive(worker), limit_s=5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
