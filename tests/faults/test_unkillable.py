"""A worker that even SIGKILL does not end: a release answers within its bound and names it, and the agent goes on."""

from __future__ import annotations

import time

import pytest

from tests.agents import start_agent, wait_for
from tests.faults.causing import keep_unreaped
from tests.process.living import (
    RELEASE_LIMIT_S,
    await_end,
    do_bench,
    read_worker,
    release,
    start_long_bench,
    stop_process,
    worker_pid,
)

pytestmark = pytest.mark.exhaustive


def test_a_release_names_a_worker_that_cannot_be_killed_within_the_bound_and_again_until_it_has_gone() -> None:
    with start_agent(cpu_devices=2) as agent:
        run_id = start_long_bench(agent)
        pid = worker_pid(agent)
        stop_process(pid)  # it hears neither the end of its socket nor SIGTERM
        with keep_unreaped(pid):
            duration_s = []
            for _ in range(2):
                began_s = time.monotonic()
                answer = release(agent)
                duration_s.append(time.monotonic() - began_s)
                assert (answer["released"], answer["worker_killed"]) == (False, True)
                assert [(holder["pid"], holder["own"]) for holder in answer["holders"]] == [(pid, True)]
            assert min(duration_s) <= RELEASE_LIMIT_S
            wait_for(lambda: read_worker(agent)["state"] == "stopped", agent, limit_s=30)  # given up
            abandoned = release(agent)
            assert abandoned["released"] is False
            assert pid in {holder["pid"] for holder in abandoned["holders"]}
            assert f"pid {pid}" in read_worker(agent)["last_error"]
            assert "could not be killed" in read_worker(agent)["last_error"]
        assert await_end(agent, run_id)["state"] == "cancelled"
        wait_for(lambda: release(agent)["released"], agent, limit_s=30)
        assert do_bench(agent)
