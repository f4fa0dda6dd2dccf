"""Compiles without a child: what is kept, what is forgiven, and what is our own error."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import replace
from typing import Any, Literal

import pytest

from meshwright.compiling.limits import MEMORY_EXIT_STATUS
from meshwright.errors import (
    ProblemError,
    StoreUnavailableError,
    WorkerCrashedError,
    WorkerFailedError,
    WorkerTimeoutError,
)
from meshwright.wire.verification import Verification
from meshwright_agent.answers.compiles import LOG_LINES, Compiles
from meshwright_agent.settings import Settings
from meshwright_agent.store import COMPILE, Document
from meshwright_agent.worker.compile_task import CompileTask
from meshwright_agent.worker.faults import Obituary
from tests.fakes.supervised import FakeSupervisor, answering
from tests.unit.answers.test_plans import MemoryStore

TASK = CompileTask("verify", "cpu:2", key="k", job="{}")
CRASHED, LATE = WorkerCrashedError("it died"), WorkerTimeoutError("it did not answer")


def build(child: FakeSupervisor, store: MemoryStore | None = None, **settings: Any) -> Compiles:
    kept = store or MemoryStore()
    known = Settings(**({"compile_memory_bytes": 1 << 30} | settings))
    return Compiles(child, kept, settings=known)  # type: ignore[arg-type]


def compile_with(compiles: Compiles) -> Verification:
    return Verification.model_validate_json(asyncio.run(compiles.compile(TASK, lambda _: None)).text)


def dead(status: int | None, *log: str, op: str | None = "verify") -> Obituary:
    return Obituary("the compiler worker", "ended", op, 1.0, 600.0, log, status)


def say(**fields: Any) -> dict[str, str]:
    return {"answer": Verification.model_validate({"status": "verified"} | fields).model_dump_json()}


def test_the_child_gets_the_job_its_deadline_and_its_memory() -> None:
    child = answering(say())
    compile_with(build(child, compile_timeout_s=9))
    assert child.calls == [("verify", {"job": "{}", "memory_limit_bytes": 1 << 30}, 9)]
    unbounded = answering(say())
    compile_with(build(unbounded, compile_memory_bytes=None))
    assert unbounded.calls[0][1]["memory_limit_bytes"] > 1 << 26  # of this machine


def test_a_store_that_does_not_keep_costs_the_keeping_and_not_the_answer() -> None:
    store = MemoryStore(StoreUnavailableError("the disk is full"))
    assert compile_with(build(answering(say()), store)).status == "verified"
    assert store.kept == {}


def test_a_store_that_does_not_recall_costs_a_compile_and_not_the_answer() -> None:
    store = MemoryStore(StoreUnavailableError("busy"), is_busy=True)
    compiles = build(answering(say()), store)
    assert asyncio.run(compiles.recall(TASK)) is None
    assert compile_with(compiles).status == "verified"


@pytest.mark.parametrize("text", ["5", "null", "{}", '{"status": "perhaps"}', "[" * 100_000])
@pytest.mark.parametrize("op", ["verify", "fit"])
def test_an_answer_that_cannot_be_read_costs_a_compile(op: Literal["verify", "fit"], text: str) -> None:
    store = MemoryStore()
    store.kept[TASK.key] = Document(COMPILE, TASK.key, text)
    compiles = build(answering(say()), store)
    assert asyncio.run(compiles.recall(replace(TASK, op=op))) is None
    assert compile_with(compiles).status == "verified"
    assert asyncio.run(compiles.recall(TASK)) is not None


@pytest.mark.parametrize("status", ["verified", "does_not_fit", "not_compiled", "aborted"])
def test_only_what_holds_for_good_is_kept(status: str) -> None:
    store = MemoryStore()
    compile_with(build(answering(say(status=status)), store))
    assert (TASK.key in store.kept) is (status in {"verified", "does_not_fit"})
    if store.kept:
        assert json.loads(store.kept["k"].body)["stored"] is False


@pytest.mark.parametrize(
    ("error", "obituary", "words"),
    [
        (CRASHED, dead(-6), "aborted (SIGABRT)"),
        (CRASHED, dead(-11), "SIGSEGV"),
        (CRASHED, dead(-9), "SIGKILL"),
        (CRASHED, dead(3), "status 3"),
        (CRASHED, dead(MEMORY_EXIT_STATUS), "MESHWRIGHT_COMPILE_MEMORY_BYTES"),
        (
            CRASHED,
            dead(-6, "terminate called after throwing an instance of 'std::bad_alloc'"),
            f"more than {1 << 30:,}",
        ),
        (LATE, dead(-9), "did not end within 600 s"),
    ],
)
def test_each_way_to_die_has_its_words(error: ProblemError, obituary: Obituary, words: str) -> None:
    child = answering(error, obituary=obituary, state="backoff")
    found = compile_with(build(child))
    assert found.status == "aborted"
    assert words in (found.reason or "")
    assert (found.key, found.target, found.log) == ("k", "cpu:2", obituary.log)
    assert child.resets == 1


def test_of_a_long_log_the_last_lines_stand_in_the_answer() -> None:
    lines = tuple(map(str, range(LOG_LINES + 10)))
    found = compile_with(build(answering(CRASHED, obituary=dead(-6, *lines))))
    assert found.log == lines[10:]


@pytest.mark.parametrize(
    ("error", "obituary"),
    [(LATE, dead(-9, op=None)), (CRASHED, None), (WorkerFailedError("it cannot start"), dead(1, op=None))],
)
def test_one_that_does_not_start_says_nothing_of_the_job(error: ProblemError, obituary: Obituary | None) -> None:
    child = answering(error, obituary=obituary)
    with pytest.raises(type(error)):
        compile_with(build(child))
    assert child.resets == 1


def test_while_the_kernel_holds_a_dead_one_nothing_is_forgiven() -> None:
    child = FakeSupervisor(deque([CRASHED]), obituary=dead(None), abandoned_pids=(7,))
    assert "killed" in (compile_with(build(child)).reason or "")
    assert child.resets == 0
