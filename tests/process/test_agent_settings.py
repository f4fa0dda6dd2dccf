"""Settings of the agent that cannot be used, and where it keeps its state: by starting its command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "meshwright_agent"]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHWRIGHT_")}
    environment |= {f"MESHWRIGHT_{name}": value for name, value in variables.items()}
    return subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("variables", "said"), [
    (
        {"PORT": "70000", "CPU_DEVICES": "2", "SIMULATE": "h100:8", "EXPECT": "8", "STATE_DIR": "", "HOLD": "maybe",
         "TLS_KEY_FILE": "/key", "TLS_CLIENT_CA_FILE": "/ca"},
        {
            "--port / MESHWRIGHT_PORT": "Input should be less than or equal to 65535, got '70000'",
            "--simulate / MESHWRIGHT_SIMULATE": "stands beside cpu_devices",
            "MESHWRIGHT_EXPECT": "stands beside cpu_devices, and only this host's accelerators are counted",
            "--state-dir / MESHWRIGHT_STATE_DIR": "is empty; give a folder, or leave the setting out",
            "MESHWRIGHT_HOLD": "Input should be 'never', 'on_demand' or 'always'",
            "--tls-key-file / MESHWRIGHT_TLS_KEY_FILE": "tls_cert_file is missing; give both, or neither",
            "--tls-client-ca-file / MESHWRIGHT_TLS_CLIENT_CA_FILE": "clients show certificates over TLS only",
        },
    ),
    (
        {"SIMULATE": "h100:8", "EXPECT": "h100:8", "LABEL_FILE": "/labels", "TLS_CERT_FILE": "/cert"},
        {
            "MESHWRIGHT_EXPECT": "stands beside simulate",
            "MESHWRIGHT_LABEL_FILE": "stands beside simulate, and what is simulated is not on this node",
            "--tls-key-file / MESHWRIGHT_TLS_KEY_FILE": "tls_key_file is missing",
        },
    ),
    ({"SIMULATE": "v5q:4x4"}, {"--simulate / MESHWRIGHT_SIMULATE": "did you mean"}),
    ({"SIMULATE": "4096*h100:8"}, {"--simulate / MESHWRIGHT_SIMULATE": "an agent simulates up to 4096"}),
])  # fmt: skip
def test_each_setting_that_is_wrong_is_a_line_with_its_names_and_the_rule(
    variables: dict[str, str], said: dict[str, str]
) -> None:
    done = run("serve", **variables)
    lines = dict(line.split(": ", 1) for line in done.stderr.splitlines())
    assert (done.returncode, set(lines)) == (2, set(said)), done.stderr
    assert [name for name, words in said.items() if words not in lines[name] or "got None" in lines[name]] == []


@pytest.mark.parametrize("made", ["sys", "sys/bus"])
def test_a_host_root_without_a_hosts_facts_is_refused_at_the_start(tmp_path: Path, made: str) -> None:
    (tmp_path / made).mkdir(parents=True)
    done = run("serve", "--cpu-devices", "1", "--port", "0", HOST_ROOT=str(tmp_path), STATE_DIR=str(tmp_path / "state"))
    said = f"MESHWRIGHT_HOST_ROOT: {tmp_path / ('sys' if made == 'sys' else 'proc')} is missing or empty"
    assert (done.returncode, said in done.stderr) == (2, True)


@pytest.mark.parametrize(("variables", "place"), [
    ({"XDG_STATE_HOME": "{home}/xdg"}, "xdg/meshwright"),
    ({"XDG_STATE_HOME": "{home}/xdg", "STATE_DIRECTORY": "{home}/lib:/second"}, "lib"),
    ({"HOME": "{home}", "XDG_STATE_HOME": ""}, ".local/state/meshwright"),
])  # fmt: skip
def test_the_state_is_kept_where_systemd_or_the_user_keeps_it_and_no_port_is_opened_where_none_is_named(
    tmp_path: Path, variables: dict[str, str], place: str
) -> None:
    own = {name: value.format(home=tmp_path) for name, value in variables.items()}
    command = [*COMMAND, "serve", "--host", "", "--simulate", "h100:8", "--uds", str(tmp_path / "agent.sock")]
    environment = {**os.environ, **own, "MESHWRIGHT_EXPCT": "8"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as agent:
        assert agent.stdout
        lines = [agent.stdout.readline() for _ in range(4)]
        agent.send_signal(signal.SIGTERM)
        _, log = agent.communicate(timeout=60)
    assert re.fullmatch(rf"meshwright agent \S+ listens on unix://{tmp_path}/agent.sock\n", lines[0])
    assert lines[3] == f"  curl -s --unix-socket {tmp_path}/agent.sock http://agent/readyz\n"
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.sqlite3")] == [
        f"{place}/simulated.sqlite3"
    ]
    assert "read by nothing: MESHWRIGHT_EXPCT (MESHWRIGHT_EXPECT?);" in log


def test_an_agent_without_an_address_is_a_wrong_setting_and_help_has_its_short_name(tmp_path: Path) -> None:
    refused = run("serve", "--host", "", "--simulate", "h100:8", MESHWRIGHT_STATE_DIR=str(tmp_path))
    assert (refused.returncode, "no address to listen on" in refused.stderr) == (2, True)
    assert run("serve", "-h").stdout.startswith("Usage: ")


def test_the_version_is_printed_and_a_token_without_a_valid_end_is_not_made() -> None:
    assert re.fullmatch(r"meshwright-agent \d+\.\S+\n", run("--version").stdout)
    refused = run("token", "new", "prolog", "--expires", "soon")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "the time is not as in RFC 3339, such as 2027-01-31T00:00:00Z\n"
