"""The compiler child: whatever it does is an answer, the next one begins at once, and nothing else is touched."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.compiling.limits import NICENESS
from meshwright.errors import RunFailedError, WorkerFailedError
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.verification import Verification
from meshwright_agent.answers.compiles import Compiles
from meshwright_agent.clock import SystemClock
from meshwright_agent.settings import Settings
from meshwright_agent.store import COMPILE, Store
from meshwright_agent.worker.children import build_compiler_spec
from meshwright_agent.worker.compile_task import CompileTask, Operation
from meshwright_agent.worker.supervisor import Supervisor
from tests.fakes import faulty_compiler
from tests.process.living import TRIES, is_alive

MIB = 1 << 20


class Bench:
    """A real compiler child that runs the faulty compiler, with a real store."""

    def __init__(self, child: Supervisor, compiles: Compiles, store: Store) -> None:
        self.child = child
        self.compiles = compiles
        self.store = store
        self.told: list[dict[str, Any]] = []

    async def compile(self, name: str, op: Operation = "verify") -> Verification:
        text = (await self.compiles.compile(build_task(name, op), self.told.append)).text
        return (
            Verification.model_validate_json(text)
            if op == "verify"
            else CompiledBatch.model_validate_json(text).verification
        )


def build_task(name: str, op: Operation = "verify") -> CompileTask:
    job = faulty_compiler.build_job(name)
    return CompileTask(op, "cpu:2", key=f"{op}-{name}", job=job.model_dump_json(), data_parallel_size=2)


def play(
    folder: Path, act: Callable[[Bench], Awaitable[None]], *, module: str = faulty_compiler.MODULE, **settings: Any
) -> None:
    async def main() -> None:
        known = Settings(**({"compile_memory_bytes": 512 * MIB} | settings))
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd())])}
        child = Supervisor(replace(build_compiler_spec(known, environ), module=module), clock=SystemClock())
        async with Store.open(folder / "s.sqlite3", clock=SystemClock()) as store:
            compiles = Compiles(child, store, settings=known)
            try:
                async with asyncio.timeout(60):
                    await act(Bench(child, compiles, store))
            finally:
                await child.close()

    asyncio.run(main())


# ---- what it answers ------------------------------------------------------------------------------------------------


def test_an_answer_carries_its_key_is_told_of_as_it_comes_and_is_stored(tmp_path: Path) -> None:
    async def act(bench: Bench) -> None:
        first = await bench.compile("well")
        assert (first.status, first.peak_memory_bytes, first.key, first.stored) == ("verified", 7, "verify-well", False)
        assert [each["message"] for each in bench.told] == [
            "starting the compiler",
            "tracing the step",
            "reading the program",
        ]
        assert await bench.compile("well") == first.model_copy(update={"stored": True})
        assert (bench.child.generation, bench.compiles.counts["verified"]) == (1, 1)

    play(tmp_path, act)


def test_each_task_has_a_process_of_its_own_that_goes_when_it_is_done(tmp_path: Path) -> None:
    async def act(bench: Bench) -> None:
        pids = []
        for op in ("verify", "fit"):
            found = await bench.compile("names its process", op)
            pids.append(int(found.log[0]))
        assert pids[0] != pids[1]
        assert bench.child.generation == 2
        while any(map(is_alive, pids)):  # noqa: ASYNC110 -- of a process, which tells nobody
            await asyncio.sleep(0.01)
        assert "JAX_PLATFORMS=cpu" in found.log
        assert "CUDA_VISIBLE_DEVICES=" in found.log

    play(tmp_path, act)


@pytest.mark.parametrize(("name", "status"), [("does not fit", "does_not_fit"), ("not compiled", "not_compiled")])
def test_what_does_not_fit_is_stored_and_what_was_not_compiled_is_not(tmp_path: Path, name: str, status: str) -> None:
    async def act(bench: Bench) -> None:
        for op in ("verify", "fit"):
            assert (await bench.compile(name, op)).status == status
            assert (await bench.compile(name, op)).stored is (status == "does_not_fit")

    play(tmp_path, act)


# ---- how it dies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words", "last"),
    [
        ("aborts", "aborted (SIGABRT)", "check failed"),
        ("leaks", f"more than {512 * MIB:,} bytes of the host's memory", f"it may have {512 * MIB}"),
        ("leaks with the lock", f"more than {512 * MIB:,} bytes of the host's memory", f"it may have {512 * MIB}"),
        ("leaves", "status 3", ""),
        ("hangs", "did not end within 1.5 s", "in verify"),
    ],
)
def test_the_compilers_death_is_an_answer_in_words_with_its_last_lines(
    tmp_path: Path, name: str, words: str, last: str
) -> None:
    async def act(bench: Bench) -> None:
        found = await bench.compile(name)
        assert found.status == "aborted"
        assert words in (found.reason or "")
        assert any(last in line for line in found.log) or (not last and not found.log)
        assert await bench.store.get(COMPILE, f"verify-{name}") is None
        assert (await bench.compile("well")).status == "verified"

    play(tmp_path, act, compile_timeout_s=1.5 if name == "hangs" else 60)


@pytest.mark.exhaustive
def test_however_often_it_aborts_the_next_task_begins_at_once(tmp_path: Path) -> None:
    async def act(bench: Bench) -> None:
        for _ in range(8):  # more than the crash budget
            assert (await bench.compile("aborts")).status == "aborted"
            assert bench.child.state == "stopped"
        assert bench.compiles.counts == {"aborted": 8}
        assert (await bench.compile("well")).status == "verified"

    play(tmp_path, act)


def test_a_search_that_dies_knows_of_no_batch_that_fits(tmp_path: Path) -> None:
    async def act(bench: Bench) -> None:
        text = (await bench.compiles.compile(build_task("aborts", "fit"), bench.told.append)).text
        batch = CompiledBatch.model_validate_json(text)
        assert (batch.verification.status, batch.batch_per_device, batch.data_parallel_size) == ("aborted", None, 2)

    play(tmp_path, act)


def test_a_bug_of_ours_is_an_error_with_its_traceback(tmp_path: Path) -> None:
    async def act(bench: Bench) -> None:
        with pytest.raises(RunFailedError, match="ZeroDivisionError") as caught:
            await bench.compile("raises")
        assert any("a bug of ours" in line for line in caught.value.log)
        assert bench.compiles.counts == {}

    play(tmp_path, act)


def test_a_compiler_that_does_not_start_is_an_error_and_is_tried_again(tmp_path: Path) -> None:
    async def act(bench: Bench) -> None:
        for generation in range(1, 8):
            with pytest.raises(WorkerFailedError):
                await bench.compile("well")
            assert bench.child.generation == generation

    play(tmp_path, act, module="tests.fakes.no_such_module")


def test_a_compile_that_is_given_up_is_gone_within_two_seconds_and_counts_as_no_crash(tmp_path: Path) -> None:
    async def act(bench: Bench) -> None:
        took_s = []
        for _ in range(TRIES):
            bench.told.clear()
            work = asyncio.create_task(bench.compile("hangs"))
            while len(bench.told) < 2:  # noqa: ASYNC110 -- a list tells nobody
                await asyncio.sleep(0.01)
            pid, began_s = bench.child.pid, time.monotonic()
            assert pid is not None
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            took_s.append(time.monotonic() - began_s)
            assert work.cancelled()
            assert not is_alive(pid)
            assert (bench.child.state, bench.compiles.counts) == ("stopped", {})
        assert statistics.median(took_s) <= 2.0

    play(tmp_path, act)


# ---- the host -------------------------------------------------------------------------------------------------------


def test_a_compile_goes_behind_all_other_work_of_the_host(tmp_path: Path) -> None:
    async def act(bench: Bench) -> None:
        work = asyncio.create_task(bench.compile("hangs"))
        while len(bench.told) < 2:  # noqa: ASYNC110 -- a list tells nobody
            await asyncio.sleep(0.01)
        assert bench.child.pid is not None
        assert os.getpriority(os.PRIO_PROCESS, bench.child.pid) == os.nice(0) + NICENESS
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    play(tmp_path, act)
