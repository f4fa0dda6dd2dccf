"""The preflight of Slurm's prolog and of a Kubernetes job's pods; under a real slurmctld with three nodes, one bad."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agents import RunningAgent, start_agent, wait_for
from tests.deploy.charts import DEPLOY
from tests.deploy.slurm_cluster import MISSING, start_slurm
from tests.deploy.slurm_node import JOB, Node, build_node, find_client, read_leases
from tests.process.bad_hosts import signaling
from tests.process.living import end_leases
from tests.process.namespaces import CAN_RUN, REASON, Network, build_prefix, start_hosts

PODS = DEPLOY / "kubernetes" / "preflight-job.yaml"
WAITS_LESS = """#!/bin/bash
exec {client} "${{@/#31/2}}"
"""


@pytest.fixture(scope="module")
def hosts(host: RunningAgent) -> Iterator[list[RunningAgent]]:
    with start_agent(cpu_devices=2) as other:
        yield [host, other]


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Network, list[RunningAgent]]]:
    """Three hosts; the first two have the names of a Kubernetes job's pods: /etc/hosts stands for the cluster's DNS."""
    (allowed,) = re.findall(r'allowedHosts: \["([^"]+)"\]', PODS.read_text())
    with start_hosts(3, cpu_devices=1, MESHWRIGHT_ALLOWED_HOSTS=allowed) as (network, agents):
        names = [address.removesuffix(":8790") for address in read_pod_addresses().split(",")]
        lines = [f"{address} {name}\n" for address, name in zip(network.addresses, names, strict=False)]
        for name in network.names:
            with Path("/etc/netns", name, "hosts").open("a") as file:
                file.writelines(lines)
        yield network, agents


@pytest.fixture
def nodes(tmp_path: Path, hosts: list[RunningAgent]) -> Iterator[list[Node]]:
    """The nodes of a job; their names are their agents' ports."""
    names = [host.url.rpartition(":")[2] for host in hosts]
    found = []
    for name, host in zip(names, hosts, strict=True):
        folder = tmp_path / name
        folder.mkdir()
        node = build_node(folder, host.url)
        node.environment |= {"SLURMD_NODENAME": name, "SLURM_JOB_NODELIST": ",".join(names)}
        node.environment |= {"MESHWRIGHT_PREFLIGHT": "60", "MESHWRIGHT_ADDRESS": "http://127.0.0.1:NODE"}
        (folder / "shown").write_text("\n".join(names) + "\n")  # for `scontrol show hostnames`
        found.append(node)
    yield found
    for host in hosts:
        end_leases(host)


ALL_BY_GRES = {"MESHWRIGHT_EXPECT": "cpu:2", "SLURM_JOB_GPUS": "0,1"}
BAD = ({"MESHWRIGHT_EXPECT": "h100:8"}, {1}, "reason=preflight: it has 0 of 8 h100 devices")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("settings", "exits", "told"), [(ALL_BY_GRES, {0}, ""), BAD])
def test_every_node_hears_the_verdict_on_itself(
    nodes: list[Node], hosts: list[RunningAgent], settings: dict[str, str], exits: set[int], told: str
) -> None:
    ended = {}

    def begin(node: Node) -> None:
        ended[node.folder] = node.run("prolog.sh", **settings)

    threads = [threading.Thread(target=begin, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.returncode for each in ended.values()} == exits, ended
    assert "preflight of all nodes: " in ended[nodes[0].folder].stderr
    assert all(told in node.told() if told else node.told() == "" for node in nodes)
    for node, host in zip(nodes, hosts, strict=True):
        assert [lease["id"] for lease in read_leases(host)] == ([f"slurm-{JOB}"] if exits == {0} else [])
        assert node.run("epilog.sh").returncode == 0
        assert read_leases(host) == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"SLURM_JOB_GPUS": "0"}, "no preflight: the job has devices 0 of this node"),
        ({"SLURM_JOB_GPUS": "0", "MESHWRIGHT_EXPECT": "h100:8"}, "is 'h100:8'"),
        ({"MESHWRIGHT_PREFLIGHT": "90s"}, "no preflight: MESHWRIGHT_PREFLIGHT=90s is no number of seconds"),
    ],
)
def test_a_job_that_is_not_checked_is_told_why(nodes: list[Node], settings: dict[str, str], told: str) -> None:
    yes = nodes[1].stand_in('#!/bin/bash\necho "$@" >>"$0.asked"\n')
    ended = nodes[1].run("prolog.sh", MESHWRIGHT=yes, **settings)
    assert (ended.returncode, told in ended.stderr) == (0, True), ended.stderr
    assert "preflight" not in Path(f"{yes}.asked").read_text()


@pytest.mark.exhaustive
def test_a_node_that_hears_no_verdict_starts_the_job(nodes: list[Node]) -> None:
    waits_less = nodes[1].stand_in(WAITS_LESS)
    alone = nodes[1].run("prolog.sh", MESHWRIGHT_PREFLIGHT="1", MESHWRIGHT=waits_less)
    assert alone.returncode == 0
    assert "this node was not checked\n" in alone.stderr
    assert alone.stdout == ""
    assert "no preflight under lease slurm-4711 has ended yet" in alone.stderr
    assert nodes[1].told() == ""


def test_a_kubernetes_job_starts_on_well_nodes_only(hosts: list[RunningAgent]) -> None:
    (container,) = read_job_pod()["initContainers"]
    container["args"] = [container["args"][0].replace("preflight --hosts", "preflight --expect h100:8 --hosts")]
    addresses = ",".join(host.url.removeprefix("http://") for host in hosts)
    ended = run_pods(container, hosts, HOSTS=addresses)
    assert all(status == 1 and "\nfault: it has 0 of 8 h100" in text for status, text in ended), ended
    assert all(read_leases(host) == [] for host in hosts)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)  # hosts in namespaces are there once, and others may have them
@pytest.mark.skipif(not CAN_RUN, reason=REASON)
def test_a_kubernetes_job_finds_its_nodes_by_the_names_of_its_pods(
    network: tuple[Network, list[RunningAgent]],
) -> None:
    (container,) = read_job_pod()["initContainers"]
    prefixes = [build_prefix(name) for name in network[0].names[:2]]
    ended = run_pods(container, network[1][:2], prefixes=prefixes, HOSTS=read_pod_addresses())
    assert all(status == 0 and "\nok: 2 hosts are well" in text for status, text in ended), ended
    assert all(read_leases(agent) == [] for agent in network[1])


def read_pod_addresses() -> str:
    """Returns the addresses of the file's pods."""
    (container,) = read_job_pod()["initContainers"]
    return next(str(each["value"]) for each in container["env"] if each["name"] == "HOSTS")


def read_job_pod() -> dict[str, Any]:
    (job,) = (each for each in yaml.safe_load_all(PODS.read_text()) if each["kind"] == "Job")
    return dict(job["spec"]["template"]["spec"])


def run_pods(
    container: dict[str, Any],
    hosts: Sequence[RunningAgent],
    *,
    prefixes: Sequence[Sequence[str]] = ((), ()),
    **environment: str,
) -> list[tuple[int, str]]:
    """Runs the init container of a pod on each host; returns how each ended, and what it said."""
    client = Path(sys.executable).parent if any(prefixes) else Path(find_client()).parent
    path = f"{client}{os.pathsep}{os.environ['PATH']}"
    own = {**os.environ, "LEASE": "e9b2f1d0-job", "PATH": path, **environment}
    begun = [
        subprocess.Popen(
            [*prefix, *container["command"], *container["args"]],
            env={**own, "MESHWRIGHT_URL": host.url, "JOB_COMPLETION_INDEX": str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, (host, prefix) in enumerate(zip(hosts, prefixes, strict=True))
    ]
    said = [process.communicate(timeout=120)[0] for process in begun]
    return [(process.returncode, text) for process, text in zip(begun, said, strict=True)]


@pytest.mark.exhaustive
@pytest.mark.timeout(900)  # hosts in namespaces are there once, and others may have them
@pytest.mark.skipif(not CAN_RUN, reason=REASON)
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not here: apt-get install slurm-wlm")
def test_slurm_drains_the_bad_node_and_starts_the_job_on_good_ones(
    network: tuple[Network, list[RunningAgent]],
) -> None:
    with start_slurm(network[0], MESHWRIGHT_PREFLIGHT="90") as cluster:
        first, bad, other = network[0].names
        with signaling(network[1][1], signal.SIGKILL, "pairs"):
            job = cluster.submit(nodes=2)
            wait_for(lambda: "+DRAIN" in cluster.show_node(bad), limit_s=200)
        cluster.start_now(job)
        assert cluster.read_job(job, limit_s=200) == [first, other]
        shown = {name: cluster.show_node(name) for name in network[0].names}
        assert "Reason=preflight: the process of the preflight ended in phase pairs" in shown[bad]
        assert all("DRAIN" not in shown[name] for name in (first, other))
