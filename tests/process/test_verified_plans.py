"""Plans and batches that XLA's real compiler vouches for, asked of a real agent over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.living import (
    TRIES,
    ask,
    await_end,
    fill_queue,
    find_children,
    is_alive,
    parse_events,
    read_run,
    stopped,
)
from tests.process.polling import polling

MODEL = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
ON_TPU = {"mesh": "dp:2,tp:2", "target": "v5e:2x2"}
ON_CPU = {"mesh": "dp:2", "target": "cpu:2"}
FORGOTTEN = {"model", "verification", "memory", "step_time", "schedule", "mfu", "tokens_per_s", "largest_batch"}
"""What of a plan is of its request's model and training: the stored plan may be another caller's."""
POLL_LIMIT_S = 0.5
"""A poll of /healthz takes 1 ms here; one that waits for a compile takes seconds."""


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    """An agent of our own, on a host without accelerators: its compiler is killed."""
    with start_agent(cpu_devices=2) as running:
        yield running


def post(agent: RunningAgent, body: dict[str, Any], path: str = "/mesh/plan", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{agent.url}{path}", json=body, headers=named, timeout=60)


def build_request(batch: int = 4, **fields: Any) -> dict[str, Any]:
    """Returns a request that nobody has made before where `batch` is a new one."""
    training = {"global_batch_size": batch, "seq_len": 64}
    return {**ON_CPU, "model": MODEL, "training": training, "compile": True, **fields}


def submit(agent: RunningAgent, body: dict[str, Any], path: str = "/mesh/plan", **headers: str) -> str:
    """Returns the id of the run that the compiler is asked in."""
    reply = post(agent, body, path, **headers)
    assert reply.status_code == 202, reply.text
    run_id = str(reply.json()["id"])
    assert reply.headers["Location"] == f"/runs/{run_id}"
    return run_id


def verification_of(run: dict[str, Any]) -> dict[str, Any]:
    assert run["state"] == "succeeded", run["error"]
    found: dict[str, Any] = run["result"]["plans"][0]["verification"]
    return found


def await_compiler(agent: RunningAgent, run_id: str) -> int:
    """Returns the process that does a run, once it has begun to."""
    wait_for(lambda: read_run(agent, run_id)["progress"] is not None, agent, limit_s=60)
    (pid,) = find_children(agent, "compiler")
    return pid


# ---- a plan for a TPU that is not here ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(host: RunningAgent) -> tuple[list[dict[str, Any]], dict[str, Any], list[float]]:
    """The events and the end of a compile for TPUs, and how long /healthz took meanwhile."""
    with polling(host, every_s=0.02) as duration_s:
        run_id = submit(host, build_request(**ON_TPU))
        events = parse_events(httpx.get(f"{host.url}/runs/{run_id}/events", timeout=120).text)
    return events, await_end(host, run_id), duration_s


def test_a_compile_for_a_tpu_is_told_as_it_goes_and_its_answer_is_the_plan(host: RunningAgent, told: Any) -> None:
    events, run, duration_s = told
    assert f"method=POST path=/mesh/plan run={run['id']} status=202" in host.log_text()
    states = [event["data"]["state"] for event in events if event["event"] == "state"]
    assert states == ["queued", "running", "succeeded"]
    progress = [event["data"]["progress"] for event in events if event["event"] == "progress"]
    assert progress[0]["message"] == "starting the compiler"
    assert len(progress) > 2
    assert (run["kind"], run["request"]["training"]["remat"]) == ("plan", "full")
    found = verification_of(run)
    assert (found["status"], found["target"], found["stored"]) == ("verified", "v5e:2x2", False)
    assert 0 < found["peak_memory_bytes"] < found["capacity_bytes"]
    assert {"dp", "tp"} <= {axis for each in found["collectives"] for axis in each["axis"].split(",")}
    assert {"jax", "jaxlib", "libtpu"} <= set(found["versions"])
    assert len(duration_s) > 3
    assert max(duration_s) < POLL_LIMIT_S


def test_asked_again_the_store_answers(host: RunningAgent, told: Any) -> None:
    reply = post(host, build_request(**ON_TPU))
    assert reply.status_code == 200, reply.text
    (plan,) = reply.json()["plans"]
    assert plan["verification"] == {**verification_of(told[1]), "stored": True}


def test_the_stored_plan_is_the_mesh_without_the_callers_model(host: RunningAgent, told: Any) -> None:
    (plan,) = told[1]["result"]["plans"]
    (stored,) = ask(host, f"/mesh/plan/{plan['fingerprint']}")["plans"]
    assert plan["step_time"]["total_s"] > 0
    forgotten = {name for name in plan if stored[name] != plan[name]}
    assert forgotten == FORGOTTEN
    assert {name: stored[name] for name in forgotten} == dict.fromkeys(FORGOTTEN)
    assert plan["model"]["parameter_count"] > 0


# ---- asked in other ways --------------------------------------------------------------------------------------------


def test_a_compile_without_a_model_or_its_training_is_refused(host: RunningAgent) -> None:
    for field in ("model", "training"):
        reply = post(host, {name: value for name, value in build_request().items() if name != field})
        assert reply.status_code == 422, reply.text
        assert f"{field} is not given" in reply.json()["detail"]


def test_a_target_that_no_compiler_here_knows_is_said_at_once_and_never_passes(host: RunningAgent) -> None:
    reply = post(host, build_request(mesh="dp:8", target="mi300x:8", batch=8))
    assert reply.status_code == 200, reply.text
    found = reply.json()["plans"][0]["verification"]
    assert found["status"] == "not_compiled"
    assert "ROCm" in found["reason"]
    assert "compile-cuda" not in found["reason"]


def test_equal_requests_at_once_are_runs_of_their_own_and_compiled_once(host: RunningAgent) -> None:
    body = build_request(16)
    with ThreadPoolExecutor(2) as threads:
        replies = list(threads.map(lambda _: post(host, body), range(2)))
    assert {reply.status_code for reply in replies} == {202}
    runs = [await_end(host, run_id, limit_s=200) for run_id in sorted({reply.json()["id"] for reply in replies})]
    assert [verification_of(run)["stored"] for run in runs] == [False, True]
    assert post(host, body).status_code == 200


# ---- batches --------------------------------------------------------------------------------------------------------


def test_the_largest_batch_is_found_by_compiling_and_stored(host: RunningAgent) -> None:
    body = {**ON_TPU, "model": MODEL, "compile": True}
    body["training"] = {"seq_len": 64, "global_batch_size": 4}
    run = await_end(host, submit(host, body, "/batch-size"), limit_s=200)
    assert run["state"] == "succeeded", run["error"]
    assert run["kind"] == "batch_size"
    compiled = run["result"]["compiled"]
    assert (compiled["global_batch_size"], compiled["per_replica_batch_size"], compiled["limit"]) == (4, 2, "asked")
    assert compiled["tried"]
    assert (run["result"]["hardware_type"], run["result"]["basis"]) == ("tpu_v5e", "declared")
    again = post(host, body, "/batch-size")
    assert (again.status_code, again.json()["compiled"]["verification"]["stored"]) == (200, True)


def test_a_batch_that_was_found_is_the_stored_plans_too(host: RunningAgent) -> None:
    plan = ask(host, "/mesh/plan?mesh=dp:2,tp:2&target=v5e:2x2")["plans"][0]
    body = {"plan": plan["fingerprint"], "model": MODEL, "compile": True}
    body["training"] = {"seq_len": 64, "global_batch_size": 4}
    reply = post(host, body, "/batch-size")
    assert reply.json()["compiled"]["global_batch_size"] == 4
    assert reply.json()["compiled"]["verification"]["target"] == "v5e:2x2"
    other = post(host, {**body, "target": "v5p:2x2x1"}, "/batch-size")
    assert (other.status_code, other.json()["errors"][0]["field"]) == (422, "target")
    assert "v5e:2x2" in other.json()["detail"]


# ---- when it dies ---------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_run_that_is_deleted_is_gone_within_two_seconds_and_the_next_one_goes_on(host: RunningAgent) -> None:
    duration_s = []
    for _ in range(TRIES):
        run_id = submit(host, build_request(12, **ON_TPU))
        compiler = await_compiler(host, run_id)
        began_s = time.monotonic()
        reply = httpx.delete(f"{host.url}/runs/{run_id}", timeout=30)
        assert reply.status_code in {200, 202}
        assert await_end(host, run_id)["state"] == "cancelled"
        wait_for(lambda compiler=compiler: not is_alive(compiler), host, limit_s=30)
        duration_s.append(time.monotonic() - began_s)
    assert statistics.median(duration_s) <= 2.0
    assert verification_of(await_end(host, submit(host, build_request(12)), limit_s=200))["status"] == "verified"


def test_an_abort_of_the_compiler_is_an_answer_and_is_not_stored(host: RunningAgent) -> None:
    run_id = submit(host, build_request(14, **ON_TPU))
    os.kill(await_compiler(host, run_id), signal.SIGABRT)
    found = verification_of(await_end(host, run_id))
    assert (found["status"], found["reason"]) == ("aborted", "the compiler aborted (SIGABRT)")
    assert found["log"]
    assert httpx.get(f"{host.url}/readyz").status_code == 200
    again = submit(host, build_request(14, **ON_TPU))
    assert again != run_id
    httpx.delete(f"{host.url}/runs/{again}", timeout=30)


@pytest.mark.exhaustive
def test_a_compile_that_hangs_is_ended_at_its_limit_and_said_so() -> None:
    with start_agent(cpu_devices=1, MESHWRIGHT_COMPILE_TIMEOUT_S="2") as agent:
        run_id = submit(agent, build_request())
        with contextlib.suppress(ProcessLookupError), stopped(await_compiler(agent, run_id)):
            found = verification_of(await_end(agent, run_id))
        assert found["status"] == "aborted"
        assert "did not end within 2 s" in found["reason"]
        assert "MESHWRIGHT_COMPILE_TIMEOUT_S" in found["reason"]


@pytest.mark.exhaustive
def test_a_compile_that_takes_too_much_memory_is_ended_and_said_so() -> None:
    limit_bytes = 96 << 20
    with start_agent(cpu_devices=1, MESHWRIGHT_COMPILE_MEMORY_BYTES=str(limit_bytes)) as agent:
        found = verification_of(await_end(agent, submit(agent, build_request(**ON_TPU))))
        assert found["status"] == "aborted"
        assert f"more than {limit_bytes:,} bytes" in found["reason"]
        assert httpx.get(f"{agent.url}/readyz").status_code == 200


@pytest.mark.exhaustive
def test_a_compile_too_many_is_refused_and_a_bench_goes_beside() -> None:
    with start_agent(cpu_devices=2) as agent:
        running = submit(agent, build_request(2))
        with stopped(await_compiler(agent, running)):
            (waiting, *others), _ = fill_queue(lambda number: post(agent, build_request(4 + 2 * number)))
            assert others
            bench = submit(agent, {"cases": ["host_to_device"], "samples": 3}, "/placement/bench")
            assert await_end(agent, bench)["state"] == "succeeded"
            assert post(agent, {}, "/devices/release").json()["cancelled_runs"] == []
            assert [read_run(agent, each)["state"] for each in (running, waiting)] == ["running", "queued"]
            for each in others:
                assert httpx.delete(f"{agent.url}/runs/{each}", timeout=30).json()["state"] == "cancelled"
        for each in (running, waiting):
            assert verification_of(await_end(agent, each))["status"] == "verified"


@pytest.mark.exhaustive
def test_an_agent_that_stops_takes_its_compiler_with_it_and_one_that_comes_back_knows_what_was_said(
    tmp_path: Path,
) -> None:
    with start_agent(cpu_devices=1, state_dir=tmp_path) as before:
        done = await_end(before, submit(before, build_request(2)))
        assert verification_of(done)["status"] == "verified"
        compiler = await_compiler(before, submit(before, build_request(4)))
        assert before.stop() == 0
        wait_for(lambda: not is_alive(compiler), limit_s=5)
        assert "Traceback" not in before.log_text()
    with start_agent(cpu_devices=1, state_dir=tmp_path) as after:
        reply = post(after, build_request(2))
        assert (reply.status_code, reply.json()["plans"][0]["verification"]["stored"]) == (200, True)
        assert read_run(after, done["id"])["result"] == done["result"]
