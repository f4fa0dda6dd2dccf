"""Whose a lease is: who may renew and end it, and who may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import ForbiddenError, LeaseNotFoundError
from meshwright_agent.leasing.ownership import Claimant
from tests.unit.leasing.leases import build_lease
from tests.unit.leasing.scene import Scene, run_scene

PROLOG, TRAINER = Claimant("prolog", is_admin=False), Claimant("trainer", is_admin=False)
ADMIN, NOBODY = Claimant("root", is_admin=True), Claimant("", is_admin=False)


@pytest.mark.parametrize("owner", ["prolog", ""])
@pytest.mark.parametrize("who", [PROLOG, TRAINER, ADMIN, NOBODY])
def test_a_lease_is_its_takers_and_one_without_a_taker_everybodys(owner: str, who: Claimant) -> None:
    lease = build_lease(owner=owner)
    if (owner, who) == ("prolog", TRAINER):
        with pytest.raises(ForbiddenError, match=r"was taken by prolog, and trainer asks; .*the scope admin") as caught:
            who.check(lease)
        assert "prolog" in caught.value.hint
    else:
        who.check(lease)


def test_a_lease_is_still_its_takers_after_a_restart_and_a_refusal_changes_nothing(tmp_path: Path) -> None:
    async def take(scene: Scene) -> str:
        return (await scene.lease([0], owner="prolog", ttl_s=60)).id

    lease_id = run_scene(tmp_path, take)

    async def dispute(scene: Scene) -> None:
        with pytest.raises(ForbiddenError):
            await scene.desk.end(lease_id, by=TRAINER)
        with pytest.raises(ForbiddenError):
            await scene.desk.renew(lease_id, 600, by=TRAINER)
        assert (await scene.desk.get(lease_id)).expires_in_s == 60
        assert (await scene.desk.renew(lease_id, 90, by=PROLOG)).expires_in_s == 90
        assert (await scene.desk.end(lease_id, by=PROLOG)).owner == "prolog"
        with pytest.raises(LeaseNotFoundError):  # what has ended is nobody's secret
            await scene.desk.end(lease_id, by=TRAINER)
        other = await scene.lease([1], owner="prolog")
        assert (await scene.desk.end(other.id, by=ADMIN)).id == other.id

    run_scene(tmp_path, dispute)
