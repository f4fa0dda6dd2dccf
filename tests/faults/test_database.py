"""A database that is overwritten while it is used, held by another process at the start, or of a newer version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import httpx
import pytest

from tests.agents import start_agent, wait_for
from tests.faults.causing import WATCHFUL, hold_database, serve_and_leave
from tests.process.living import QUICK, ask, await_state, do_bench, post_bench

pytestmark = pytest.mark.exhaustive

NAME = "meshwright.sqlite3"
PAGE_BYTES = 4096


def overwrite(path: Path) -> None:
    """Writes noise over every page of a database but the first, and over its journal."""
    with path.open("r+b") as file:
        file.seek(PAGE_BYTES)
        file.write(b"\xa5" * (path.stat().st_size - PAGE_BYTES))
    journal = path.with_name(f"{NAME}-wal")
    journal.write_bytes(b"\xa5" * journal.stat().st_size)


def fold_journal(path: Path) -> None:
    """Moves what stands in the journal into the file, as SQLite does now and then."""
    other = sqlite3.connect(path)
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()


def test_a_file_that_is_overwritten_while_it_is_used_is_said_so_and_set_aside_by_a_restart(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, state_dir=tmp_path, **WATCHFUL) as agent:
        do_bench(agent)
        await_state(agent, "store", "healthy")
        fold_journal(tmp_path / NAME)
        overwrite(tmp_path / NAME)
        seen = await_state(agent, "store", "unhealthy", limit_s=30)
        assert "malformed" in seen["reason"] or "not a database" in seen["reason"]
        assert "restart the agent" in seen["reason"]
        refused = post_bench(agent, QUICK)
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        for path in ("/healthz", "/readyz", "/devices", "/mesh/plan?mesh=dp:2"):
            assert httpx.get(f"{agent.url}{path}").status_code == 200, path
        assert agent.stop() == 0
    with start_agent(cpu_devices=2, state_dir=tmp_path) as again:
        (kept,) = (path for path in tmp_path.glob(f"{NAME}.damaged-*Z"))
        assert kept.name in await_state(again, "store", "degraded")["reason"]
        assert ask(again, "/runs")["runs"] == []
        assert do_bench(again)


def test_a_database_that_another_process_holds_refuses_the_start_until_it_is_let_go(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, state_dir=tmp_path) as before:
        done = do_bench(before)["id"]
        assert before.stop() == 0
    with hold_database(tmp_path / NAME):
        refused = serve_and_leave(tmp_path, "--cpu-devices", "1")
        assert refused.returncode == 1
        assert "database is locked" in refused.stderr
        assert "Traceback" not in refused.stderr
    with start_agent(cpu_devices=2, state_dir=tmp_path) as after:
        wait_for(lambda: ask(after, f"/runs/{done}")["state"] == "succeeded", after, limit_s=10)


def test_a_database_of_a_newer_agent_is_refused_by_number_and_left_alone(tmp_path: Path) -> None:
    newer = sqlite3.connect(tmp_path / NAME)
    newer.execute("PRAGMA user_version = 1000")
    newer.execute("CREATE TABLE future (content TEXT)")
    newer.commit()
    newer.close()
    refused = serve_and_leave(tmp_path, "--cpu-devices", "1")
    assert refused.returncode == 1
    assert "has schema 1000, written by a newer agent" in refused.stderr
    assert "--state-dir" in refused.stderr
    assert "Traceback" not in refused.stderr
    kept = sqlite3.connect(tmp_path / NAME)
    assert kept.execute("SELECT name FROM sqlite_master").fetchall() == [("future",)]
    kept.close()
