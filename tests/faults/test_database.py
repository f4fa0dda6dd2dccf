"""A database that is overwritten while it is used, held by another process at the start, or of a newer version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.faults.causing import WATCHFUL, hold_database
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
        wait_for(lambda: put_lease(agent).status_code == 503, agent, limit_s=30)
        seen = await_state(agent, "store", "unhealthy", limit_s=30)
        assert "malformed" in seen["reason"] or "not a database" in seen["reason"]
        assert "restart the agent" in seen["action"]
        refused = post_bench(agent, QUICK)
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        for path in ("/healthz", "/readyz", "/devices", "/mesh/plan?mesh=dp:2"):
            assert httpx.get(f"{agent.url}{path}").status_code == 200, path
        assert agent.stop() == 0
    with start_agent(cpu_devices=2, state_dir=tmp_path) as again:
        (kept,) = (path for path in tmp_path.glob(f"{NAME}.set-aside-*Z"))
        assert kept.name in await_state(again, "store", "degraded")["reason"]
        assert ask(again, "/runs")["runs"] == []
        assert do_bench(again)


def test_while_another_process_holds_the_database_what_must_be_written_is_refused(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, state_dir=tmp_path) as before:
        done = do_bench(before)["id"]
        assert before.stop() == 0
    with hold_database(tmp_path / NAME), start_agent(cpu_devices=2, state_dir=tmp_path) as agent:
        refused = put_lease(agent)
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert "locked" in refused.json()["detail"]
        assert ask(agent, f"/runs/{done}")["state"] == "succeeded"
        await_state(agent, "store", "unhealthy", limit_s=30)
    with start_agent(cpu_devices=2, state_dir=tmp_path) as after:
        assert put_lease(after).status_code == 201


def put_lease(agent: RunningAgent) -> httpx.Response:
    body = {"devices": [0], "purpose": "slurm job 7", "ttl_s": 3600}
    return httpx.put(f"{agent.url}/leases/slurm-7", json=body, timeout=30)


def test_an_upgrade_and_a_downgrade_keep_leases_and_set_all_else_aside(tmp_path: Path) -> None:
    with start_agent(cpu_devices=2, state_dir=tmp_path) as before:
        do_bench(before)
        assert put_lease(before).status_code == 201
        assert before.stop() == 0
    for number in (1000, 1):
        other = sqlite3.connect(tmp_path / NAME)
        other.execute(f"PRAGMA user_version = {number}")
        other.close()
        with start_agent(cpu_devices=2, state_dir=tmp_path, ready=False) as after:
            assert [lease["id"] for lease in ask(after, "/leases")["leases"]] == ["slurm-7"]
            assert ask(after, "/runs")["runs"] == []
            seen = await_state(after, "store", "degraded")["reason"]
            assert f"has the schema {number}" in seen
            assert "1 lease(s) were taken over" in seen
            assert after.stop() == 0
    assert len(list(tmp_path.glob(f"{NAME}.set-aside-*Z"))) == 2
