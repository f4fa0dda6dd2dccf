"""Preflights of real agents: three on the loopback, and four hosts in network namespaces, one of them bad."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest

from meshwright import Client
from meshwright.cli import main
from meshwright.errors import InvalidRequestError, NotFoundError, SettingsError
from meshwright.fleet import Fleet
from meshwright.preflight import check_hosts
from meshwright.preflight.check import build_coordinator
from meshwright.wire.preflight import PreflightRequest
from tests.agents import RunningAgent, start_agent
from tests.documents import Document, has_shape
from tests.process.bad_hosts import STEADY, planting
from tests.process.jobs import find_port
from tests.process.namespaces import taking_turns

pytestmark = pytest.mark.timeout(900)  # it waits for other tests' preflights


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where a file gives the agent of its number a fault of `bad_children`."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def agents(faults: Path) -> Iterator[list[RunningAgent]]:
    """Three agents; over TCP the last of them lets everybody read, and no more."""
    with taking_turns(), contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                start_agent(cpu_devices=2, **STEADY, FAULT=f"{faults}/{name}", MESHWRIGHT_INSECURE=is_open)
            )
            for name, is_open in (("0", "true"), ("1", "true"), ("2", "false"))
        ]


def list_urls(agents: Sequence[RunningAgent]) -> list[str]:
    """Returns the addresses at which the agents let this process operate."""
    return [agents[0].url, agents[1].url, f"unix://{agents[2].uds}"]


def test_well_hosts_are_well_with_the_axes_of_a_plan_and_everything_is_given_back(
    agents: list[RunningAgent], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"fsdp": "all-gather", "tp": "all-reduce"}
    code, lines = check_with_plan(agents, "fsdp:3,tp:2", axes, tmp_path, capsys)
    assert (code, lines[0][:32]) == (0, "3 hosts are well: 2 devices each")
    assert any("a pair of hosts" in line and "B/s each way" in line for line in lines)
    for agent in agents:
        assert httpx.get(f"{agent.url}/leases").json()["leases"] == []
        run = httpx.get(f"{agent.url}/runs?limit=1").json()["runs"][0]
        result = httpx.get(f"{agent.url}/runs/{run['id']}").json()["result"]
        assert (run["kind"], run["state"]) == ("preflight", "succeeded")
        assert run["progress"]["done"] == run["progress"]["total"]
        assert [device["local_index"] for device in result["devices"]] == [0, 1]
        assert result["network_bytes_per_s"].count(None) == 1  # of three hosts one rests in each round
        assert [(each["axis"], each["case"]) for each in result["collectives"]] == [
            (None, "all_reduce"), (None, "all_gather"), ("fsdp", "all_gather"), ("tp", "all_reduce")
        ]  # fmt: skip
        network = httpx.get(f"{agent.url}/devices").json()["network"]
        assert (network["basis"], network["run_id"]) == ("measured", run["id"])
        rates = [rate / 2 for rate in result["network_bytes_per_s"] if rate is not None]
        assert network["bytes_per_s"] == pytest.approx(median(rates))
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["preflight", "--hosts", ",".join(list_urls(agents)[:2]), "--plan", str(tmp_path / "plan.json")])
    assert "the plan lists 6 devices of " in capsys.readouterr().err


@pytest.mark.parametrize(("build", "verdict", "words"), [
    (lambda urls: ([urls[0], "http://127.0.0.1:9"], None), "fault", "not well: http://127.0.0.1:9"),
    (lambda urls: (urls, "h100:8"), "fault", "it has 0 of 8 h100 devices"),
    (lambda urls: ([urls[0], urls[0].replace("127.0.0.1", "localhost")], None), "unknown", "the same host as"),
])  # fmt: skip
def test_what_agents_know_is_found_before_a_device_is_opened(
    agents: list[RunningAgent], build: Any, verdict: str, words: str
) -> None:
    urls, expect = build(list_urls(agents))
    with Fleet(urls) as fleet:
        report = check_hosts(fleet, expect=expect, port=find_port())
    assert report.verdict == verdict
    assert words in "\n".join([report.summary, *(each.text for host in report.hosts for each in host.findings)])
    assert all(host.result is None for host in report.hosts)


@pytest.mark.exhaustive
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
    environment, command = {**os.environ, "PATH": path}, ["bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert has_shape(done.stdout, expected), f"{done.stdout}\n{done.stderr}"


def test_one_host_is_checked_alone(agents: list[RunningAgent]) -> None:
    with Fleet([agents[0].url]) as fleet:
        report = check_hosts(fleet, port=find_port())
    assert (report.verdict, report.summary[:16]) == ("ok", "1 host is well: ")
    assert report.hosts[0].result is not None
    assert report.hosts[0].result.network_bytes_per_s == ()


def test_a_time_limit_that_no_check_can_keep_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["--timeout", "11", "preflight", "--hosts", "127.0.0.1:9"])
    assert "12 or more" in capsys.readouterr().err


def test_a_plan_that_is_not_there_is_no_fault_of_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"plans": []}')
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["preflight", "--hosts", "127.0.0.1:9", "--plan", str(path)])
    assert "no plan is possible" in capsys.readouterr().err


def test_a_port_in_use_is_named_and_every_host_is_free_again(agents: list[RunningAgent]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Fleet(list_urls(agents)[:2]) as fleet:
        report = check_hosts(fleet, port=server.getsockname()[1], timeout_s=40)
        assert (report.verdict, report.culprits) == ("unknown", ())
        assert "cannot listen on 127.0.0.1" in report.hosts[0].findings[0].text
        assert "--port" in report.hosts[0].findings[0].action
    assert all(httpx.get(f"{agent.url}/leases").json()["leases"] == [] for agent in agents)


def test_a_reserved_host_is_not_blamed_and_no_other_stays_reserved(agents: list[RunningAgent]) -> None:
    with Client(agents[1].url) as client, client.hold("all", purpose="a job"), Fleet(list_urls(agents)) as fleet:
        report = check_hosts(fleet, port=find_port())
        assert report.verdict == "unknown"
        assert "(a job)" in report.hosts[1].findings[0].text
        assert httpx.get(f"{agents[0].url}/leases").json()["leases"] == []


def test_hosts_that_grant_no_operate_are_named_and_not_blamed(agents: list[RunningAgent]) -> None:
    with Fleet([agents[0].url, agents[2].url]) as fleet:
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


def test_runs_are_listed_without_the_names_of_very_many_hosts(agents: list[RunningAgent]) -> None:
    hosts = tuple(f"node{number}.example" for number in range(2000))
    with Client(agents[0].url) as client:
        client.lease("all", purpose="large", lease_id="large")
        request = PreflightRequest(lease="large", hosts=hosts, process_id=1, coordinator="127.0.0.1:9")
        run = client.cancel_run(client.start_preflight(request).id)
        client.end_lease("large")
    assert run.request["lease"] == "large"
    assert set(run.request["hosts"]) == {"sha256"}


@pytest.mark.parametrize(("urls", "found"), [
    (("http://10.0.0.1:8790", "http://10.0.0.2:8790"), "10.0.0.1:8476"),
    (("http://[fd00::1]:8790",), "[fd00::1]:8476"),
    (("http://127.0.0.1:1", "http://localhost:2"), "127.0.0.1:8476"),
])  # fmt: skip
def test_the_coordinator_has_the_address_of_the_first_host(urls: tuple[str, ...], found: str) -> None:
    assert build_coordinator(urls, 8476) == found


@pytest.mark.parametrize("urls", [("unix:///run/agent.sock", "http://a:1"), ("http://localhost:1", "http://b:1")])
def test_a_first_host_that_others_cannot_reach_is_refused(urls: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="name it by"):
        build_coordinator(urls, 8476)


def check_with_plan(
    agents: Sequence[RunningAgent], mesh: str, axes: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[object, list[str]]:
    """Returns the exit code and the lines of a check with the plan of a mesh, whose axes have each been measured."""
    hosts, path = ["--hosts", ",".join(list_urls(agents))], str(folder / "plan.json")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["plan", mesh, *hosts, "--save", path])
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHWRIGHT_LEASE", "of-one-host")  # of `meshwright lease run`
        with pytest.raises(SystemExit) as ended:
            main(["preflight", *hosts, "--plan", path, "--expect", "cpu:2", "--port", str(find_port())])
    lines = capsys.readouterr().out.splitlines()
    for axis, case in axes.items():
        assert any(f"{case} over axis {axis}: " in line and "slowest" in line for line in lines), lines
    return ended.value.code, lines


@pytest.mark.exhaustive
def test_a_host_that_adds_wrongly_is_named_and_a_plans_axes_are_measured_all_the_same(
    agents: list[RunningAgent], faults: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with planting(faults / "1", "misadding"):
        axes = {"pp": "permute", "ep": "all-to-all"}
        code, lines = check_with_plan(agents, "pp:3,ep:2", axes, tmp_path, capsys)
    assert (code, lines[0]) == (1, f"1 of 3 hosts is not well: {agents[1].url}"), lines
    assert lines[1].startswith(f"  {agents[1].url} (fault): one of its devices produced 1 wrong elements")


@pytest.mark.exhaustive
def test_a_driver_that_hangs_is_its_hosts_fault(agents: list[RunningAgent], faults: Path) -> None:
    with planting(faults / "1", "hanging"), Fleet(list_urls(agents)) as fleet:
        report = check_hosts(fleet, port=find_port(), timeout_s=60)
    assert [host.address for host in report.culprits] == [agents[1].url], report
    assert report.hosts[1].findings[0].text.startswith("it was in phase open for ")
