"""A node as slurmd has it, for tests of its scripts: an agent's address, a folder for notes, a stand-in for scontrol.

Where an answer must be lost on its way, or a client must not start, a client of the test's own stands before the real
one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.agents import RunningAgent
from tests.deploy.charts import DEPLOY
from tests.deploy.warm_client import start_client

SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))
JOB = "4711"
SETTINGS = "/etc/meshwright/slurm.env"
AWAY = "http://127.0.0.1:1"
LATE = "warning: who else holds the devices is not known: the driver did not answer in time\n"
"""True where the machine is busy."""
WARNS = """#!/bin/bash
echo "warning: the agent is newer than this client" >&2
exec {client} "$@"
"""


@dataclass
class Node:
    """A node as slurmd has it: the agent's address, a folder for notes, and a scontrol that keeps what it is told."""

    folder: Path
    environment: dict[str, str]

    def run(self, script: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, "SLURM_JOB_ID": JOB, **more}
        copy = self.folder / script
        copy.write_text((DEPLOY / "slurm" / script).read_text().replace(SETTINGS, str(self.folder / "slurm.env")))
        ended = subprocess.run(
            ["bash", str(copy)], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        ended.stderr = "".join(line for line in ended.stderr.splitlines(keepends=True) if LATE not in line)
        return ended

    def told(self) -> str:
        """Returns what scontrol was told since it was last asked."""
        path = self.folder / "told"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text

    def notes(self) -> list[str]:
        """Returns the jobs that are over and whose lease may stand."""
        return sorted(path.name for path in (self.folder / "leases").glob("*") if path.name != "lock")

    def show(self, state: str, reason: str = "") -> None:
        """Makes scontrol show the node so, as Slurm prints it."""
        by = f"\n   Reason={reason} [root@2026-01-02T03:04:05]" if reason else ""
        (self.folder / "shown").write_text(
            f"NodeName=node01 Arch=x86_64 CoresPerSocket=8\n   State={state} ThreadsPerCore=1{by}\n"
        )

    def stand_in(self, script: str) -> str:
        """Returns a client of the test's own before the real one."""
        path = self.folder / "client"
        path.write_text(script.format(client=find_client()))
        path.chmod(0o755)
        return str(path)


@functools.cache
def find_client() -> str:
    """Returns the client's command, which is there until Python exits."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(start_client())


def build_node(folder: Path, url: str) -> Node:
    tools = folder / "bin"
    tools.mkdir()
    show = f'[[ $1 == show ]] && {{ cat "{folder}/shown"; exit; }}\n'
    (tools / "scontrol").write_text(f'#!/bin/bash\n{show}echo "$@" >>"{folder}/told"\n')
    (tools / "scontrol").chmod(0o755)
    environment = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "MESHWRIGHT": find_client(),
        "MESHWRIGHT_URL": url,
        "MESHWRIGHT_RUNDIR": str(folder / "leases"),
        "SLURMD_NODENAME": "node01",
    }
    node = Node(folder, environment)
    node.show("IDLE")
    return node


def read_purposes(agent: RunningAgent) -> list[str]:
    return [str(lease["purpose"]) for lease in read_leases(agent)]


def read_leases(agent: RunningAgent) -> list[dict[str, object]]:
    leases: list[dict[str, object]] = httpx.get(f"{agent.url}/leases", timeout=30).json()["leases"]
    return leases
