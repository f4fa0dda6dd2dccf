"""Preflights of real agents: three on the loopback, and four hosts in network namespaces, one of them bad."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright import Client
from meshwright.cli import main
from meshwright.errors import InvalidRequestError, NotFoundError, SettingsError
from meshwright.fleet import Fleet
from meshwright.preflight.check import build_coordinator, check_hosts
from meshwright.topology.chips import parse_chip_count
from meshwright.wire.preflight import PreflightRequest
from tests.agents import RunningAgent, start_agent, wait_for
from tests.documents import Document, has_shape
from tests.process import namespaces
from tests.process.namespaces import Network, start_hosts

COMMAND = (sys.executable, "-c", "from meshwright.cli import main; main()")
LYING = Path(__file__).with_name("lying_child")


@pytest.fixture(scope="module")
def agents() -> Iterator[list[RunningAgent]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(start_agent(cpu_devices=2)) for _ in range(3)]


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def list_urls(agents: Sequence[RunningAgent]) -> list[str]:
    return [agent.url for agent in agents]


def test_well_hosts_are_well_and_everything_is_given_back(
    agents: list[RunningAgent], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--hosts", ",".join(list_urls(agents)), "--expect", "2*cpu", "--port", str(find_port())]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["preflight", *options])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 hosts are well: 2 devices each")
    assert any("a pair of hosts" in line and "MB/s" in line for line in lines)
    for agent in agents:
        assert httpx.get(f"{agent.url}/leases").json()["leases"] == []
        run = httpx.get(f"{agent.url}/runs?limit=1").json()["runs"][0]
        result = httpx.get(f"{agent.url}/runs/{run['id']}").json()["result"]
        assert (run["kind"], run["state"]) == ("preflight", "succeeded")
        assert [device["local_index"] for device in result["devices"]] == [0, 1]
        assert result["network_bytes_per_s"].count(None) == 1  # of three hosts one rests in each round
        assert {each["case"] for each in result["collectives"]} == {"all_reduce", "all_gather"}


@pytest.mark.parametrize(
    ("build", "verdict", "words"),
    [
        (lambda urls: ([urls[0], "http://127.0.0.1:9"], None), "fault", "not well: http://127.0.0.1:9"),
        (lambda urls: (urls, "8*h100"), "fault", "it has 0 of 8*h100 devices"),
        (lambda urls: ([urls[0], urls[0].replace("127.0.0.1", "localhost")], None), "unknown", "the same host as"),
    ],
)
def test_what_agents_know_is_found_before_a_device_is_opened(
    agents: list[RunningAgent], build: Any, verdict: str, words: str
) -> None:
    urls, expect = build(list_urls(agents))
    with Fleet(urls) as fleet:
        report = check_hosts(fleet, expect=expect and parse_chip_count(expect), port=find_port())
    assert report.verdict == verdict
    assert words in "\n".join([report.summary, *(each.text for host in report.hosts for each in host.findings)])
    assert all(host.result is None for host in report.hosts)


def test_the_page_leads_from_nothing_to_a_verdict_on_three_hosts(tmp_path: Path) -> None:
    page = Document.read("docs/how-to/preflight.md")
    script, expected = page.blocks("sh")[0].text, page.blocks("text")[0].text
    ports = [find_port() for _ in range(3)]
    for number, port in enumerate(ports, start=1):
        script = script.replace(f"127.0.0.1:879{number}", f"127.0.0.1:{port}")
    table = " ".join(map(str, ports))
    script = f"ports=(0 {table})\n" + script.replace("879$number", "${ports[$number]}").replace("/tmp/", f"{tmp_path}/")
    script = script.replace("meshwright preflight", f"meshwright preflight --port {find_port()}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PATH": path},
        check=False,
    )
    assert has_shape(done.stdout, expected), f"{done.stdout}\n{done.stderr}"


def test_one_host_is_checked_alone(agents: list[RunningAgent]) -> None:
    with Fleet([agents[0].url]) as fleet:
        report = check_hosts(fleet, port=find_port())
    assert (report.verdict, report.summary[:16]) == ("ok", "1 host is well: ")
    assert report.hosts[0].result is not None
    assert report.hosts[0].result.network_bytes_per_s == ()


def test_a_port_in_use_is_named_and_every_host_is_free_again(agents: list[RunningAgent]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Fleet(list_urls(agents)) as fleet:
        report = check_hosts(fleet, port=server.getsockname()[1], timeout_s=40)
        assert report.verdict == "fault"
        assert "cannot listen on 127.0.0.1" in report.culprits[0].findings[0].text
        assert "--port" in report.culprits[0].findings[0].action
    assert all(httpx.get(f"{agent.url}/leases").json()["leases"] == [] for agent in agents)


def test_a_reserved_host_is_not_blamed_and_no_other_stays_reserved(agents: list[RunningAgent]) -> None:
    with Client(agents[2].url) as client, client.hold("all", purpose="a job"), Fleet(list_urls(agents)) as fleet:
        report = check_hosts(fleet, port=find_port())
        assert report.verdict == "unknown"
        assert "(a job)" in report.hosts[2].findings[0].text
        assert httpx.get(f"{agents[0].url}/leases").json()["leases"] == []


def test_hosts_that_grant_no_operate_are_named_and_not_blamed(agents: list[RunningAgent]) -> None:
    with start_agent(cpu_devices=2, MESHWRIGHT_INSECURE="false") as closed, Fleet([agents[0].url, closed.url]) as fleet:
        report = check_hosts(fleet, port=find_port())
    assert report.verdict == "unknown"
    assert report.hosts[1].state == "unchecked"
    assert "scope" in report.hosts[1].findings[0].text
    assert httpx.get(f"{agents[0].url}/leases").json()["leases"] == []


def test_a_host_takes_part_only_under_the_callers_lease_of_all_devices(agents: list[RunningAgent]) -> None:
    request = PreflightRequest(lease="part", hosts=("a",), process_id=0, coordinator="127.0.0.1:8476")
    with Client(agents[0].url) as client:
        with pytest.raises(NotFoundError, match="lease 'part', which is not here"):
            client.start_preflight(request)
        client.lease([0], purpose="half", lease_id="part")
        try:
            with pytest.raises(InvalidRequestError, match="does not cover device 1"):
                client.start_preflight(request)
        finally:
            client.end_lease("part")


@pytest.mark.parametrize(
    ("urls", "found"),
    [
        (("http://10.0.0.1:8790", "http://10.0.0.2:8790"), "10.0.0.1:8476"),
        (("http://[fd00::1]:8790",), "[fd00::1]:8476"),
        (("http://127.0.0.1:1", "http://localhost:2"), "127.0.0.1:8476"),
    ],
)
def test_the_coordinator_has_the_address_of_the_first_host(urls: tuple[str, ...], found: str) -> None:
    assert build_coordinator(urls, 8476) == found


@pytest.mark.parametrize("urls", [("unix:///run/agent.sock", "http://a:1"), ("http://localhost:1", "http://b:1")])
def test_a_first_host_that_others_cannot_reach_is_refused(urls: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="name it by"):
        build_coordinator(urls, 8476)


# ---- hosts in namespaces, one of them bad ---------------------------------------------------------------------------

in_namespaces = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not namespaces.CAN_RUN, reason=namespaces.REASON),
    pytest.mark.xdist_group("namespaces"),
]
BAD = 2


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Network, list[RunningAgent]]]:
    with start_hosts(4) as found:
        yield found


def check(agents: Sequence[RunningAgent]) -> tuple[int, dict[str, Any]]:
    """Returns the exit code of the command and its report."""
    command = [*COMMAND, "preflight", "--hosts", ",".join(list_urls(agents))]
    done = subprocess.run(
        [*command, "--format", "json", "--timeout", "90"], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def list_blamed(report: dict[str, Any]) -> dict[int, str]:
    """Returns place → text of each host that is at fault or missing."""
    return {
        place: finding["text"]
        for place, host in enumerate(report["hosts"])
        for finding in host["findings"]
        if finding["state"] in ("fault", "missing")
    }


def find_child(agent: RunningAgent) -> int | None:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == agent.pid and "children.preflight" in (folder / "cmdline").read_text():
                return int(folder.name)
    return None


@contextlib.contextmanager
def signaling(agent: RunningAgent, number: int, phase: str) -> Iterator[None]:
    """Sends a signal to the agent's process when the next preflight is in a phase."""

    def send() -> None:
        def is_there() -> bool:
            run = httpx.get(f"{agent.url}/runs?limit=1").json()["runs"]
            return bool(run) and run[0]["state"] == "running" and run[0]["progress"]["message"] == phase

        wait_for(is_there, limit_s=60)
        child = find_child(agent)
        assert child is not None
        os.kill(child, number)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


@contextlib.contextmanager
def limiting_cpu(agent: RunningAgent, share: float) -> Iterator[None]:
    """Gives an agent and its children a share of one CPU: cgroup v1's cfs quota, or v2's cpu.max."""
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    is_old = old.is_dir()
    group = (old if is_old else new) / f"meshwright-{agent.pid}"
    try:
        group.mkdir()
        quota = int(100_000 * share)
        if is_old:
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} 100000")
        (group / "cgroup.procs").write_text(str(agent.pid))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield
    finally:
        ((old if is_old else new) / "cgroup.procs").write_text(str(agent.pid))


class TestHostsInNamespaces:
    pytestmark = in_namespaces

    def test_clean(self, hosts: tuple[Network, list[RunningAgent]]) -> None:
        code, report = check(hosts[1])
        assert (code, list_blamed(report)) == (0, {}), report

    def test_a_slow_link(self, hosts: tuple[Network, list[RunningAgent]]) -> None:
        network, agents = hosts
        network.limit_rate(BAD, "100mbit")
        try:
            code, report = check(agents)
        finally:
            network.restore_rate(BAD)
        assert (code, list(list_blamed(report))) == (1, [BAD]), report
        assert list_blamed(report)[BAD].startswith("network to its partners")

    def test_a_slow_host(self, hosts: tuple[Network, list[RunningAgent]]) -> None:
        with limiting_cpu(hosts[1][BAD], 0.08):
            code, report = check(hosts[1])
        assert (code, list(list_blamed(report))) == (1, [BAD]), report

    @pytest.mark.parametrize("phase", ["open", "pairs"])
    def test_a_dead_process(self, hosts: tuple[Network, list[RunningAgent]], phase: str) -> None:
        with signaling(hosts[1][BAD], signal.SIGKILL, phase):
            code, report = check(hosts[1])
        assert (code, list(list_blamed(report))) == (1, [BAD]), report
        assert "was killed by SIGKILL" in list_blamed(report)[BAD]

    def test_a_stuck_process(self, hosts: tuple[Network, list[RunningAgent]]) -> None:
        with signaling(hosts[1][BAD], signal.SIGSTOP, "pairs"):
            code, report = check(hosts[1])
        assert (code, list(list_blamed(report))) == (1, [BAD]), report
        assert "is stuck: no sign of it for 15 s" in list_blamed(report)[BAD]

    def test_an_unreachable_host(self, hosts: tuple[Network, list[RunningAgent]]) -> None:
        network, agents = hosts
        namespaces.run(f"ip link set {network.outside(BAD)} down")
        try:
            code, report = check(agents)
        finally:
            namespaces.run(f"ip link set {network.outside(BAD)} up")
            time.sleep(2)
        assert (code, list(list_blamed(report))) == (1, [BAD]), report

    def test_a_closed_port(self, hosts: tuple[Network, list[RunningAgent]]) -> None:
        """Between two hosts only: both are named, since nobody can tell whose firewall it is."""
        network, agents = hosts
        route = f"blackhole {network.addresses[3]}/32"
        namespaces.run(f"ip -n {network.names[BAD]} route add {route}")
        try:
            code, report = check(agents)
        finally:
            namespaces.run(f"ip -n {network.names[BAD]} route del {route}")
        assert (code, set(list_blamed(report))) == (1, {BAD, 3}), report
        assert "no TCP connection between it and" in list_blamed(report)[BAD]

    def test_every_host_is_free_and_healthy_after_all_that(self, hosts: tuple[Network, list[RunningAgent]]) -> None:
        for agent in hosts[1]:
            assert httpx.get(f"{agent.url}/leases").json()["leases"] == []
            wait_for(lambda agent=agent: find_child(agent) is None, limit_s=10)
            assert httpx.get(f"{agent.url}/health").json()["state"] == "healthy"


@pytest.mark.exhaustive
def test_a_wrong_content_is_the_fault_of_the_device_that_sent_it() -> None:
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(start_agent(cpu_devices=2)) for _ in range(2)]
        path = os.pathsep.join([str(LYING), os.environ.get("PYTHONPATH", "")])
        liar = stack.enter_context(start_agent(cpu_devices=2, PYTHONPATH=path))
        with Fleet(list_urls([agents[0], liar, agents[1]])) as fleet:
            report = check_hosts(fleet, port=find_port())
    assert [host.address for host in report.culprits] == [liar.url]
    assert report.hosts[1].findings[0].text == "device 0 produced 1 wrong elements (network to its partners)"
