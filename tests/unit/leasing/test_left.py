"""Leases that an agent left in its file, as somebody without an agent reads them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from meshwright_agent.leasing.left import read_left_leases
from meshwright_agent.store.database import Store
from meshwright_agent.store.leases import StoredLease
from tests.fakes.databases import build_lease
from tests.fakes.stored import ManualBoot, ManualClock

NAME = "a ?#% store.sqlite3"


def write(folder: Path, *statements: str, count: int = 3) -> Path:
    """Returns the file of an agent that has ended, with leases until 2,000 s after the start of the machine."""

    async def main() -> None:
        store = await Store.open(folder / NAME, clock=ManualClock())
        await store.save_leases([StoredLease(build_lease(number), "boot-1", 2000.0) for number in range(count)])
        await store.close()

    asyncio.run(main())
    with contextlib.closing(sqlite3.connect(folder / NAME, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return folder / NAME


def read(file: Path, boot: ManualBoot | None = None) -> list[str]:
    return [held.lease.purpose for held in read_left_leases(file, boot or ManualBoot())]


def test_those_that_hold_are_told_oldest_first(tmp_path: Path) -> None:
    file = write(tmp_path, "UPDATE leases SET ended = 'by request' WHERE position = 2")
    assert read(file) == ["job 0", "job 2"]


@pytest.mark.parametrize("boot", [ManualBoot(now_s=2000.0), ManualBoot("boot-2")], ids=["its time is up", "a reboot"])
def test_those_that_have_ended_meanwhile_are_not_told(boot: ManualBoot, tmp_path: Path) -> None:
    file = write(tmp_path)
    assert read(file, boot) == []


@pytest.mark.parametrize("column", ["body", "id", "boot_id"])
@pytest.mark.parametrize("value", ["CAST(x'22ff22' AS TEXT)", "x'00ff'", "'garbage'"])
def test_one_that_cannot_be_read_hides_no_other(column: str, value: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"UPDATE leases SET {column} = {value} WHERE position = 2")
    assert read(file) == ["job 0", "job 2"]


def test_a_file_that_is_none_or_of_no_agent_tells_of_no_lease_and_is_not_made(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()
    (tmp_path / "text").write_text("no database" * 1000)
    assert read(tmp_path / "text") == []
    (tmp_path / "empty").touch()
    assert read(tmp_path / "empty") == []


def test_leases_of_an_agent_that_runs_and_writes_are_told(tmp_path: Path) -> None:
    file = write(tmp_path)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as agent:
        agent.execute("BEGIN IMMEDIATE")
        agent.execute("DELETE FROM leases")
        assert read(file) == ["job 0", "job 1", "job 2"]
