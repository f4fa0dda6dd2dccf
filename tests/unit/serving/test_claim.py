"""The claim on a host: one at a time for a sysfs, ended by its release."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright_agent.serving.claim import HostTakenError, claim_host


def test_a_claim_ends_with_its_release_and_another_host_is_not_concerned(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    claim = claim_host(here)
    claim.tell(["http://127.0.0.1:1"])
    claim_host(there).release()
    with pytest.raises(HostTakenError, match=r"which answers on http://127\.0\.0\.1:1"):
        claim_host(here)
    claim.release()
    claim_host(here).release()


def test_without_sysfs_nothing_can_be_claimed_and_the_reason_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostTakenError, match=r"No such file or directory.*mount sysfs"):
        claim_host(tmp_path / "nowhere")
