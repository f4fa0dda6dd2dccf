"""Evidence without a child: what is known is answered at once, else by a run whose result is that answer."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import StoreUnavailableError
from meshwright.planning.batch_size import answer_batch_size
from meshwright.topology.targets import build_target
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest
from meshwright.wire.mesh import PlanRequest, Plans
from meshwright.wire.runs import Run
from meshwright.wire.verification import Verification
from meshwright_agent.answers.compiles import Compiles
from meshwright_agent.answers.evidence import Evidence
from meshwright_agent.answers.plans import PlanMaker
from meshwright_agent.answers.replies import PlanAnswer
from meshwright_agent.runs import RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.store import PLAN, Store
from meshwright_agent.worker.compile_task import CompileTask
from meshwright_agent.worker.planner import Here, write_plans
from meshwright_agent.worker.supervisor import Answer
from tests.fakes.stored import ManualClock
from tests.fakes.supervised import FakeSupervisor, answering
from tests.unit.store.opening import opened

VERIFIED = {"answer": Verification(status="verified", peak_memory_bytes=7).model_dump_json()}
MODEL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
REQUEST = PlanRequest.model_validate(
    {"mesh": "dp:2,tp:2", "model": MODEL, "training": {"global_batch": 4}, "verify": "compile"}
)
HOST = Here(build_target("cpu:4"))
ADVICE = answer_batch_size(BatchSizeRequest(hardware="h100"), platform=None, kind=None, basis="declared")
ASKED = BatchSizeRequest.model_validate({"model": MODEL, "mesh": "dp:2", "verify": "compile"})
FITTED = {
    "batch_per_device": 3,
    "global_batch": 6,
    "data_parallel_size": 2,
    "compile_count": 2,
    "limit": "memory",
    "verification": {"status": "verified"},
}


class Desk:
    """A queue and a store that are real, and a compiler that answers as told."""

    def __init__(self, compiler: FakeSupervisor, store: Store, queue: RunQueue, evidence: Evidence) -> None:
        self.compiler, self.store, self.queue, self.evidence = compiler, store, queue, evidence

    async def ask(self, request: PlanRequest = REQUEST) -> PlanAnswer | Run:
        answer = PlanAnswer.of(write_plans(request, Here(build_target("cpu:4"))))
        return await self.evidence.settle_plans(answer)

    async def ask_batch(self, key: str = "k", **task: Any) -> BatchSize | Run:
        """Asks for the job of this key."""
        return await self.evidence.settle_batch(
            ADVICE, ASKED, CompileTask(**({"op": "fit", "target": "cpu:2", "key": key, "job": "{}"} | task))
        )

    async def ended(self, run: PlanAnswer | BatchSize | Run) -> Run:
        assert isinstance(run, Run)
        async for _ in self.queue.events(run.id):
            pass
        return await self.queue.get(run.id)


def play(folder: Path, compiler: FakeSupervisor, act: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(folder / "s.sqlite3") as store:
            settings, clock = Settings(), ManualClock()
            compiles = Compiles(compiler, store, settings=settings)  # type: ignore[arg-type]
            plans = PlanMaker(
                answering({}),  # type: ignore[arg-type]
                store,
                here=lambda: Here(build_target("cpu:4")),
                tell_here=lambda _: {},
            )
            queue = RunQueue(store, clock=clock)
            try:
                async with asyncio.timeout(30):
                    await act(Desk(compiler, store, queue, Evidence(compiles, plans, queue)))
            finally:
                await queue.close("the test ended")

    asyncio.run(main())


@dataclass
class HeldCompiler(FakeSupervisor):
    """Answers only once it is let go."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, op: str, arguments: dict[str, Any], **options: Any) -> Answer:
        await self.gate.wait()
        return await super().call(op, arguments, **options)


def read(answer: PlanAnswer | Run) -> Verification:
    assert isinstance(answer, PlanAnswer)
    found = Plans.model_validate_json(answer.write()).plans[0].verification
    assert found is not None
    return found


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_the_first_time_a_run_answers_and_the_second_time_the_store(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        run = await desk.ask()
        assert isinstance(run, Run)
        assert (run.kind, run.request["verify"], run.request["training"]["remat"]) == ("plan", "compile", "full")
        done = await desk.ended(run)
        assert (done.state, done.generation) == ("succeeded", 1)
        plans = Plans.model_validate(done.result)
        said = plans.plans[0].verification
        assert said is not None
        assert (said.status, said.peak_memory_bytes, said.stored) == ("verified", 7, False)
        again = await desk.ask()
        assert read(again) == said.model_copy(update={"stored": True})
        assert len(desk.compiler.calls) == 1

    play(tmp_path, answering(VERIFIED), act)


def test_the_stored_plan_is_the_mesh_alone_whoever_asks_with_which_model(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        async def read_kept(request: PlanRequest) -> str:
            document = await desk.store.get(PLAN, write_plans(request, HOST)["fingerprints"][0])
            return document.body if document else ""

        done = await desk.ended(await desk.ask())
        shown = Plans.model_validate(done.result).plans[0]
        kept = await read_kept(REQUEST)
        assert shown.model is not None
        assert shown.verification is not None
        assert json.loads(kept) == {**shown.model_dump(mode="json"), "model": None, "verification": None}
        again = await desk.ask()
        assert isinstance(again, PlanAnswer)
        assert Plans.model_validate_json(again.write()).plans[0].model == shown.model
        await desk.ask(REQUEST.model_copy(update={"model": None, "training": None, "verify": "none"}))
        assert await read_kept(REQUEST) == kept

    play(tmp_path, answering(VERIFIED), act)


def test_an_answer_that_needs_no_compiler_is_given_at_once(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        answer = PlanAnswer.of(write_plans(REQUEST, Here(build_target("cpu:4"))))
        reason = Verification(status="not_compiled", reason="no such compiler").model_dump_json()
        told = PlanAnswer.of(
            write_plans(REQUEST, Here(build_target("cpu:4"))) | {"tasks": [{**answer.tasks[0], "answer": reason}]}
        )
        assert read(await desk.evidence.settle_plans(told)).status == "not_compiled"
        plain = await desk.ask(REQUEST.model_copy(update={"verify": "none"}))
        assert isinstance(plain, PlanAnswer)
        assert plain.tasks == ()
        assert desk.compiler.calls == []

    play(tmp_path, answering(VERIFIED), act)


def test_each_request_is_a_run_of_its_own_and_the_compiler_is_asked_once(tmp_path: Path) -> None:
    compiler = HeldCompiler(deque([VERIFIED]))

    async def act(desk: Desk) -> None:
        runs = [await desk.ask() for _ in range(3)]
        assert len({run.id for run in runs if isinstance(run, Run)}) == 3
        compiler.gate.set()
        for run in runs:
            assert (await desk.ended(run)).state == "succeeded"
        assert len(compiler.calls) == 1  # all are the same job: the store knew it by then

    play(tmp_path, compiler, act)


def test_equal_requests_for_other_jobs_are_compiled_each(tmp_path: Path) -> None:
    compiler = HeldCompiler(deque([{"answer": json.dumps(FITTED)}]))

    async def act(desk: Desk) -> None:
        _, other = await desk.ask_batch(key="of h100"), await desk.ask_batch(key="of a100")
        compiler.gate.set()
        await desk.ended(other)
        assert len(compiler.calls) == 2

    play(tmp_path, compiler, act)


def test_a_store_that_does_not_answer_is_said_since_a_run_needs_it(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        await desk.store._call(desk.store._close)
        with pytest.raises(StoreUnavailableError):
            await desk.ask()

    play(tmp_path, answering(VERIFIED), act)


# ---- batches --------------------------------------------------------------------------------------------------------


def test_the_largest_batch_stands_beside_the_tables_advice(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        run = await desk.ask_batch()
        assert isinstance(run, Run)
        assert (run.kind, run.request["mesh"]) == ("batch_size", "dp:2")
        done = BatchSize.model_validate((await desk.ended(run)).result)
        assert done.compiled is not None
        assert (done.compiled.batch_per_device, done.compiled.verification.stored) == (3, False)
        assert done.model_copy(update={"compiled": None}) == ADVICE
        again = await desk.ask_batch()
        assert isinstance(again, BatchSize)
        assert again.compiled is not None
        assert again.compiled.verification.stored

    play(tmp_path, answering({"answer": json.dumps(FITTED)}), act)


def test_a_batch_for_which_nothing_compiles_is_said_at_once(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        reason = Verification(status="not_compiled", reason="no such compiler").model_dump_json()
        answer = await desk.ask_batch(answer=reason, data_parallel_size=2)
        assert isinstance(answer, BatchSize)
        assert answer.compiled is not None
        assert (answer.compiled.batch_per_device, answer.compiled.data_parallel_size) == (None, 2)
        assert answer.compiled.verification.status == "not_compiled"

    play(tmp_path, answering({}), act)
