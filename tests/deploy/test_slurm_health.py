"""Slurm's HealthCheckProgram, run as slurmd runs it, against a real agent and a stand-in for scontrol."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents import RunningAgent, start_agent
from tests.deploy.slurm_node import AWAY, WARNS, Node, build_node, find_client
from tests.process.living import await_state, kill_until_it_stays_down


def test_a_sound_node_is_left_alone(node: Node) -> None:
    done = node.run("healthcheck.sh")
    assert (done.returncode, node.told()) == (0, "")


def test_a_node_that_lacks_what_it_must_have_is_drained_with_the_reason(node: Node) -> None:
    """Once, since `sinfo -R` shows since when."""
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK="--expect h100:8")
    told = node.told()
    assert (done.returncode, done.stderr) == (0, "")
    assert told.startswith("update nodename=node01 state=drain reason=meshwright: ")
    assert "h100:8" in told
    assert told.count("\n") == 1
    assert len(told) < 280
    node.show("IDLE+DRAIN", told.partition("reason=")[2].strip())
    assert node.run("healthcheck.sh", MESHWRIGHT_CHECK="--expect h100:8").returncode == 0
    assert node.told() == ""


@pytest.mark.parametrize("check", ["--expect eight", "--expects 8"])
def test_a_check_that_cannot_run_drains_nothing_and_does_not_pass_for_health(node: Node, check: str) -> None:
    """slurmd logs the output of a HealthCheckProgram as an error where its exit status is not 0, and does no more."""
    node.show("IDLE+DRAIN", "meshwright: a GPU is gone")
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK=check, MESHWRIGHT_RESUME="1")
    assert (done.returncode, node.told()) == (1, "")
    assert "could not run (exit status 2)" in done.stderr
    assert "MESHWRIGHT_CHECK" in done.stderr


@pytest.mark.parametrize(("line", "status", "drained"), [
    ("MESHWRIGHT_CHECK=--expect h100:8", 1, False),  # without quotes a command that is not there
    ('MESHWRIGHT_CHECK="--expect h100:8"', 0, True),
    ("MESHWRIGHT_EXPECT=h100:8", 0, True),
])  # fmt: skip
def test_a_requirement_in_the_settings_is_looked_at_or_refused(
    node: Node, line: str, status: int, drained: bool
) -> None:
    (node.folder / "slurm.env").write_text(f"{line}\nMESHWRIGHT_STRICT=0\n")
    assert node.run("healthcheck.sh").returncode == status
    assert ("state=drain" in node.told()) is drained


def test_a_check_whose_client_is_not_there_does_not_pass_for_health(node: Node) -> None:
    done = node.run("healthcheck.sh", MESHWRIGHT="/nowhere/meshwright")
    assert (done.returncode, node.told()) == (1, "")


@pytest.mark.parametrize("script", ["exec python3 -c 'import no_such_package'", "exit 1", "exit 0", "kill -9 $$"])
def test_a_client_that_does_not_start_drains_nothing_and_does_not_pass_for_health(node: Node, script: str) -> None:
    """An upgrade that broke the client's environment is one fault of all nodes; Python's exit status for it is 1."""
    node.show("IDLE+DRAIN", "meshwright: a GPU is gone")
    done = node.run("healthcheck.sh", MESHWRIGHT=node.stand_in(f"#!/bin/bash\n{script}\n"), MESHWRIGHT_RESUME="1")
    assert (done.returncode, node.told()) == (1, "")
    assert "could not run" in done.stderr


@pytest.mark.parametrize("check", ["--format text --expect h100:8", "--format nagios"])
def test_an_exit_style_of_the_operators_does_not_change_what_the_script_reads(node: Node, check: str) -> None:
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK=check)
    assert (done.returncode, done.stderr) == (0, "")
    assert node.told().startswith("update nodename=node01 state=drain reason=meshwright: not met") is ("h100" in check)


@pytest.mark.exhaustive
def test_an_agent_whose_store_and_worker_fail_drains_nothing(tmp_path: Path) -> None:
    """The check says so to others: its devices are none the worse."""
    quick = {"MESHWRIGHT_PROBE_INTERVAL_S": "0.3"}
    with start_agent(cpu_devices=2, state_dir=tmp_path / "state", **quick) as running:
        for file in (tmp_path / "state").glob("meshwright.sqlite3*"):
            file.unlink()
        kill_until_it_stays_down(running, {"starting", "ready", "busy"})
        for name in ("store", "worker"):
            await_state(running, name, "unhealthy", limit_s=30)
        node = build_node(tmp_path, running.url)
        for check in ("", "--expect cpu:2"):
            done = node.run("healthcheck.sh", MESHWRIGHT_CHECK=check)
            assert (done.returncode, done.stderr, node.told()) == (0, "", "")
        assert node.run("healthcheck.sh", MESHWRIGHT_CHECK="--expect cpu:3").returncode == 0
        assert "cpu:3" in node.told()


@pytest.mark.parametrize("state", ["IDLE", "IDLE+DRAIN"])
def test_an_agent_that_is_away_neither_drains_nor_gives_back_nor_passes_for_health(tmp_path: Path, state: str) -> None:
    node = build_node(tmp_path, AWAY)
    node.show(state, "meshwright: a GPU is gone")
    done = node.run("healthcheck.sh", MESHWRIGHT_RESUME="1")
    assert (done.returncode, node.told()) == (1, "")
    assert "this node was not checked: no answer" in done.stderr


def test_a_token_that_is_refused_does_not_pass_for_health(tmp_path: Path, guarded: RunningAgent) -> None:
    node = build_node(tmp_path, guarded.url)
    done = node.run("healthcheck.sh", MESHWRIGHT_TOKEN="wrong")
    assert (done.returncode, node.told()) == (1, "")
    assert "this node was not checked: no verdict: " in done.stderr


def test_a_node_is_not_given_back_on_what_is_not_known(node: Node) -> None:
    """A component of the agent's own is unknown: that drains nothing, and heals nothing."""
    node.show("IDLE+DRAIN", "meshwright: not met: devices h100:8")
    said = "keep: 2 components, healthy"
    client = node.stand_in(f'#!/bin/bash\n[[ "$*" == *text ]] && exit 1\necho "{said}"\n')
    done = node.run("healthcheck.sh", MESHWRIGHT=client, MESHWRIGHT_RESUME="1")
    assert (done.returncode, done.stderr, node.told()) == (0, "", "")


def test_a_node_whose_state_slurm_does_not_tell_is_not_changed(node: Node) -> None:
    (node.folder / "shown").unlink()
    done = node.run("healthcheck.sh", MESHWRIGHT_CHECK="--expect h100:8")
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
    drains = node.stand_in('#!/bin/bash\necho "drain: not met: devices h100:8"\nexit 1\n')
    assert node.run("healthcheck.sh", MESHWRIGHT=drains, MESHWRIGHT_RESUME="1").returncode == 0
    assert bool(node.told()) is is_drained_anew


def test_the_reason_is_the_verdict_and_no_warning_of_the_client(node: Node) -> None:
    warns = node.stand_in(WARNS)
    done = node.run("healthcheck.sh", MESHWRIGHT=warns, MESHWRIGHT_CHECK="--expect h100:8")
    assert "warning" in done.stderr
    assert "reason=meshwright: not met: " in node.told()


@pytest.mark.parametrize(
    ("state", "reason", "resume", "told"),
    [
        ("IDLE+DRAIN", "meshwright: a GPU is gone", "1", "update nodename=node01 state=resume\n"),
        ("IDLE+DRAIN", "meshwright: a GPU is gone", "0", ""),
        ("IDLE+DRAIN", "new memory on Monday", "1", ""),
        ("IDLE", "meshwright: a GPU is gone", "1", ""),
        ("IDLE", "", "1", ""),
        ("DOWN+DRAIN", "meshwright: a GPU is gone", "1", ""),
        ("FAIL+DRAIN", "meshwright: a GPU is gone", "1", ""),
    ],
)
def test_only_what_was_drained_here_is_given_back_and_only_if_told_to(
    node: Node, state: str, reason: str, resume: str, told: str
) -> None:
    node.show(state, reason)
    client = find_client() if told else node.stand_in('#!/bin/bash\necho "keep: 2 components, healthy"\n')
    assert node.run("healthcheck.sh", MESHWRIGHT=client, MESHWRIGHT_RESUME=resume).returncode == 0
    assert node.told() == told
