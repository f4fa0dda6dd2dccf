"""PlanMaker: plans of this agent: small ones on this host at once, all others in the planner child; each is kept.

Rule: what may take longer than the event loop may wait (a target, a topology, a large host or body) never runs here,
and comes back as text that nobody parses again; one request at a time. Knows no route and no hardware.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from meshwright.errors import (
    BodyTooLargeError,
    DrainingError,
    PlanNotFoundError,
    QueueFullError,
    StoreUnavailableError,
    UnavailableError,
)
from meshwright.wire.base import Notice
from meshwright.wire.batch_size import BatchSizeRequest, ReckonedBatch
from meshwright.wire.mesh import PlanRequest
from meshwright_agent.answers.replies import PlanAnswer, frame_stored
from meshwright_agent.bodies import decode_body, parse_body
from meshwright_agent.children.compile_tasks import CompileTask
from meshwright_agent.children.planner import Here, write_plans
from meshwright_agent.store import PLAN, Document, Store
from meshwright_agent.supervisor.protocol import FrameError
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor

SMALL_BODY_BYTES: Final = 1 << 16
"""A body that is parsed on the event loop: 64 KiB take about 3 ms."""
SMALL_HOST_DEVICES: Final = 64
"""A host that is planned on the event loop, unless a model is priced: that takes numpy, which is the planner's."""
MAX_WAITING: Final = 32
"""Requests that may wait for the planner, each with its body in memory."""
RETRY_AFTER_S: Final = 1.0
PLAN_TIMEOUT_S: Final = 60.0
"""How long one plan may take in the planner."""


class PlanMaker:
    """Makes and keeps plans.

    Args:
        planner: the child.
        store: keeps plans.
        here: this host; raises UnavailableError while it is not known.
        tell_here: this host as the planner takes it (`worker.planner.parse_here`).
    """

    def __init__(
        self,
        planner: Supervisor,
        store: Store,
        *,
        here: Callable[[], Here],
        tell_here: Callable[[Here], dict[str, Any]],
    ) -> None:
        self._planner = planner
        self._store = store
        self._here = here
        self._tell_here = tell_here
        self._lock = asyncio.Lock()
        self._request_count = 0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer_body(self, body: bytes) -> PlanAnswer:
        """Returns the answer to a request that came as JSON.

        Raises:
            RequestError: it is no plan request, or refused.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        if len(body) > SMALL_BODY_BYTES:
            return await self._settle(await self._ask(decode_body(body), self._tell_anything()))
        return await self.answer(parse_body(body, PlanRequest))

    async def answer(self, request: PlanRequest) -> PlanAnswer:
        """Returns the answer to a request; errors as for `answer_body`."""
        told = None
        if request.target is None and request.topology is None and request.targets is None:
            here = self._here()
            if len(here.topology.devices) <= SMALL_HOST_DEVICES and request.training is None:
                return await self._settle(PlanAnswer.of(write_plans(request, here)))
            told = self._tell_here(here)
        return await self._settle(await self._ask(request.model_dump_json(exclude_unset=True), told))

    async def build_fit_task(self, request: BatchSizeRequest) -> CompileTask:
        """Returns what is to be compiled for the largest batch.

        Raises:
            RequestError: refused; PlanNotFoundError: no plan has the fingerprint that it names.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        return CompileTask(**await self._ask_of_batch("fit", request))

    async def reckon(self, request: BatchSizeRequest) -> ReckonedBatch:
        """Returns the batch of a model's step, without a compile; errors as for `build_fit_task`."""
        return ReckonedBatch.model_validate_json((await self._ask_of_batch("reckon", request))["reckoned"])

    async def _ask_of_batch(self, op: str, request: BatchSizeRequest) -> dict[str, Any]:
        plan = None if request.plan is None else await self._find_stored(request.plan)
        told = None if request.target is not None else self._tell_anything()
        return await self._hand_over(op, {"request": request.model_dump_json(), "plan": plan, "here": told})

    def _tell_anything(self) -> dict[str, Any]:
        """Returns this host for a request that nobody has read yet; if it is not known, the reason."""
        try:
            return self._tell_here(self._here())
        except UnavailableError as error:
            return {"problem": error.detail}

    async def close(self, limit_s: float) -> None:
        """Asks the planner no more; ends what it does after `limit_s`. Plans on a small host go on being answered."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        await self._planner.release(reason="closing")

    async def _ask(self, text: str, told: dict[str, Any] | None) -> PlanAnswer:
        return PlanAnswer.of(await self._hand_over("plan", {"request": text, "here": told}))

    async def _hand_over(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._is_closed:
            raise _build_draining()
        if self._request_count > MAX_WAITING:
            detail = f"{MAX_WAITING} requests wait for the planner, and no more may wait"
            raise QueueFullError(detail, hint="try again after Retry-After", retry_after_s=RETRY_AFTER_S)
        self._request_count += 1
        self._idle.clear()
        try:
            async with self._lock:
                return await self._call(op, arguments)
        finally:
            self._request_count -= 1
            if not self._request_count:
                self._idle.set()

    async def _call(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._is_closed:  # while it waited
            raise _build_draining()
        if self._planner.state == "failed":
            self._planner.reset()  # each request is a new chance: what crashed it may have been the one before
        try:
            answer = await self._planner.call(op, arguments, deadline_s=PLAN_TIMEOUT_S)
        except CallCancelled as error:
            raise _build_draining() from error
        except FrameError as error:
            hint = "send fewer hosts, or plan on them with `meshwright plan --local`"
            raise BodyTooLargeError(f"the request cannot be handed to the planner: {error}", hint=hint) from error
        return answer.result

    async def _settle(self, answer: PlanAnswer) -> PlanAnswer:
        """Keeps the plans, unless the compiler is to be asked: then whoever asks it keeps them with what it says."""
        return answer if answer.tasks else await self.keep(answer)

    async def keep(self, answer: PlanAnswer) -> PlanAnswer:
        """Stores the plans; a store that does not answer costs the storing, not the plan."""
        try:
            kept = zip(answer.fingerprints, answer.kept, strict=True)
            await self._store.write(*(Document(PLAN, fingerprint, body) for fingerprint, body in kept))
        except StoreUnavailableError as error:
            message = f"the plan is right but was not stored, its fingerprint finds nothing: {error.detail}"
            hint = "keep this reply in a file (MESHWRIGHT_PLAN)"
            return answer.warn(Notice(code="plan_not_stored", message=message, hint=hint))
        return answer

    async def read_stored(self, fingerprint: str) -> str:
        """Returns the reply that shows a plan made earlier.

        Raises:
            PlanNotFoundError: none has this fingerprint.
        """
        return frame_stored(await self._find_stored(fingerprint))

    async def _find_stored(self, fingerprint: str) -> str:
        document = await self._store.get(PLAN, fingerprint)
        if document is None:
            detail = f"no plan with fingerprint {fingerprint[:80]!r} is stored on this host"
            raise PlanNotFoundError(detail, hint="POST /mesh/plan makes and stores one; fingerprints begin with mw1-")
        return document.body


def _build_draining() -> DrainingError:
    hint = "ask again when the agent has started again"
    return DrainingError("the agent is shutting down and has ended its planner", hint=hint)
