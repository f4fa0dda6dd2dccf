from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from meshwright_agent.runs.ledger import RunLedger
from meshwright_agent.store.database import Store
from meshwright_agent.store.idempotency import KeyUse
from meshwright_agent.store.unreadable import LOGGED_MOST, NAMED_MOST, UnreadableRows, tell_unreadable
from tests.fakes.databases import EVENTS, LEASES, NAME, RUNS, start_on, write_database
from tests.fakes.stored import ManualClock, build_run
from tests.unit.store.opening import run_with_store


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_database(tmp_path_factory.mktemp("sound"))


def damage(sound: Path, folder: Path, *statements: str) -> Path:
    """Returns a copy of the database after these statements."""
    path = folder / NAME
    shutil.copy(sound, path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def read(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_a_sound_file_has_no_such_row(sound: Path, tmp_path: Path) -> None:
    damage(sound, tmp_path)
    assert start_on(tmp_path) == "healthy: writes and reads"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE leases SET body = 'garbage'", f"{LEASES - 1} in leases"),
        ("UPDATE leases SET until_s = 'x'", f"{LEASES - 1} in leases"),
        ("UPDATE leases SET until_s = 9e999", f"{LEASES - 1} in leases"),
        ("UPDATE leases SET boot_id = CAST(x'ff' AS TEXT)", f"{LEASES - 1} in leases"),
        ("UPDATE leases SET body = (SELECT body FROM leases LIMIT 1) WHERE position = 2", "1 in leases"),
        ("UPDATE records SET body = 'garbage'", "1 in records"),
        ("UPDATE records SET run_id = x'00'", "1 in records"),
        ("UPDATE runs SET body = 'garbage'", f"{RUNS} in runs"),
        ("UPDATE runs SET body = '[]'", f"{RUNS} in runs"),
        ("UPDATE runs SET body = x'00ff'", f"{RUNS} in runs"),
        ("UPDATE runs SET body = CAST(x'22ff22' AS TEXT) WHERE position = 3", "1 in runs"),
        ("UPDATE events SET body = 'garbage'", "in events"),
        ("UPDATE events SET body = replace(body, '\"seq\":1', '\"seq\":7')", "in events"),
        ("UPDATE health_events SET body = 'garbage'", f"{EVENTS} in health_events"),
        ("UPDATE health_memory SET body = 'garbage'", "1 in health_memory"),
        ("UPDATE health_memory SET body = x'ff'", "1 in health_memory"),
        ("UPDATE plans SET body = 'garbage'", "5 in plans"),
        ("UPDATE verifications SET body = x'7b7d'", "5 in verifications"),
        ("UPDATE idempotency_keys SET request_sha256 = x'00'", "in idempotency_keys"),
    ],
)
def test_rows_that_cannot_be_read_cost_nothing_but_themselves_and_are_said_with_their_table(
    sound: Path, tmp_path: Path, statement: str, said: str
) -> None:
    path = damage(sound, tmp_path, statement)
    reason = start_on(tmp_path)
    assert reason.startswith("degraded: writes and reads, but rows that cannot be read are passed over: ")
    assert said in reason
    assert not list(tmp_path.glob("*.damaged-*"))
    counts = read(path, "SELECT (SELECT COUNT(*) FROM runs), (SELECT COUNT(*) FROM leases)")
    assert counts == [(RUNS, LEASES)], "they stay in the file"


def test_a_lease_that_cannot_be_read_is_named_and_ends_and_its_neighbours_hold(
    sound: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = damage(sound, tmp_path, "UPDATE leases SET body = 'garbage' WHERE position = 2")
    named = f"lease-{1:016x}"
    assert f"1 in leases ({named})" in start_on(tmp_path)
    assert f"lease {named} cannot be read: its devices are not reserved any more" in caplog.text
    ended = dict(read(path, "SELECT id, ended FROM leases ORDER BY position"))
    assert "could not read" in ended.pop(named)
    assert list(ended.values())[:2] == [None, None]
    assert start_on(tmp_path) == "healthy: writes and reads"


def test_a_run_under_way_that_cannot_be_read_is_finished_so_that_it_is_pruned(sound: Path, tmp_path: Path) -> None:
    path = damage(sound, tmp_path, "UPDATE runs SET body = 'garbage' WHERE finished_position IS NULL")
    start_on(tmp_path)
    assert read(path, "SELECT COUNT(*) FROM runs WHERE finished_position IS NULL") == [(0,)]
    assert read(path, "SELECT body FROM runs WHERE body = 'garbage'") == [("garbage",)]


def test_a_page_of_events_is_full_though_many_before_it_cannot_be_read(sound: Path, tmp_path: Path) -> None:
    path = damage(sound, tmp_path, "UPDATE health_events SET body = 'garbage' WHERE seq <= 30")

    async def main(store: Store) -> None:
        first = await store.list_health_events(after=0, limit=5)
        assert [event.seq for event in first] == [31, 32, 33, 34, 35]

    run_with_store(path, main)


def test_a_key_whose_run_cannot_be_read_makes_another(sound: Path, tmp_path: Path) -> None:
    damage(sound, tmp_path, "UPDATE runs SET body = 'garbage'")

    async def main() -> None:
        store = await Store.open(tmp_path / NAME, clock=ManualClock())
        use = KeyUse.of("key-1", "bench", build_run(1).request)
        assert await RunLedger(store, ManualClock()).recall(use) is None
        await store.save_run(build_run(99), key=use)
        assert (await store.recall_key("key-1")) == (use, "run-0099")
        await store.close()

    asyncio.run(main())


def test_a_row_is_counted_once_and_a_table_of_them_fills_neither_memory_nor_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = UnreadableRows()
    for _ in range(2):
        for number in range(NAMED_MOST + 10):
            rows.note("runs", f"run-{number}", "why")
    rows.note("leases", b"\xff", "why")
    assert len(rows.names["runs"]) == NAMED_MOST
    assert len(caplog.records) == LOGGED_MOST + 1
    told = tell_unreadable(rows.names)
    assert told == f"{NAMED_MOST} or more in runs (run-0, run-1, run-2, …), 1 in leases (b'\\xff')"
