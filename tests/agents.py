"""Real agents for tests: `python -m meshwright_agent serve` on free loopback ports, waited for, stopped in the end.

They are started with `--insecure`, unless told otherwise: without tokens, TCP may only read.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

T = TypeVar("T")
MESHWRIGHT = (sys.executable, "-m", "meshwright")
START_LIMIT_S = 180.0


@dataclass
class RunningAgent:
    """An agent in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    uds: Path
    state_dir: Path
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def connect(self, base_url: str = "http://agent") -> httpx.Client:
        """Returns a client over the unix socket."""
        return httpx.Client(transport=httpx.HTTPTransport(uds=str(self.uds)), base_url=base_url, timeout=60)

    def kill(self) -> None:
        """Sends SIGKILL, and waits for the end."""
        self.process.kill()
        self.process.wait(timeout=60)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def start_agent(
    *,
    cpu_devices: int | None = 8,
    state_dir: Path | None = None,
    uds: Path | None = None,
    ready: bool = True,
    module: str = "meshwright_agent",
    options: Sequence[str] = (),
    prefix: Sequence[str] = (),
    **environment: str,
) -> Iterator[RunningAgent]:
    """Yields an agent that answers (and is ready, unless told otherwise); kills it in the end if it still runs.

    `prefix` is a command that executes the agent, such as `ip netns exec`.
    """
    with tempfile.TemporaryDirectory(prefix="mw-") as folder:
        command = [*prefix, sys.executable, "-m", module, "serve", "--port", "0", *options]
        command += [] if cpu_devices is None else ["--cpu-devices", str(cpu_devices)]
        agent = spawn(command, Path(folder), environment, state_dir=state_dir, uds=uds)
        try:
            if ready:
                wait_for(lambda: httpx.get(f"{agent.url}/readyz").status_code == 200, agent)
            yield agent
        finally:
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.process.wait(timeout=30)
            agent.kill()


def spawn(
    command: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    *,
    state_dir: Path | None = None,
    uds: Path | None = None,
    stderr: int = subprocess.STDOUT,
) -> RunningAgent:
    """Returns an agent that listens; the folder has what it prints, its state and its socket, unless told otherwise."""
    log, state_dir, uds = folder / "agent.log", state_dir or folder / "state", uds or folder / "agent.sock"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--uds", str(uds), "--state-dir", str(state_dir)],
            env={**os.environ, "MESHWRIGHT_INSECURE": "true", **environment},
            stdout=file,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
        )
    agent = RunningAgent(process, "", uds, state_dir, log)
    found = wait_for(lambda: re.search(r"listens on (https?://\S+?),? ", log.read_text()), agent)
    assert found is not None
    agent.url = found.group(1)
    return agent


def wait_for(question: Callable[[], T], agent: RunningAgent | None = None, *, limit_s: float = START_LIMIT_S) -> T:
    """Returns the first true answer; an answer that is late, or an agent that died, fails the test with the log."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if agent is not None and agent.process.poll() is not None:
            raise AssertionError(f"the agent exited with {agent.process.returncode}:\n{agent.log_text()}")
        with contextlib.suppress(httpx.TransportError):
            if answer := question():
                return answer
        time.sleep(0.05)
    raise AssertionError(f"no answer within {limit_s} s:\n{agent.log_text() if agent else ''}")
