"""A real agent under a stand-in for systemd: what it says when it starts, lives, hangs and ends."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.node_labels import read_feature_file
from tests.process.living import list_children, worker_pid

WATCHDOG_S = 4.0
NAMESPACE = "meshwright.feature.node.kubernetes.io"
"""As deploy/RUNBOOK.md has it, "Labels of nodes"."""
HANG_S = 3 * WATCHDOG_S
BLOCK_THE_LOOP = f"""
import signal, time
signal.signal(signal.SIGUSR2, lambda *_: time.sleep({HANG_S}))
"""


class Manager:
    """systemd's end of the socket: keeps what it hears, and when."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))
        self._sock.settimeout(0.05)
        self.heard: list[tuple[float, str]] = []

    def listen(self, length_s: float = 0.0) -> list[str]:
        """Returns all fields heard so far, after listening for so long."""
        deadline = time.monotonic() + length_s
        while True:
            try:
                message = self._sock.recv(4096).decode()
                self.heard += [(time.monotonic(), field) for field in message.split("\n")]
            except TimeoutError:
                if time.monotonic() >= deadline:
                    return [field for _, field in self.heard]

    def pings(self) -> list[float]:
        self.listen()
        return [at for at, field in self.heard if field == "WATCHDOG=1"]

    def close(self) -> None:
        self._sock.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def manager(folder: Path) -> Iterator[Manager]:
    manager = Manager(folder / "notify.sock")
    yield manager
    manager.close()


@pytest.fixture(scope="module")
def watched(folder: Path, manager: Manager) -> Iterator[RunningAgent]:
    """An agent as systemd starts it. Children would load the handler too, but nobody signals them."""
    (folder / "sitecustomize.py").write_text(BLOCK_THE_LOOP)
    settings = {
        "NOTIFY_SOCKET": str(folder / "notify.sock"),
        "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
        "MESHWRIGHT_LABEL_FILE": str(folder / "labels"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
    }
    with start_agent(cpu_devices=2, **settings) as running:
        yield running


def test_an_agent_labels_its_node(watched: RunningAgent, folder: Path) -> None:
    wait_for((folder / "labels").exists, watched)
    labels = read_feature_file((folder / "labels").read_text(), now=datetime.now(UTC))
    assert labels[f"{NAMESPACE}/platform"] == "cpu"
    assert labels[f"{NAMESPACE}/device-count"] == "2"


def test_no_child_can_speak_to_systemd_in_the_agents_name(watched: RunningAgent) -> None:
    assert worker_pid(watched) in list_children(watched.pid)
    for pid in list_children(watched.pid):
        names = {entry.split(b"=")[0] for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
        assert not names & {b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID"}
        assert b"PATH" in names


@pytest.mark.exhaustive
def test_an_agent_tells_systemd_of_its_life_and_a_loop_that_hangs_does_not(
    watched: RunningAgent, manager: Manager
) -> None:
    said = wait_for(lambda: "STATUS=ready" in manager.listen() and manager.listen(), watched)
    assert said[0] == "READY=1"
    assert said.count("READY=1") == 1
    wait_for(lambda: len(manager.pings()) >= 4, watched, limit_s=60)

    watched.process.send_signal(signal.SIGUSR2)
    time.sleep(0.2)
    hung_at = time.monotonic()
    manager.listen(HANG_S - 2.0)
    assert [at for at in manager.pings() if at > hung_at] == [], "the loop stood still, and something pinged for it"
    wait_for(lambda: [at for at in manager.pings() if at > hung_at], watched, limit_s=60)

    assert watched.stop() == 0
    said = manager.listen(0.2)
    assert said.index("STATUS=draining") == said.index("STOPPING=1") + 1
