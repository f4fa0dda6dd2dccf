"""A disk without room, and files that may not grow: runs are refused and told, plans and all reads go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent
from tests.faults.causing import WATCHFUL, fill_disk, forbid_growth, mount_small_disk, serve_and_leave
from tests.process.living import (
    QUICK,
    ask,
    await_end,
    await_state,
    do_bench,
    parse_events,
    post_bench,
    read_run,
    start_long_bench,
    submit,
)

pytestmark = pytest.mark.exhaustive

Spoil = Callable[[RunningAgent], contextlib.AbstractContextManager[None]]
DISK_BYTES = 4 << 20


@pytest.fixture(params=["a disk without room", "files that may not grow"])
def spoiled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Spoil, str]]:
    """A state directory, what takes its disk away for the length of a block, and how the store is before and after."""
    if request.param == "files that may not grow":
        yield tmp_path, forbid_growth, "healthy"
        return
    with mount_small_disk(tmp_path / "disk", DISK_BYTES):
        yield tmp_path / "disk/state", lambda _: fill_disk(tmp_path / "disk"), "degraded"  # a disk of 4 MiB is small


def test_a_full_disk_costs_runs_and_nothing_else_and_is_forgotten_when_there_is_room(
    spoiled: tuple[Path, Spoil, str],
) -> None:
    state_dir, spoil, usual = spoiled
    with start_agent(cpu_devices=2, state_dir=state_dir, **WATCHFUL) as agent:
        before = do_bench(agent)
        await_state(agent, "store", usual)
        with spoil(agent):
            refused = post_bench(agent, QUICK)
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
            assert "disk" in refused.json()["hint"]
            plan = httpx.get(f"{agent.url}/mesh/plan?mesh=dp:1,tp:2").json()
            assert [notice["code"] for notice in plan["warnings"]] == ["plan_not_stored"]
            assert str(state_dir) in await_state(agent, "store", "unhealthy", limit_s=30)["action"]
            assert read_run(agent, before["id"])["state"] == "succeeded"  # what was written can be read
            for path in ("/healthz", "/readyz", "/devices", "/runs", "/placement/bench"):
                assert httpx.get(f"{agent.url}{path}").status_code == 200, path
        await_state(agent, "store", usual, limit_s=30)
        assert do_bench(agent)
        assert agent.stop() == 0


def test_a_run_that_ends_while_the_disk_is_full_is_written_when_there_is_room(spoiled: tuple[Path, Spoil, str]) -> None:
    state_dir, spoil, usual = spoiled
    with start_agent(cpu_devices=2, state_dir=state_dir, **WATCHFUL) as agent:
        await_state(agent, "driver", "healthy")  # until then the host's memory is not known, and a bench is small
        run_id = start_long_bench(agent)
        with spoil(agent):
            asked = httpx.delete(f"{agent.url}/runs/{run_id}", timeout=30)
            assert (asked.status_code, asked.json()["state"]) == (202, "running")  # nothing is told that is not stored
            await_state(agent, "store", "unhealthy", limit_s=30)
            assert read_run(agent, run_id)["state"] == "running"
            lease = {"purpose": "slurm job 7", "devices": [0]}
            refused = httpx.put(f"{agent.url}/leases/slurm-7", json=lease, timeout=30)
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
            assert ask(agent, "/leases")["leases"] == []
        await_state(agent, "store", usual, limit_s=30)
        assert await_end(agent, run_id)["state"] == "cancelled"
        assert await_end(agent, submit(agent, QUICK))["state"] == "succeeded"
        assert [run["state"] for run in ask(agent, "/runs?state=cancelled")["runs"]] == ["cancelled"]
        agent.kill()  # nothing is left to be written at the end
    with start_agent(cpu_devices=2, state_dir=state_dir, ready=False) as again:
        run = read_run(again, run_id)
        assert (run["state"], "DELETE" in run["error"]["detail"]) == ("cancelled", True)
        last = parse_events(httpx.get(f"{again.url}/runs/{run_id}/events", timeout=30).text)[-1]["data"]
        assert (last["type"], last["state"]) == ("state", "cancelled")


def test_a_start_on_a_full_disk_is_refused_with_what_to_do_and_harms_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mount_small_disk(disk, DISK_BYTES):
        with fill_disk(disk):
            refused = serve_and_leave(disk / "new", "--cpu-devices", "1")
            assert (refused.returncode, "make room on that disk" in refused.stderr) == (1, True), refused.stderr
        with start_agent(cpu_devices=2, state_dir=disk / "state") as before:
            done = do_bench(before)["id"]
            assert before.stop() == 0
        with fill_disk(disk):
            refused = serve_and_leave(disk / "state", "--cpu-devices", "1")
            assert (refused.returncode, "make room on that disk" in refused.stderr) == (1, True), refused.stderr
            assert "Traceback" not in refused.stderr
        with start_agent(cpu_devices=2, state_dir=disk / "state") as after:
            assert read_run(after, done)["state"] == "succeeded"
            await_state(after, "store", "degraded", limit_s=30)
