"""Runs of a living agent: queued, told as they go, cancelled, asked for twice, and found again after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, start_agent
from tests.process.living import (
    LONG,
    QUICK,
    ask,
    await_end,
    do_bench,
    fill_queue,
    parse_events,
    post_bench,
    read_run,
    read_worker,
    start_long_bench,
    submit,
)


@pytest.fixture(scope="module")
def narrow() -> Iterator[RunningAgent]:
    """An agent of four devices."""
    with start_agent(cpu_devices=4) as agent:
        yield agent


def cancel(agent: RunningAgent, run_id: str) -> httpx.Response:
    return httpx.delete(f"{agent.url}/runs/{run_id}", timeout=30)


# ---- cancel and queue -----------------------------------------------------------------------------------------------


def test_a_run_that_is_deleted_is_cancelled_and_the_worker_lives_on(narrow: RunningAgent) -> None:
    sizes = [(1 << 20) + (number << 12) for number in range(32)]  # each is prepared within the grace of a cancel
    run_id = start_long_bench(narrow, sizes_bytes=sizes)
    generation = read_worker(narrow)["generation"]
    reply = cancel(narrow, run_id)
    assert reply.status_code in {200, 202}
    run = await_end(narrow, run_id)
    assert (run["state"], run["error"]["code"]) == ("cancelled", "run_cancelled")
    assert "DELETE" in run["error"]["detail"]
    assert run["result"] is None
    again = cancel(narrow, run_id)
    assert (again.status_code, again.json()) == (200, run)
    do_bench(narrow)
    assert read_worker(narrow)["generation"] == generation


def test_a_run_too_many_is_refused_until_there_is_room(narrow: RunningAgent) -> None:
    running = start_long_bench(narrow)
    (waiting, *others), refused = fill_queue(lambda _: post_bench(narrow, LONG))
    assert others
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert [read_run(narrow, run_id)["state"] for run_id in (running, waiting)] == ["running", "queued"]
    gone = cancel(narrow, waiting)
    assert (gone.status_code, gone.json()["state"]) == (200, "cancelled")
    last = submit(narrow, QUICK)
    for run_id in (*others, running):
        cancel(narrow, run_id)
    assert await_end(narrow, last)["state"] == "succeeded"
    assert read_run(narrow, waiting)["started_at"] is None


def test_runs_are_done_one_after_the_other_and_listed_newest_first(narrow: RunningAgent) -> None:
    first, second = submit(narrow, QUICK), submit(narrow, QUICK)
    runs = [await_end(narrow, run_id) for run_id in (first, second)]
    assert runs[0]["finished_at"] <= runs[1]["started_at"]
    listed = ask(narrow, "/runs?limit=2&state=succeeded")["runs"]
    assert [run["id"] for run in listed] == [second, first]
    assert [run["result"] for run in listed] == [None, None]
    assert {record["case"] for record in runs[1]["result"]["records"]} == {"host_to_device"}
    (newest,) = runs[1]["result"]["records"]
    assert newest["observed_at"] in {record["observed_at"] for record in ask(narrow, "/placement/bench")["records"]}


# ---- told as they go ------------------------------------------------------------------------------------------------


def read_events(agent: RunningAgent, run_id: str, **headers: str) -> str:
    """Returns the whole stream, which ends by itself."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with httpx.stream("GET", f"{agent.url}/runs/{run_id}/events", headers=named, timeout=60) as stream:
        assert stream.status_code == 200
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        return stream.read().decode()


def without_ages(value: Any) -> Any:
    """Returns what was said, without `age_s`, which is as of each reading."""
    if isinstance(value, dict):
        return {name: without_ages(each) for name, each in value.items() if name != "age_s"}
    return [without_ages(each) for each in value] if isinstance(value, list) else value


def test_events_come_in_order_from_the_queue_to_the_end(narrow: RunningAgent) -> None:
    run_id = submit(narrow, {**QUICK, "cases": ["host_to_device", "matmul"]})
    events = parse_events(read_events(narrow, run_id))  # begun while it runs
    assert [int(event["id"]) for event in events] == list(range(1, len(events) + 1))
    assert [event["id"] for event in events] == [str(event["data"]["seq"]) for event in events]
    assert [event["event"] for event in events] == [event["data"]["type"] for event in events]
    states = [event["data"]["state"] for event in events if event["event"] == "state"]
    assert states == ["queued", "running", "succeeded"]
    assert events[-1]["event"] == "state"
    records = [event["data"]["record"] for event in events if event["event"] == "record"]
    assert without_ages(records) == without_ages(read_run(narrow, run_id)["result"]["records"])
    progress = [event["data"]["progress"] for event in events if event["event"] == "progress"]
    assert [each["done"] for each in progress] == sorted(each["done"] for each in progress)
    assert {each["total"] for each in progress} == {2}
    assert parse_events(read_events(narrow, run_id)) == events  # and read again afterwards


def test_events_go_on_where_a_listener_lost_them(narrow: RunningAgent) -> None:
    run_id = do_bench(narrow)["id"]
    events = parse_events(read_events(narrow, run_id))
    for seen in range(len(events) + 1):
        assert parse_events(read_events(narrow, run_id, Last_Event_ID=str(seen))) == events[seen:]
    after = httpx.get(f"{narrow.url}/runs/{run_id}/events?after={len(events) - 1}").text
    assert parse_events(after) == events[-1:]


def test_a_listener_who_leaves_harms_nobody(narrow: RunningAgent) -> None:
    run_id = start_long_bench(narrow)
    for _ in range(3):
        with httpx.stream("GET", f"{narrow.url}/runs/{run_id}/events", timeout=60) as stream:
            next(stream.iter_text())
    assert read_run(narrow, run_id)["state"] == "running"
    cancel(narrow, run_id)
    assert await_end(narrow, run_id)["state"] == "cancelled"


# ---- found again ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_what_was_done_is_still_answered_after_a_restart(tmp_path: Path) -> None:
    with start_agent(cpu_devices=4, state_dir=tmp_path) as before:
        run = do_bench(before)
        told = parse_events(read_events(before, run["id"]))
        latest = ask(before, "/placement/bench")
        plans = ask(before, "/mesh/plan?mesh=dp:2,tp:2")
        assert before.stop() == 0
    with start_agent(cpu_devices=4, state_dir=tmp_path) as after:
        again = read_run(after, run["id"])
        assert without_ages(again) == without_ages(run)
        assert again["result"]["records"][0]["age_s"] > run["result"]["records"][0]["age_s"]
        assert parse_events(read_events(after, run["id"])) == told
        records = ask(after, "/placement/bench")["records"]
        assert [record["case"] for record in records] == [record["case"] for record in latest["records"]]
        assert records[0]["samples_s"]
        assert ask(after, f"/mesh/plan/{plans['plans'][0]['fingerprint']}")["plans"] == plans["plans"]
        assert do_bench(after)["id"] > run["id"]  # ids go on in time's order


def test_runs_under_way_when_the_agent_was_killed_are_cancelled_with_the_reason(tmp_path: Path) -> None:
    with start_agent(cpu_devices=4, state_dir=tmp_path) as before:
        done, running, waiting = do_bench(before)["id"], start_long_bench(before), submit(before, QUICK)
        before.kill()
    with start_agent(cpu_devices=4, state_dir=tmp_path) as after:
        assert read_run(after, done)["state"] == "succeeded"
        for run_id in (running, waiting):
            run = read_run(after, run_id)
            assert (run["state"], run["error"]["code"]) == ("cancelled", "run_cancelled")
            assert "the agent stopped while this run was under way" in run["error"]["detail"]
            assert run["finished_at"]
            last = parse_events(read_events(after, run_id))[-1]["data"]
            assert (last["type"], last["state"]) == ("state", "cancelled")
        assert ask(after, "/runs?state=running")["runs"] == ask(after, "/runs?state=queued")["runs"] == []
        assert do_bench(after)
