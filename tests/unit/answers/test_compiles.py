"""Compiles: what is known is answered at once, else by a run; what ends the compiler is an answer.

The child is a real process that speaks the real protocol; what it does is that of tests/fakes/compiler.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import ProblemError
from meshwright.planning.request import Inventory
from meshwright.topology.targets import build_target
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.runs import Run
from meshwright.wire.verification import Verification
from meshwright_agent.answers.benches import HostMeasurements
from meshwright_agent.answers.compiles import Compiles
from meshwright_agent.answers.plans import PlanAnswer, PlanMaker
from meshwright_agent.children.compile_tasks import CompileTask, Operation
from meshwright_agent.children.planner import write_plans
from meshwright_agent.runs import RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.store import COMPILE, Document, Store, StoreUnavailableError
from tests.fakes.codes import has_code
from tests.fakes.compiler import FUNCTIONS
from tests.fakes.stored import ManualClock
from tests.fakes.supervised import answering
from tests.unit.answers.test_plans import build_host
from tests.unit.store.opening import opened

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
MODEL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
ASKED = {"mesh": "dp:2,tp:2", "model": MODEL, "training": {"global_batch_size": 4}, "compile": True}
REQUEST = PlanRequest.model_validate(ASKED)
HOST = Inventory(build_target("cpu:4"))


def build_task(does: str = "", op: Operation = "verify", key: str = "k", **job: Any) -> CompileTask:
    return CompileTask(op, "cpu:2", key=key, job=json.dumps({"does": does, **job}))


class Desk:
    """A queue and a store that are real, and the compiler of the tests."""

    def __init__(self, compiles: Compiles, store: Store, queue: RunQueue) -> None:
        self.compiles, self.store, self.queue = compiles, store, queue
        self.told: list[dict[str, Any]] = []

    async def compile(self, does: str = "", op: Operation = "verify", **job: Any) -> Verification:
        text = await self.compiles.compile(build_task(does, op, **job), self.told.append)
        if op == "verify":
            return Verification.model_validate_json(text)
        return CompiledBatch.model_validate_json(text).verification

    async def ask(self, request: PlanRequest = REQUEST) -> PlanAnswer | Run:
        return await self.compiles.settle_plans(PlanAnswer(**write_plans(request, HOST)))


@contextlib.asynccontextmanager
async def staged(folder: Path, **settings: Any) -> AsyncIterator[Desk]:
    known = Settings(**({"compile_memory_bytes": 512 * MIB} | settings))
    async with opened(folder / "s.sqlite3") as store:
        probe, device, host = answering({}), answering({}), build_host(lambda: HOST, {})
        plans = PlanMaker(probe, device, store, host, HostMeasurements(ManualClock()))  # type: ignore[arg-type]
        queue = RunQueue(store, clock=ManualClock())
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        compiles = Compiles(store, plans, queue, settings=known, environ=environ)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("meshwright_agent.answers.compiles.FUNCTIONS", FUNCTIONS)
                async with asyncio.timeout(60):
                    yield Desk(compiles, store, queue)
        finally:
            await queue.close("the test ended")
            compiles.close()


# ---- one compile ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["verified", "does_not_fit", "not_compiled", "aborted"])
@pytest.mark.parametrize("op", ["verify", "fit"])
async def test_only_what_holds_for_good_is_kept(tmp_path: Path, status: str, op: Operation) -> None:
    async with staged(tmp_path) as desk:
        assert (await desk.compile("answer", op, answer={"status": status})).status == status
        kept = await desk.store.get(COMPILE, "k")
        assert (kept is not None) is (status in {"verified", "does_not_fit"})
        assert kept is None or '"stored":false' in kept.body


@pytest.mark.parametrize("text", ["5", "null", "{}", '{"status": "perhaps"}', "[" * 100_000])
@pytest.mark.parametrize("op", ["verify", "fit"])
async def test_an_answer_that_cannot_be_read_costs_a_compile(tmp_path: Path, op: Operation, text: str) -> None:
    async with staged(tmp_path) as desk:
        await desk.store.write(Document(COMPILE, "k", text))
        assert await desk.compiles.find_known(build_task(op=op)) is None
        assert not (await desk.compile(op=op)).stored
        assert (await desk.compile(op=op)).stored


async def test_a_store_that_does_not_answer_costs_a_compile_and_not_the_answer(tmp_path: Path) -> None:
    async with staged(tmp_path) as desk:
        await desk.store._call(desk.store._close)
        assert (await desk.compile()).status == "verified"
        with pytest.raises(StoreUnavailableError):  # a run needs it
            await desk.ask()


# ---- how it ends ----------------------------------------------------------------------------------------------------


async def test_a_search_that_dies_knows_of_no_batch_that_fits(tmp_path: Path) -> None:
    async with staged(tmp_path) as desk:
        text = await desk.compiles.compile(build_task("abort", "fit"), desk.told.append)
        batch = CompiledBatch.model_validate_json(text)
        assert (batch.verification.status, batch.per_replica_batch_size) == ("aborted", None)


async def test_a_bug_of_ours_is_an_error_with_its_traceback(tmp_path: Path) -> None:
    async with staged(tmp_path) as desk:
        with pytest.raises(ProblemError, match="KeyError", check=has_code("internal")) as caught:
            await desk.compile("raise")
        assert any("a bug of ours" in line for line in caught.value.log)
