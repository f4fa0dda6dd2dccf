"""`--hosts` on fake agents, one for each host."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import httpx
import pytest

from meshwright import Client
from meshwright.testing import FakeAgent
from tests.contract.client.fleets import build_fakes
from tests.unit.cli.conftest import CommandLine, Printed

FLEET = "n10,n2,n1"


@dataclass
class FleetLine(CommandLine):
    """`meshwright` on several fakes, by their addresses."""

    fakes: dict[str, FakeAgent] = field(default_factory=lambda: build_fakes("n1", "n2", "n10"))

    def connect(self, url: str | None, timeout_s: float | None, max_retries: int) -> Client:
        self.asked.append((url, timeout_s, max_retries))
        return self.fakes[str(url)].client(max_retries=max_retries)


@pytest.fixture
def fleet(meshwright: CommandLine, monkeypatch: pytest.MonkeyPatch) -> FleetLine:
    monkeypatch.setenv("MESHWRIGHT_FLEET", FLEET)
    return FleetLine(meshwright.capture)


def rows(printed: Printed) -> list[list[str]]:
    return [line.split() for line in printed.out.splitlines() if line.startswith("n") or "http://" in line]


def test_devices_shows_every_host_and_what_they_are_together(fleet: FleetLine) -> None:
    printed = fleet("devices", "--hosts", "env")
    expected = [[name, f"http://{name}:8790", "ok", "4", "cpu", "healthy"] for name in ("n10", "n2", "n1")]
    assert [row[:6] for row in rows(printed)] == expected
    assert printed.out.endswith("3 of 3 hosts: 12 cpu devices in 3 hosts\n")
    assert (printed.code, printed.err) == (0, "")


def test_a_host_that_fails_stands_in_the_table_with_the_reason_and_makes_it_1(fleet: FleetLine) -> None:
    fleet.fakes["http://n2:8790"].fail_next(httpx.ConnectError("refused"), times=2)
    printed = fleet("devices", "--hosts", "env")
    (row,) = [row for row in rows(printed) if "http://n2:8790" in row]
    assert row[:2] == ["http://n2:8790", "unreachable"]
    assert "no answer from" in " ".join(row)
    assert "2 of 3 hosts: 8 cpu devices in 2 hosts" in printed.out
    assert printed.code == 1


def test_without_any_answer_the_table_stands_and_it_is_2(fleet: FleetLine) -> None:
    for fake in fleet.fakes.values():
        fake.fail_next(httpx.RemoteProtocolError("lost"), times=2)
    printed = fleet("devices", "--hosts", "env")
    assert len(rows(printed)) == 3
    assert "3 of 3 hosts of the fleet did not answer" in printed.err
    assert printed.code == 2


def test_hosts_that_make_no_topology_are_shown_and_refused(fleet: FleetLine) -> None:
    fleet.fakes |= build_fakes("n2", what="h100:2")
    printed = fleet("devices", "--hosts", "env")
    assert len(rows(printed)) == 3
    assert "cpu on n10, n1, gpu on n2" in printed.err
    assert printed.code == 1
    as_json = fleet("devices", "--hosts", "env", "--format=json")
    assert [host["state"] for host in as_json.json["hosts"]] == ["ok"] * 3
    assert (json.loads(as_json.err)["code"], as_json.code) == ("plan_infeasible", 1)


def test_kinds_that_differ_are_shown_and_warned_of(fleet: FleetLine) -> None:
    fake = fleet.fakes["http://n2:8790"]
    first, *others = fake.devices.devices
    mixed = (first.model_copy(update={"kind": "cpu of another make"}), *others)
    fake.devices = fake.devices.model_copy(update={"devices": mixed})
    printed = fleet("devices", "--hosts", "env")
    assert "1× cpu of another make, 3× cpu" in printed.out
    assert "warning: the hosts have devices of 2 kinds" in printed.err


def test_json_has_every_host_with_what_its_agent_said(fleet: FleetLine) -> None:
    fleet.fakes["http://n1:8790"].fail_next(httpx.RemoteProtocolError("lost"), times=2)
    printed = fleet("devices", "--hosts", "env", "--format=json")
    hosts = {host["url"]: host for host in printed.json["hosts"]}
    assert {host["state"] for host in hosts.values()} == {"ok", "unreachable"}
    assert hosts["http://n1:8790"]["devices"] is None
    assert len(hosts["http://n2:8790"]["devices"]["devices"]) == 4
    assert [warning["code"] for warning in printed.json["warnings"]] == ["hosts_missing"]
    assert printed.code == 1


def test_a_plan_over_the_fleet_is_on_all_its_devices(fleet: FleetLine) -> None:
    printed = fleet("plan", "--hosts", "env", "dp:3,tp:4")
    assert printed.out.startswith("dp:3 × tp:4 on 12 cpu\nplan mw1-")
    assert "their agents do not have it: keep it with --save FILE" in printed.out
    assert printed.code == 0


def test_a_plan_that_cannot_be_is_1_and_a_fleet_that_is_not_there_2(fleet: FleetLine) -> None:
    assert fleet("plan", "--hosts", "env", "dp:64").code == 1
    for fake in fleet.fakes.values():
        fake.fail_next(httpx.RemoteProtocolError("lost"), times=2)
    assert fleet("plan", "--hosts", "env", "dp:12").code == 2


@pytest.mark.parametrize(("arguments", "words"), [
    (["devices", "--hosts", "env", "--url", "http://n1:8790"], "--url names one"),
    (["devices", "--hosts", "env", "--topology"], "it is of one host"),
    (["plan", "--hosts", "n1", "--target", "v5p:4x4x4", "dp:64"], "target is not of that"),
    (["plan", "--hosts", "n1", "--offline", "dp:4"], "--offline does not"),
    (["plan", "dp:8", "--hosts", "env", "--model", "gpt2", "--global-batch-size", "8"], "model is not of that"),
    (["plan", "--hosts", "n[1-2]", "dp:4"], "scontrol show hostnames"),
    (["plan", "--hosts", "", "dp:4"], "no address is given"),
])  # fmt: skip
def test_what_cannot_be_meant_is_usage(fleet: FleetLine, arguments: list[str], words: str) -> None:
    printed = fleet(*arguments)
    assert words in " ".join(printed.err.split())
    assert printed.code == 2
    assert not any(fake.requests for fake in fleet.fakes.values())


def test_no_addresses_is_2_with_an_example(fleet: FleetLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHWRIGHT_FLEET")
    printed = fleet("devices", "--hosts", "env")
    assert 'such as "node7,node8:8790"' in printed.err
    assert printed.code == 2
