"""Values of the chart that must do what their comments say: who may come in, who scrapes, whose the folders are."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest

from tests.deploy.charts import render
from tests.deploy.test_chart import EVERYTHING, read_environment, read_pod, switch_on

MONITORED = {"serviceMonitor": {"enabled": True, "namespace": "prometheus"}}
CLOSED = {**MONITORED, "publicMetrics": False}


def read_rule(values: dict[str, Any]) -> dict[str, Any]:
    (rule,) = render(values)["NetworkPolicy"]["spec"]["ingress"]
    found: dict[str, Any] = rule
    return found


def read_endpoint(values: dict[str, Any]) -> dict[str, Any]:
    (endpoint,) = render(values)["ServiceMonitor"]["spec"]["endpoints"]
    found: dict[str, Any] = endpoint
    return found


# ---- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "text"), [(4294967296, "4294967296"), (0.5, "0.5"), (True, "true"), ("1", "1")])
def test_a_setting_arrives_as_it_was_written(value: object, text: str) -> None:
    found = read_environment({"settings": {"MESHWRIGHT_COMPILE_MEMORY_BYTES": value}})
    assert found["MESHWRIGHT_COMPILE_MEMORY_BYTES"] == text


# ---- who may come in --------------------------------------------------------------------------------------------


def test_only_the_namespace_comes_in_by_default() -> None:
    assert read_rule({})["from"] == [{"podSelector": {}}]


def test_the_prometheus_that_is_told_of_the_agents_is_let_in() -> None:
    its = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prometheus"}}}
    assert read_rule(MONITORED)["from"] == [{"podSelector": {}}, its]
    mine = {"namespaceSelector": {}}
    assert read_rule({**MONITORED, "networkPolicy": {"from": [mine]}})["from"] == [mine, its]


def test_a_port_of_the_node_is_one_that_others_reach_unless_a_value_says_who() -> None:
    assert "from" not in read_rule(switch_on("hostPort"))
    mine = {"ipBlock": {"cidr": "192.0.2.0/24"}}
    assert read_rule({**switch_on("hostPort"), "networkPolicy": {"from": [mine]}})["from"] == [mine]


# ---- who scrapes ------------------------------------------------------------------------------------------------


def test_the_job_is_that_of_the_alerts_whatever_the_release_is_called() -> None:
    found = render(MONITORED, name="mw")
    assert found["Service"]["metadata"]["labels"][found["ServiceMonitor"]["spec"]["jobLabel"]] == "meshwright"


def test_open_metrics_are_scraped_without_a_token() -> None:
    assert "authorization" not in read_endpoint(MONITORED)


def test_closed_metrics_are_scraped_with_one() -> None:
    monitor = {**MONITORED["serviceMonitor"], "token": {"secretName": "prometheus-token"}}
    endpoint = read_endpoint({**CLOSED, "serviceMonitor": monitor})
    assert endpoint["authorization"] == {"credentials": {"name": "prometheus-token", "key": "token"}}


def test_a_scrape_that_would_be_refused_is_refused_by_the_chart() -> None:
    with pytest.raises(helm_python.HelmError, match=r"needs serviceMonitor\.token\.secretName"):
        render(CLOSED)
    monitor = {**MONITORED["serviceMonitor"], "token": {"secretName": "prometheus-token"}}
    tls = {"secretName": "tls", "clientCertificates": True}
    with pytest.raises(helm_python.HelmError, match=r"needs serviceMonitor\.clientCertificate"):
        render({**CLOSED, "tls": tls, "serviceMonitor": monitor})
    shown = read_endpoint({**CLOSED, "tls": tls, "serviceMonitor": {**monitor, "clientCertificate": "prometheus-tls"}})
    assert shown["tlsConfig"]["cert"] == {"secret": {"name": "prometheus-tls", "key": "tls.crt"}}
    assert shown["tlsConfig"]["keySecret"] == {"name": "prometheus-tls", "key": "tls.key"}


# ---- whose the folders are --------------------------------------------------------------------------------------

WRITE = """
for folder; do
    echo mine >"$folder/meshwright"
    ! [ -e "$folder/old" ] || echo mine >"$folder/old"
done
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become somebody else")
@pytest.mark.parametrize("of_others", [False, True])
def test_the_agent_can_write_to_the_folders_that_it_is_given(open_folder: Path, of_others: bool) -> None:
    """The init container's script and the agent's identity, with the capabilities that the manifest gives to each."""
    features = {**EVERYTHING["features"], "hostPID": {"enabled": True, "ofOthers": of_others}}
    pod = read_pod({**EVERYTHING, "features": features})
    (first,) = pod["initContainers"]
    (script,) = first["args"]
    folders = [open_folder / name for name in ("state", "socket", "features")]
    for folder, place in zip(folders, ("/var/lib/meshwright", "/run/meshwright", "/features.d"), strict=True):
        folder.mkdir(mode=0o755)
        script = script.replace(f" {place}\n", f" {folder}\n")
    (old := folders[0] / "old").write_text("of an agent that was another user")
    other = 10001 if of_others else 0
    for path in (old, folders[0]):
        os.chown(path, other, other)
        path.chmod(0o700)
    become(0, 0, first["securityContext"]["capabilities"].get("add", []), ["sh", "-ec", script])
    security, added = pod["securityContext"], pod["containers"][0]["securityContext"]["capabilities"].get("add", [])
    user = security["runAsUser"]
    writing = ["sh", "-ec", WRITE, "agent", *map(str, folders)]
    become(user, security["fsGroup"], added, writing)
    assert old.read_text() == "mine\n"
    assert all((folder / "meshwright").stat().st_uid == user for folder in folders)


def become(user: int, group: int, capabilities: list[str], command: list[str]) -> None:
    """Runs a command as a container does that dropped all capabilities but these."""
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])
    identity = [f"--reuid={user}", f"--regid={user}", f"--groups={group}", f"--bounding-set={kept}", "--no-new-privs"]
    done = subprocess.run(["setpriv", *identity, f"--inh-caps={kept}", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
