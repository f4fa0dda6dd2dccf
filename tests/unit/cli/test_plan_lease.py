"""`meshwright lease --plan`: the devices of a kept plan; and plans on the devices of a lease of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import CommandLine

PLAN = ("plan", "dp:2,tp:2", "--count", "4")
LEASE = ("lease", "create", "--purpose", "job 7", "--plan")


@pytest.fixture
def plan(h100: CommandLine, tmp_path: Path) -> str:
    """A file with a plan on the devices 0 to 3."""
    path = tmp_path / "plan.json"
    assert h100(*PLAN, "--save", str(path)).code == 0
    return str(path)


def _lease_away(line: CommandLine, *devices: int) -> str:
    """Somebody else's lease; returns its id."""
    with line.fake.client() as other:
        return other.lease(devices, purpose="job 9", lease_id=f"lease-{devices[0]}").id


def test_a_plan_that_the_agent_keeps_is_named_by_its_fingerprint(h100: CommandLine) -> None:
    fingerprint = h100(*PLAN, "--format=json").json["plans"][0]["fingerprint"]
    assert h100(*LEASE, fingerprint).code == 0
    assert h100(*LEASE, "mw1-0123456789abcdef").code == 1


def test_who_took_a_device_since_is_named_and_the_code_is_1(h100: CommandLine, plan: str) -> None:
    lease_id = _lease_away(h100, 3)
    printed = h100(*LEASE, plan)
    assert (printed.code, printed.out) == (1, "")
    assert lease_id in printed.err
    assert "job 9" in printed.err


@pytest.mark.parametrize("devices", [("0,1",), ("--count", "2")])
def test_a_plan_names_the_devices_and_nothing_else_does(h100: CommandLine, plan: str, devices: tuple[str, ...]) -> None:
    printed = h100("lease", "create", *devices, *LEASE[2:], plan)
    assert printed.code == 2
    assert "a plan names its devices" in printed.err


def test_a_lease_of_ones_own_is_planned_on_also_where_a_command_runs_under_it(
    h100: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, other = _lease_away(h100, 4, 5), _lease_away(h100, 6, 7)
    monkeypatch.setenv("MESHWRIGHT_LEASE", own)
    h100("plan", "dp:2")
    assert h100.body()["lease"] == own
    h100("plan", "dp:8", "--target", "h100:8")
    assert "lease" not in h100.body()
    (tmp_path / "request.json").write_text(f'{{"lease": "{other}"}}')
    h100("plan", "dp:2", "--request", str(tmp_path / "request.json"))
    assert h100.body()["lease"] == other
