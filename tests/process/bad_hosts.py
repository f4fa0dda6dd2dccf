"""Faults of one of several hosts in network namespaces, and what a preflight says of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.cli import main
from tests.agents import RunningAgent, wait_for
from tests.process.living import find_children
from tests.process.namespaces import Network, run

STEADY = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).with_name("bad_children")), os.environ.get("PYTHONPATH", "")]),
    "MESHWRIGHT_PROBE_INTERVAL_S": "3600",
}
"""Of an agent that looks at its host once, and whose preflight's process has the fault that the file $FAULT names."""


def check(agents: Sequence[RunningAgent], timeout_s: int = 90) -> tuple[Any, dict[str, Any]]:
    """Returns the exit code of the command and its report."""
    hosts, said = ",".join(agent.url for agent in agents), io.StringIO()
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(said):
        main(["preflight", "--hosts", hosts, "--format", "json", "--timeout", str(timeout_s)])
    return ended.value.code, json.loads(said.getvalue())


def list_blamed(report: dict[str, Any]) -> dict[int, str]:
    """Returns place → text of each host that is at fault or missing."""
    return {
        place: finding["text"]
        for place, host in enumerate(report["hosts"])
        for finding in host["findings"]
        if finding["state"] in ("fault", "missing")
    }


@contextlib.contextmanager
def signaling(agent: RunningAgent, number: int, phase: str = "") -> Iterator[None]:
    """Sends a signal to the agent's process when the next preflight is in a phase; without one when it is there."""

    def send() -> None:
        def is_there() -> bool:
            if not phase:
                return bool(find_children(agent, "preflight"))
            run = httpx.get(f"{agent.url}/runs?limit=1").json()["runs"]
            return bool(run) and run[0]["state"] == "running" and (run[0]["progress"] or {}).get("message") == phase

        wait_for(is_there, limit_s=120)
        child = min(find_children(agent, "preflight"))
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
    whole = old if is_old else new
    group = whole / f"meshwright-{agent.pid}"
    try:
        group.mkdir(exist_ok=True)
        period_us = 100_000
        quota_us = round(period_us * share)
        if is_old:
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        (group / "cgroup.procs").write_text(str(agent.pid))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (whole / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):  # a child that is just ending
            group.rmdir()


@contextlib.contextmanager
def limiting_link(network: Network, host: int) -> Iterator[None]:
    """Limits what a host sends and receives."""
    network.limit_rate(host, "100mbit")
    try:
        yield
    finally:
        network.restore_rate(host)


@contextlib.contextmanager
def taking_link_down(network: Network, host: int) -> Iterator[None]:
    run(f"ip link set {network.outside(host)} down")
    try:
        yield
    finally:
        run(f"ip link set {network.outside(host)} up")
        time.sleep(2)


@contextlib.contextmanager
def planting(mark: Path, fault: str) -> Iterator[None]:
    """Gives the preflights of the agent whose $FAULT is this file one of the faults of `bad_children`."""
    mark.write_text(fault)
    try:
        yield
    finally:
        mark.unlink()


@dataclass(frozen=True)
class Fault:
    """A fault of one host.

    Attributes:
        make: network, agents and the host's place → the fault, as long as the block.
        words: what is said of the host.
    """

    make: Callable[[Network, Sequence[RunningAgent], int], AbstractContextManager[None]]
    words: str


FAULTS: Mapping[str, Fault] = {
    "slow link": Fault(lambda network, _, bad: limiting_link(network, bad), "network to its partners"),
    "slow host": Fault(lambda _, agents, bad: limiting_cpu(agents[bad], 0.32 / len(agents)), ""),
    "dead at its start": Fault(lambda _, agents, bad: signaling(agents[bad], signal.SIGKILL), "was killed by SIGKILL"),
    "dead at work": Fault(
        lambda _, agents, bad: signaling(agents[bad], signal.SIGKILL, "pairs"), "was killed by SIGKILL"
    ),
    "stuck": Fault(lambda _, agents, bad: signaling(agents[bad], signal.SIGSTOP, "pairs"), "no sign of it for 15 s"),
    "unreachable": Fault(lambda network, _, bad: taking_link_down(network, bad), ""),
    "wrong": Fault(
        lambda network, _, bad: planting(network.faults / network.names[bad], "lying"),
        "device 0 produced 1 wrong elements",
    ),
}
