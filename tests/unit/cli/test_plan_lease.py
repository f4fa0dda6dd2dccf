"""`meshwright plan --lease`: planned and reserved in one step, or not at all; `--in-lease`: on one's own devices."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from meshwright.testing import FakeAgent, build_devices
from meshwright.wire.leases import LeaseRequest
from tests.unit.cli.conftest import CommandLine, Printed

PLAN = ("plan", "dp:2,tp:2", "--count", "4")
KEYED = (*PLAN, "--lease", "job 7", "--key", "job-7")


@pytest.fixture
def h100(meshwright: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.delenv("MESHWRIGHT_LEASE", raising=False)
    meshwright.fake = FakeAgent("h100:8")
    return meshwright


def _lease_away(line: CommandLine, *devices: int, **fields: object) -> str:
    """Somebody else's lease; returns its id."""
    request = LeaseRequest.model_validate({"purpose": "job 9", "devices": devices, **fields})
    return line.fake.leases.create(request, None, line.fake.devices)[0].id


def _list_leased(line: CommandLine) -> list[tuple[str, list[int]]]:
    leases = line.fake.leases.list().leases
    return [(lease.purpose, [device.local_index for device in lease.devices]) for lease in leases]


def _find_id(printed: Printed) -> str:
    return re.findall(r"^(lease-\w+) has device", printed.out, re.MULTILINE)[0]


def test_a_plans_devices_are_reserved_in_the_same_step_and_the_job_is_told_its_lease(h100: CommandLine) -> None:
    printed = h100(*PLAN, "--lease", "slurm job 7", "--ttl", "10min")
    assert printed.code == 0
    assert "lease-00000001 has device 0, 1, 2, 3 for 10 min: slurm job 7\n" in printed.out
    assert "  export MESHWRIGHT_LEASE=lease-00000001\n" in printed.out
    assert _list_leased(h100) == [("slurm job 7", [0, 1, 2, 3])]
    assert h100.body()["ttl_s"] == 600


def test_devices_are_leased_by_their_uuids_where_they_have_some(h100: CommandLine) -> None:
    h100(*PLAN, "--lease", "x")
    assert h100.body()["devices"] == [device.uuid for device in build_devices("h100:8").devices[:4]]


def test_without_a_time_a_lease_lasts_an_hour(h100: CommandLine) -> None:
    h100(*PLAN, "--lease", "x")
    assert h100.fake.leases.list().leases[0].expires_in_s == pytest.approx(3600, abs=60)


def test_json_has_the_lease_beside_the_agents_answer(h100: CommandLine) -> None:
    reply = h100("--json", *PLAN, "--lease", "x").json
    assert (reply["lease"]["id"], reply["lease"]["purpose"]) == ("lease-00000001", "x")
    without = h100("--json", *PLAN, "--in-lease", "lease-00000001").json
    assert {name: value for name, value in reply.items() if name != "lease"}["plans"] == without["plans"]
    assert "lease" not in without


@pytest.mark.parametrize("option", [("--code",), ("--export", "jax", "--model", "llama3-8b", "--seq", "128")])
def test_where_stdout_is_code_alone_the_lease_is_told_on_stderr(h100: CommandLine, option: tuple[str, ...]) -> None:
    batch = () if option == ("--code",) else ("--batch", "8")
    printed = h100("plan", "fsdp:8", *option, *batch, "--lease", "x")
    assert "lease-00000001 has device" in printed.err
    assert "lease-0000" not in printed.out


@pytest.mark.parametrize(
    "asked", [("plan", "dp:9"), ("plan", "fsdp:8", "--model", "llama3-405b", "--batch", "8"), ("plan", "dp:3")]
)
def test_what_is_infeasible_or_does_not_fit_is_1_and_reserves_nothing(
    h100: CommandLine, asked: tuple[str, ...], tmp_path: Path
) -> None:
    printed = h100(*asked, "--lease", "x")
    assert (printed.code, _list_leased(h100)) == (1, [])
    assert "export MESHWRIGHT_LEASE" not in printed.out


def test_a_plan_that_does_not_fit_says_that_nothing_is_reserved(h100: CommandLine) -> None:
    printed = h100("plan", "fsdp:8", "--model", "llama3-405b", "--batch", "8", "--seq", "4096", "--lease", "x")
    assert printed.code == 1
    assert "nothing is reserved" in printed.err


def test_who_has_the_devices_is_named_and_the_code_is_1(h100: CommandLine) -> None:
    lease_id = _lease_away(h100, 0)
    printed = h100("plan", "dp:2", "--devices", "0,1", "--lease", "x")
    assert (printed.code, printed.out) == (1, "")
    assert lease_id in printed.err
    assert "job 9" in printed.err
    assert len(_list_leased(h100)) == 1


def test_who_was_quicker_between_plan_and_lease_has_the_devices(
    h100: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made; before its lease comes, somebody else takes a device."""
    create = h100.fake.leases.create

    def be_late(request: LeaseRequest, *rest: Any, **more: Any) -> Any:
        monkeypatch.setattr(h100.fake.leases, "create", create)
        _lease_away(h100, 3)
        return create(request, *rest, **more)

    monkeypatch.setattr(h100.fake.leases, "create", be_late)
    printed = h100(*PLAN, "--lease", "x", "-o", str(tmp_path / "plan.json"))
    assert (printed.code, printed.out) == (1, "")
    assert "job 9" in printed.err
    assert not (tmp_path / "plan.json").exists()
    assert _list_leased(h100) == [("job 9", [3])]


def test_a_lease_that_could_not_be_told_is_ended(h100: CommandLine, tmp_path: Path) -> None:
    printed = h100(*PLAN, "--lease", "x", "-o", str(tmp_path / "absent" / "plan.json"))
    assert (printed.code, _list_leased(h100)) == (2, [])


def test_asked_again_with_its_key_the_plan_and_the_lease_are_the_same(h100: CommandLine) -> None:
    _lease_away(h100, 7)
    first, again = h100(*KEYED), h100(*KEYED)
    assert (first.code, again.code) == (0, 0)
    assert _find_id(first) == _find_id(again)
    assert first.out.splitlines()[0] == again.out.splitlines()[0]
    assert _list_leased(h100) == [("job 9", [7]), ("job 7", [0, 1, 2, 3])]


def test_without_a_key_or_with_another_each_is_a_reservation_of_its_own(h100: CommandLine) -> None:
    h100(*KEYED)
    h100(*PLAN, "--lease", "job 7", "--key", "job-7b")
    assert _list_leased(h100) == [("job 7", [0, 1, 2, 3]), ("job 7", [4, 5, 6, 7])]
    assert h100(*PLAN, "--lease", "job 7").code == 1


def test_a_key_that_made_another_lease_is_refused(h100: CommandLine) -> None:
    h100(*KEYED)
    printed = h100(*KEYED, "--ttl", "2h")
    assert (printed.code, len(_list_leased(h100))) == (1, 1)
    assert "job-7" in printed.err


def test_a_lease_of_ones_own_is_planned_on_also_where_a_command_runs_under_it(
    h100: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _lease_away(h100, 4, 5)
    h100("plan", "dp:2", "--in-lease", own)
    assert h100.body()["lease"] == own
    monkeypatch.setitem(os.environ, "MESHWRIGHT_LEASE", own)
    h100("plan", "dp:2")
    assert h100.body()["lease"] == own
    h100("plan", "dp:8", "--target", "h100:8")
    assert "lease" not in h100.body()
    h100("plan", "dp:2", "--count", "2", "--lease", "another")
    assert "lease" not in json.loads(h100.fake.requests[-2].body or b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--lease", "x", "--target", "h100:8"), "--target plans on other hardware"),
        (("--lease", "x", "--targets", "h100:8"), "--targets plans on other hardware"),
        (("--lease", "x", "--hosts", "a,b"), "--fleet plans on other hardware"),
        (("--lease", "x", "--local", "--target", "h100:8"), "leave one out"),
        (("--in-lease", "lease-1", "--target", "h100:8"), "--target plans on other hardware"),
        (("--lease", "x", "--in-lease", "lease-1"), "reserved already"),
        (("--lease", "lease-0123456789abcdef"), "--in-lease"),
        (("--ttl", "10min"), "--lease"),
        (("--key", "k"), "--lease"),
        (("--lease", "x", "--ttl", "10"), "30min"),
        (("--lease", "x", "--ttl", "31d"), "2592000"),
        (("--lease", "x", "--key", "ä"), "printable ASCII"),
        (("--lease", ""), "purpose"),
    ],
)
def test_a_wrong_argument_is_2_and_asks_nobody(h100: CommandLine, arguments: tuple[str, ...], said: str) -> None:
    printed = h100("plan", "dp:8", *arguments)
    assert (printed.code, printed.out, h100.fake.requests) == (2, "", [])
    assert said in printed.err
