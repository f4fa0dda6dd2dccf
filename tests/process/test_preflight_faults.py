"""Four hosts in network namespaces, one of them bad: a preflight names it, and every host is free afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, wait_for
from tests.process import namespaces
from tests.process.namespaces import Network, start_hosts

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not namespaces.CAN_RUN, reason=namespaces.REASON),
]
COMMAND = (sys.executable, "-c", "from meshwright.cli import main; main()")
BAD = 2


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Network, list[RunningAgent]]]:
    with start_hosts(4) as found:
        yield found


def check(agents: Sequence[RunningAgent], timeout_s: int = 90) -> tuple[int, dict[str, Any]]:
    """Returns the exit code of the command and its report."""
    hosts = ",".join(agent.url for agent in agents)
    command = [*COMMAND, "preflight", "--hosts", hosts, "--format", "json", "--timeout", str(timeout_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def list_blamed(report: dict[str, Any]) -> dict[int, str]:
    """Returns place → text of each host that is at fault or missing."""
    return {
        place: finding["text"]
        for place, host in enumerate(report["hosts"])
        for finding in host["findings"]
        if finding["state"] in ("fault", "missing")
    }


def find_child(agent: RunningAgent) -> int | None:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == agent.pid and "children.preflight" in (folder / "cmdline").read_text():
                return int(folder.name)
    return None


@contextlib.contextmanager
def signaling(agent: RunningAgent, number: int, phase: str) -> Iterator[None]:
    """Sends a signal to the agent's process when the next preflight is in a phase."""

    def send() -> None:
        def is_there() -> bool:
            run = httpx.get(f"{agent.url}/runs?limit=1").json()["runs"]
            return bool(run) and run[0]["state"] == "running" and run[0]["progress"]["message"] == phase

        wait_for(is_there, limit_s=60)
        child = find_child(agent)
        assert child is not None
        os.kill(child, number)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


@contextlib.contextmanager
def limiting_cpu(agent: RunningAgent, share: float) -> Iterator[None]:
    """Gives an agent and its children a share of one CPU: cgroup v1's cfs quota, or v2's cpu.max."""
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    is_old = old.is_dir()
    group = (old if is_old else new) / f"meshwright-{agent.pid}"
    try:
        group.mkdir()
        quota = int(100_000 * share)
        if is_old:
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} 100000")
        (group / "cgroup.procs").write_text(str(agent.pid))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield
    finally:
        ((old if is_old else new) / "cgroup.procs").write_text(str(agent.pid))


def test_clean(hosts: tuple[Network, list[RunningAgent]]) -> None:
    code, report = check(hosts[1])
    assert (code, list_blamed(report)) == (0, {}), report


def test_a_slow_link(hosts: tuple[Network, list[RunningAgent]]) -> None:
    network, agents = hosts
    network.limit_rate(BAD, "100mbit")
    try:
        code, report = check(agents)
    finally:
        network.restore_rate(BAD)
    assert (code, list(list_blamed(report))) == (1, [BAD]), report
    assert list_blamed(report)[BAD].startswith("network to its partners")


def test_a_slow_host(hosts: tuple[Network, list[RunningAgent]]) -> None:
    with limiting_cpu(hosts[1][BAD], 0.08):
        code, report = check(hosts[1], timeout_s=45)
    assert (code, list(list_blamed(report))) == (1, [BAD]), report


@pytest.mark.parametrize("phase", ["open", "pairs"])
def test_a_dead_process(hosts: tuple[Network, list[RunningAgent]], phase: str) -> None:
    with signaling(hosts[1][BAD], signal.SIGKILL, phase):
        code, report = check(hosts[1])
    assert (code, list(list_blamed(report))) == (1, [BAD]), report
    assert "was killed by SIGKILL" in list_blamed(report)[BAD]


def test_a_stuck_process(hosts: tuple[Network, list[RunningAgent]]) -> None:
    with signaling(hosts[1][BAD], signal.SIGSTOP, "pairs"):
        code, report = check(hosts[1])
    assert (code, list(list_blamed(report))) == (1, [BAD]), report
    assert "is stuck: no sign of it for 15 s" in list_blamed(report)[BAD]


def test_an_unreachable_host(hosts: tuple[Network, list[RunningAgent]]) -> None:
    network, agents = hosts
    namespaces.run(f"ip link set {network.outside(BAD)} down")
    try:
        code, report = check(agents)
    finally:
        namespaces.run(f"ip link set {network.outside(BAD)} up")
        time.sleep(2)
    assert (code, list(list_blamed(report))) == (1, [BAD]), report


def test_a_closed_port(hosts: tuple[Network, list[RunningAgent]]) -> None:
    """Between two hosts only: both are named, since nobody can tell whose firewall it is."""
    network, agents = hosts
    route = f"blackhole {network.addresses[3]}/32"
    namespaces.run(f"ip -n {network.names[BAD]} route add {route}")
    try:
        code, report = check(agents)
    finally:
        namespaces.run(f"ip -n {network.names[BAD]} route del {route}")
    assert (code, set(list_blamed(report))) == (1, {BAD, 3}), report
    assert "no TCP connection between it and" in list_blamed(report)[BAD]


def test_every_host_is_free_and_healthy_after_all_that(hosts: tuple[Network, list[RunningAgent]]) -> None:
    for agent in hosts[1]:
        assert httpx.get(f"{agent.url}/leases").json()["leases"] == []
        wait_for(lambda agent=agent: find_child(agent) is None, limit_s=10)
        assert httpx.get(f"{agent.url}/health").json()["state"] == "healthy"
