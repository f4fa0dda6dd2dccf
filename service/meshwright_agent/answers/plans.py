"""Plans and batch sizes: small plans of this host in this process, all others in the planner processes.

Each plan is stored. Work that could block the event loop (a target, a topology, a large host) never runs here. It comes
back as JSON text, which is returned and stored without parsing, unless the compiler's report is added. Large requests
have their own process, so that small requests do not wait for them. This module does not depend on routes or hardware.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from meshwright.errors import InvalidRequestError, NotFoundError, QueueFullError, RequestError, UnavailableError
from meshwright.planning.batch_request import check_batch_fields, name_batch_hardware
from meshwright.planning.batch_size import answer_batch_size
from meshwright.planning.request import Inventory, leave_out_all_devices, order_verified, reorder
from meshwright.topology.targets import count_devices, find_hardware, read_target
from meshwright.wire.base import Basis, Notice
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, EstimatedBatch
from meshwright.wire.mesh import PlanRequest, Plans, SearchRequest
from meshwright.wire.verification import Verification
from meshwright_agent.answers.benches import HostMeasurements
from meshwright_agent.children.compile_tasks import CompileTask
from meshwright_agent.children.planner import write_plans
from meshwright_agent.host.base import AgentHost
from meshwright_agent.store import PLAN, Document, Store, StoreUnavailableError
from meshwright_agent.supervisor.protocol import FrameError
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor

SMALL_HOST_DEVICES: Final = 64
"""Largest host that is planned on the event loop. Pricing a model needs numpy, which only the planner has."""
LARGE_DEVICES: Final = 512
"""A request with more devices in total is a large request. Searches on up to 512 took 0.1 to 1.2 s on two busy cores
(2026-11-25)."""
MAX_WAITING: Final = 32
"""Waiting small requests; the limit of large ones is a quarter of this. Each holds its body in memory."""
RETRY_AFTER_S: Final = 1.0
PLAN_TIMEOUT_S: Final = 60.0
"""Time limit of one plan in the planner."""
KEEP_TIMEOUT_S: Final = 3.0
"""How long a plan waits for the store, which takes others' first: more than a busy database needs for one."""

HERE: Final = "here"
"""The state of a stored plan that was made on this host."""
RUN_CHARS: Final = 1 << 18
"""Limit of the plans in a run's result, which each read loads as a whole. It holds about 1,400 devices."""


@dataclass(frozen=True)
class PlanAnswer:
    """The answer of `POST /mesh/plan` or `POST /mesh/search`.

    Attributes:
        text: the reply, JSON.
        kept: the fingerprint of each stored plan, and the plan with its devices and without model data, JSON: best
            first, then the fallback for a failed device.
        tasks: a `CompileTask` for each plan, JSON; empty if nothing is to be compiled.
        request: the request, JSON; only if something is to be compiled.
        source: the hardware of the plan: `HERE`, a target, or hosts from the request.
    """

    text: str
    kept: Sequence[tuple[str, str]]
    tasks: Sequence[Mapping[str, Any]] = ()
    request: str = "{}"
    source: str = "topology"

    def verify(self, verifications: Sequence[str]) -> PlanAnswer:
        """Returns the answer with the compiler's report on each plan, JSON. The stored plans do not change.

        Plans that the compiler rejects come after the others.
        """
        reports = list(map(Verification.model_validate_json, verifications))
        plans = Plans.model_validate_json(self.text)
        pairs = zip(plans.plans, reports, strict=True)
        verified = tuple(plan.model_copy(update={"verification": report}) for plan, report in pairs)
        ordered = reorder(plans.model_copy(update={"plans": verified}), order_verified([r.status for r in reports]))
        return replace(self, text=ordered.model_dump_json())

    def cut_for_run(self) -> PlanAnswer:
        """Returns the answer as a run's result. Plans with very many devices are shown without their devices."""
        if len(self.text) <= RUN_CHARS:
            return self
        bare = leave_out_all_devices(Plans.model_validate_json(self.text))
        message = "the plans are too large for a run's result, which leaves their devices out"
        hint = "GET /mesh/plan/{fingerprint} has them"
        notice = Notice(code="devices_left_out", message=message, hint=hint)
        return replace(self, text=bare.model_dump_json()).warn(notice)

    def warn(self, notice: Notice) -> PlanAnswer:
        """Returns the answer with one more warning about the request."""
        plans = Plans.model_validate_json(self.text)
        warned = plans.model_copy(update={"warnings": (*plans.warnings, notice)})
        return replace(self, text=warned.model_dump_json())


class PlannerQueue:
    """One planner process and its waiting requests, served one at a time in order of arrival."""

    def __init__(self, planner: Supervisor, max_waiting: int) -> None:
        self._planner = planner
        self._max_waiting = max_waiting
        self._count = 0
        self._is_closed = False

    async def ask(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the planner's answer.

        Raises:
            QueueFullError: the queue is full.
            UnavailableError: the agent is shutting down.
            InvalidRequestError: the request is larger than a frame.
            ProblemError: the request is rejected, or the planner failed.
        """
        if self._is_closed:
            raise _build_draining()
        if self._count > self._max_waiting:
            detail = f"{self._max_waiting} requests wait for the planner, and no more may wait"
            raise QueueFullError(detail, hint="try again after Retry-After", retry_after_s=RETRY_AFTER_S)
        self._count += 1
        try:
            answer = await self._planner.call(op, arguments, deadline_s=PLAN_TIMEOUT_S)
        except CallCancelled as error:
            raise _build_draining() from error
        except FrameError as error:
            hint = "send fewer hosts, or plan on them with `meshwright plan --offline`"
            raise InvalidRequestError(
                f"the request cannot be handed to the planner: {error}", status=413, hint=hint
            ) from error
        finally:
            self._count -= 1
        return answer.result

    async def close(self, limit_s: float) -> None:
        """Accepts no more requests. Ends the current request after `limit_s`."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._count:  # noqa: ASYNC110 -- at the end of the agent
                    await asyncio.sleep(0.01)
        await self._planner.release(reason="closing")


class PlanMaker:
    """Makes and stores plans."""

    def __init__(
        self, small: Supervisor, large: Supervisor, store: Store, host: AgentHost, measurements: HostMeasurements
    ) -> None:
        self._small = PlannerQueue(small, MAX_WAITING)
        self._large = PlannerQueue(large, MAX_WAITING // 4)
        self._store = store
        self._host = host
        self._measurements = measurements
        self._keeping = asyncio.Lock()
        self._newest: tuple[str, Sequence[tuple[str, str]]] | None = None

    # ---- plans -----------------------------------------------------------------------------------------------------

    async def answer(self, request: PlanRequest | SearchRequest) -> PlanAnswer:
        """Returns the answer to a request.

        Raises:
            RequestError: the request is rejected.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        is_here = not request.targets and request.topology is None
        source = HERE if is_here else "topology" if len(request.targets) != 1 else _name_target(request.targets[0])
        dumped, count = None, _count_devices(request)
        if is_here:
            here = self._host.here()
            count = len(here.topology.devices)
            if count <= SMALL_HOST_DEVICES and request.training is None:
                return await self._settle(PlanAnswer(**write_plans(request, here), source=source))
            dumped = self._dump_here(here)
        queue = self._large if count > LARGE_DEVICES else self._small
        arguments = {"request": request.model_dump_json(exclude_unset=True), "here": dumped}
        op = "plan" if isinstance(request, PlanRequest) else "search"
        return await self._settle(PlanAnswer(**await queue.ask(op, arguments), source=source))

    async def _settle(self, answer: PlanAnswer) -> PlanAnswer:
        """Stores the plans, unless they are to be compiled: `Compiles` then stores them before it compiles."""
        return answer if answer.tasks else await self.keep(answer)

    async def keep(self, answer: PlanAnswer) -> PlanAnswer:
        """Stores the plans, unless they are the newest already: each rank of a job may ask for the same. If the store
        does not answer, the plan is returned but not stored."""
        newest = answer.source, answer.kept
        if newest == self._newest and not self._store.failure:
            return answer
        try:
            async with asyncio.timeout(KEEP_TIMEOUT_S), self._keeping:  # what is there decides a plan's name
                await self._store.write(*[await self._build_document(answer.source, *each) for each in answer.kept])
                self._newest = newest if sum(len(body) for _, body in answer.kept) <= RUN_CHARS else None
        except (StoreUnavailableError, TimeoutError) as error:
            why = getattr(error, "detail", f"the store did not take it within {KEEP_TIMEOUT_S:g} s")
            message = f"the plan is valid but was not stored, so its fingerprint finds nothing: {why}"
            hint = "keep this reply in a file (MESHWRIGHT_PLAN)"
            return await asyncio.to_thread(answer.warn, Notice(code="plan_not_stored", message=message, hint=hint))
        return answer

    async def _build_document(self, source: str, fingerprint: str, body: str) -> Document:
        """Returns the stored form of a plan. A plan of other hardware does not replace that of this host."""
        if source == HERE:
            return Document(PLAN, fingerprint, body, HERE)
        known = await self._store.get(PLAN, fingerprint)
        is_taken = known is not None and known.state == HERE
        return Document(PLAN, f"{fingerprint}@{source}" if is_taken else fingerprint, body)

    async def read_stored(self, fingerprint: str) -> str:
        """Returns the reply for a stored plan.

        Raises:
            NotFoundError: no stored plan has this fingerprint.
        """
        stored = await self._find_stored(fingerprint)  # not parsed: it may have very many devices
        return Plans(plans=()).model_dump_json().replace('"plans":[]', f'"plans":[{stored}]', 1)

    async def _find_stored(self, fingerprint: str, target: str | None = None) -> str:
        """Returns a stored plan: that of the target if it exists, else that of this host, else the newest."""
        document = await self._store.get(PLAN, f"{fingerprint}@{_name_target(target)}") if target else None
        document = document or await self._store.get(PLAN, fingerprint)
        if document is None:
            detail = f"no plan with fingerprint {fingerprint[:80]!r} is stored on this host"
            raise NotFoundError(detail, hint="POST /mesh/plan makes and stores one; fingerprints begin with mw1-")
        return document.body

    # ---- batch sizes -----------------------------------------------------------------------------------------------

    async def answer_batch(self, request: BatchSizeRequest) -> BatchSize:
        """Returns the table, the roofline and the evaluation of a batch; with a model also its estimated batch.

        Raises:
            RequestError: a name or target is not valid, or a field is about a model and no model is given.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        if request.model is None:
            return self.advise(request)
        estimated = EstimatedBatch.model_validate_json((await self._ask_of_batch("estimate", request))["estimated"])
        advice = self.advise(request.model_copy(update={"target": estimated.plan.target}))
        return advice.model_copy(update={"estimated": estimated})

    async def build_fit_task(self, request: BatchSizeRequest) -> CompileTask:
        """Returns the compile task of finding the largest batch.

        Raises:
            RequestError: the request is rejected; NotFoundError: no plan has the fingerprint that it names.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        return CompileTask(**await self._ask_of_batch("fit", request))

    def advise(self, request: BatchSizeRequest) -> BatchSize:
        """Returns the advice by the table. It is for this host only if the request does not name hardware.

        Raises:
            RequestError: a name is not valid, or a field is about a model and no model is given.
            UnavailableError: this host's devices are not known.
        """
        check_batch_fields(request)
        request = name_batch_hardware(request)
        if request.hardware is not None:
            return answer_batch_size(request, platform=None, kind=None, basis="declared")
        first = self._host.topology().devices[0]
        basis: Basis = first.basis if first.jax_id is None else self._host.snapshot.jax_basis
        return answer_batch_size(request, platform=first.platform, kind=first.kind, basis=basis)

    async def _ask_of_batch(self, op: str, request: BatchSizeRequest) -> dict[str, Any]:
        plan = None if request.plan is None else await self._find_stored(request.plan, request.target)
        here = None if request.target is not None else self._try_to_dump_here()
        is_large = request.target is not None and _count_target(request.target) > LARGE_DEVICES
        queue = self._large if is_large else self._small
        return await queue.ask(op, {"request": request.model_dump_json(exclude_unset=True), "plan": plan, "here": here})

    def _dump_here(self, here: Inventory) -> dict[str, Any]:
        """Returns this host in the format of `children.planner.parse_here`."""
        return {**self._host.dump_here(here), "measured": self._measurements.dump()}

    def _try_to_dump_here(self) -> dict[str, Any]:
        """Returns this host for an unparsed request; if this host is not known, the reason."""
        try:
            return self._dump_here(self._host.here())
        except UnavailableError as error:
            return {"problem": error.detail}

    async def close(self, limit_s: float) -> None:
        """Closes the planners and ends their work after `limit_s`. Plans of a small host are still answered."""
        await asyncio.gather(self._small.close(limit_s), self._large.close(limit_s))


def _count_devices(request: PlanRequest | SearchRequest) -> int:
    """Returns the total number of devices that a request contains or names."""
    hosts = request.topology if isinstance(request.topology, tuple) else (request.topology,)
    brought = sum(len(host.devices) for host in hosts if host is not None)
    return brought + sum(map(_count_target, request.targets))


def _name_target(target: str) -> str:
    """Returns a target in its canonical form. An invalid target is returned unchanged; the planner reports it."""
    try:
        return str(read_target(target))
    except RequestError:
        return target


def _count_target(target: str) -> int:
    """Returns the number of a target's devices; 0 if the target is not valid, which the planner reports."""
    try:
        spec = read_target(target)
        return spec.granules * count_devices(find_hardware(spec))
    except RequestError:
        return 0


def _build_draining() -> UnavailableError:
    hint = "ask again when the agent has started again"
    return UnavailableError("the agent is shutting down and has ended its planner", hint=hint)
