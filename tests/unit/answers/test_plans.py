"""PlanMaker without a child: what is planned here and what is handed over, and every way that it can fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.errors import InvalidRequestError, PlanInfeasibleError, ProblemError, QueueFullError, UnavailableError
from meshwright.planning.request import Inventory
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import PlanRequest, Plans, SearchRequest
from meshwright.wire.model import TrainingSpec
from meshwright_agent.answers import plans as plans_module
from meshwright_agent.answers.benches import HostMeasurements
from meshwright_agent.answers.plans import HERE, LARGE_DEVICES, MAX_WAITING, PlanAnswer, PlanMaker
from meshwright_agent.children.planner import write_plans
from meshwright_agent.store import Document, StoreUnavailableError
from meshwright_agent.supervisor.protocol import FrameError
from meshwright_agent.supervisor.supervisor import CallCancelled
from tests.fakes.codes import has_code
from tests.fakes.stored import ManualClock
from tests.fakes.supervised import FakeSupervisor, answering

TARGET = PlanRequest(mesh="dp:2,tp:-1", target="v5e:2x4")
ANSWER = write_plans(TARGET, None)


class MemoryStore:
    """The two verbs of the store that plans and compiles need; may refuse to write, or both."""

    def __init__(self, refusal: ProblemError | None = None, *, is_busy: bool = False) -> None:
        self.kept: dict[str, Document] = {}
        self.refusal = refusal
        self.is_busy = is_busy
        self.failure = ""
        self.write_count = 0

    async def write(self, *documents: Document) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.kept |= {document.key: document for document in documents}
        self.write_count += 1

    async def get(self, kind: str, key: str) -> Document | None:
        if self.is_busy and self.refusal is not None:
            raise self.refusal
        return self.kept.get(key)


def build(
    planner: FakeSupervisor,
    store: Any = None,
    *,
    large: FakeSupervisor | None = None,
    here: str = "cpu:8",
    look: Callable[[], Inventory] | None = None,
) -> PlanMaker:
    kept = MemoryStore() if store is None else store

    return PlanMaker(
        planner,  # type: ignore[arg-type]
        large or planner,  # type: ignore[arg-type]
        kept,
        build_host(look or (lambda: Inventory(build_target(here))), {"target": here}),
        HostMeasurements(ManualClock()),
    )


def build_host(here: Callable[[], Inventory], dumped: dict[str, Any]) -> Any:
    """Returns a host that plans see so."""

    def dump_here(known: Inventory) -> dict[str, Any]:
        return {**dumped, "health": known.health, "notices": []}

    return SimpleNamespace(here=here, topology=lambda: here().topology, dump_here=dump_here)


def read(maker: PlanMaker, request: PlanRequest | SearchRequest) -> Plans:
    return Plans.model_validate_json(asyncio.run(maker.answer(request)).text)


# ---- where a plan is made -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_", "is_large"), [
    (TARGET, False),
    (PlanRequest(mesh="x:-1", target=f"{LARGE_DEVICES // 8}*h100:8"), False),
    (PlanRequest(mesh="x:-1", target=f"{LARGE_DEVICES // 8 + 1}*h100:8"), True),
    (
        SearchRequest(
            targets=("512*h100:8", "v5p:8x8x8"), model="llama3-8b", training=TrainingSpec(global_batch_size=64)
        ),
        True,
    ),
    (PlanRequest(mesh="x:1", target="no-such-chip"), False),
])  # fmt: skip
def test_a_large_request_has_a_planner_of_its_own(request_: PlanRequest | SearchRequest, is_large: bool) -> None:
    small, large = answering(ANSWER), answering(ANSWER)
    asyncio.run(build(small, large=large).answer(request_))
    assert (len(small.calls), len(large.calls)) == ((0, 1) if is_large else (1, 0))


# ---- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failure", "raised"), [
    (PlanInfeasibleError("no", hint="other"), PlanInfeasibleError),
    (UnavailableError("gone", code="worker_failed"), UnavailableError), (CallCancelled("closing"), UnavailableError),
    (FrameError("too long"), InvalidRequestError),
])  # fmt: skip
def test_what_the_child_cannot_do_is_a_problem_and_the_next_request_is_answered(
    failure: Exception, raised: type[Exception]
) -> None:
    maker = build(answering(failure, ANSWER))
    with pytest.raises(raised):
        asyncio.run(maker.answer(TARGET))
    assert read(maker, TARGET).plans


def test_more_requests_than_may_wait_are_told_when_to_come_again() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        planner = answering(ANSWER)
        call = planner.call

        async def wait(*args: Any, **options: Any) -> Any:
            await gate.wait()
            return await call(*args, **options)

        planner.call = wait  # type: ignore[method-assign]
        maker = build(planner)
        waiting = [asyncio.create_task(maker.answer(TARGET)) for _ in range(MAX_WAITING + 1)]  # one is asked
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as caught:
            await maker.answer(TARGET)
        assert caught.value.retry_after_s
        assert (await maker.answer(PlanRequest(mesh="x:8"))).kept  # which needs no planner
        waiting.pop().cancel()
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(maker.answer(TARGET)))  # in the place of the one that left
        gate.set()
        assert all(answer.kept for answer in await asyncio.gather(*waiting))
        assert (await maker.answer(TARGET)).kept

    asyncio.run(main())


def test_while_the_agent_shuts_down_only_small_plans_are_made() -> None:
    class Released(FakeSupervisor):
        async def release(self, *, reason: str) -> None:
            assert reason == "closing"
            self.state = "stopped"

    async def main() -> None:
        planner = Released(answering(ANSWER).answers)
        maker = build(planner)
        await maker.answer(TARGET)
        await maker.close(10)
        assert planner.state == "stopped"
        with pytest.raises(UnavailableError, check=has_code("not_ready")):
            await maker.answer(TARGET)
        assert (await maker.answer(PlanRequest(mesh="x:8"))).kept

    asyncio.run(main())


# ---- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [TARGET, PlanRequest(mesh="x:8")])
def test_a_store_that_does_not_answer_costs_the_storing_and_not_the_plan(request_: PlanRequest) -> None:
    plans = read(build(answering(ANSWER), MemoryStore(StoreUnavailableError("disk full"))), request_)
    assert plans.plans
    assert [(notice.code, "disk full" in notice.message) for notice in plans.warnings] == [("plan_not_stored", True)]


def test_plans_do_not_wait_in_line_for_a_store_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans_module, "KEEP_TIMEOUT_S", 0.05)

    class StuckStore(MemoryStore):
        async def write(self, *documents: Document) -> None:
            await asyncio.sleep(3)

    async def main() -> list[PlanAnswer]:
        maker = build(answering(ANSWER), StuckStore())
        return await asyncio.gather(*(maker.answer(TARGET) for _ in range(5)))

    began_s = time.monotonic()
    answers = asyncio.run(main())
    assert time.monotonic() - began_s < 5
    assert all("did not take it within 0.05 s" in answer.text for answer in answers)


@pytest.mark.parametrize("sources", [("v5e:2x4", HERE), (HERE, "v5e:2x4")])
def test_plans_that_are_stored_at_once_leave_this_hosts_under_their_fingerprint(sources: tuple[str, str]) -> None:
    class SlowStore(MemoryStore):
        async def get(self, kind: str, key: str) -> Document | None:
            found = await super().get(kind, key)
            await asyncio.sleep(0.01)
            return found

    async def main() -> Document:
        store = SlowStore()
        maker = build(answering(ANSWER), store)
        answers = [PlanAnswer("", [("mw1-a", name)], source=name) for name in sources]
        await asyncio.gather(*map(maker.keep, answers))
        return store.kept["mw1-a"]

    assert asyncio.run(main()).body == HERE


def test_the_newest_plan_is_written_once_unless_large_or_the_store_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = build(answering(ANSWER), store := MemoryStore())

    async def ask(*meshes: str) -> int:
        for mesh in meshes:
            await maker.answer(PlanRequest(mesh=mesh))
        return store.write_count

    assert asyncio.run(ask("dp:8", "dp:8", "dp:8")) == 1
    assert asyncio.run(ask("tp:8", "dp:8")) == 3
    store.failure = "the file was removed"
    assert asyncio.run(ask("dp:8")) == 4
    store.failure = ""
    monkeypatch.setattr("meshwright_agent.answers.plans.RUN_CHARS", 1)
    assert asyncio.run(ask("tp:8", "tp:8")) == 6


def test_a_kept_plan_has_no_warning_of_an_export_that_its_request_wanted() -> None:
    training = TrainingSpec(global_batch_size=64, seq_len=1024)
    asked = SearchRequest(targets=("h100:8",), model="llama3-8b", training=training, axes={"pp": 8}, exports=("jax",))
    answer = write_plans(asked, None)
    assert "export_left_out" in answer["text"]
    assert "export_left_out" not in str(answer["kept"])


def test_a_plan_on_a_target_leaves_the_plan_of_this_host_with_its_fingerprint_where_it_is() -> None:
    store, asked = MemoryStore(), PlanRequest(mesh="x:8", target="h100:8")
    maker = build(answering(write_plans(asked, None)), store, here="cpu:8")
    (elsewhere,) = read(maker, asked).plans
    (fingerprint,) = store.kept
    assert Plans.model_validate_json(asyncio.run(maker.read_stored(fingerprint))).plans[0].target == "h100:8"
    (here,) = read(maker, PlanRequest(mesh="x:8")).plans
    assert here.fingerprint == elsewhere.fingerprint
    read(maker, asked)
    stored = Plans.model_validate_json(asyncio.run(maker.read_stored(fingerprint))).plans[0]
    assert (stored.target, stored.platform) == (None, "cpu")
    assert '"h100:8"' in asyncio.run(maker._find_stored(fingerprint, "h100:8"))
