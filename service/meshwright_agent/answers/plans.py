"""Plans and batch sizes: small plans on this host at once, all others in the planner's processes; each plan is stored.

Rule: what may take longer than the event loop may wait (a target, a topology, a large host) never runs here,
and comes back as JSON text that is shown and stored without being parsed. Large requests have a process of their own,
so that no small one waits for them. Knows no route and no hardware.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from meshwright.errors import (
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    QueueFullError,
    RequestError,
    StoreUnavailableError,
    UnavailableError,
)
from meshwright.planning.batch_request import check_batch_fields, name_batch_hardware
from meshwright.planning.batch_size import answer_batch_size
from meshwright.planning.compile_job import order_verified
from meshwright.planning.request import Inventory
from meshwright.topology.targets import count_devices, find_hardware, read_target
from meshwright.wire.base import Basis, Notice
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, EstimatedBatch
from meshwright.wire.mesh import PlanRequest, Plans, SearchRequest
from meshwright_agent.answers.benches import HostMeasurements
from meshwright_agent.children.compile_tasks import CompileTask
from meshwright_agent.children.planner import write_plans
from meshwright_agent.host.base import Host
from meshwright_agent.store import PLAN, Document, Store
from meshwright_agent.supervisor.protocol import FrameError
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor

SMALL_HOST_DEVICES: Final = 64
"""A host that is planned on the event loop, unless a model is priced: that takes numpy, which is the planner's."""
LARGE_DEVICES: Final = 512
"""More devices in all: a large request. Searches on up to 512 took 0.1 to 1.2 s on two busy cores (2026-11-25)."""
MAX_WAITING: Final = 32
"""Small requests that may wait for the planner, and a quarter of it of large ones, each with its body in memory."""
RETRY_AFTER_S: Final = 1.0
PLAN_TIMEOUT_S: Final = 60.0
"""How long one plan may take in the planner."""

HERE: Final = "here"
"""The state of a stored plan that was made on this host."""
_HOLE: Final = '"plans":[]'
"""Where the plans go in a reply that was written without any."""
RUN_CHARS: Final = 1 << 18
"""Of plans in the result of a run, which is read and written whole whenever somebody looks: some 1,400 devices."""


@dataclass(frozen=True)
class PlanAnswer:
    """What `POST /mesh/plan` or `POST /mesh/search` answers.

    Attributes:
        frame: the reply without its plans, JSON.
        fingerprints: of what is kept: the plans, best first, and the one for when a device fails.
        kept: each plan with its devices and with nothing of a model, JSON: what is stored.
        shown: each plan as the request wants it, JSON.
        tasks: what is to be compiled for each plan, a `CompileTask` as JSON; none where nothing is.
        bare: each plan without its devices, JSON; where something is to be compiled.
        request: what was asked, JSON; likewise.
        source: what it was planned on: `HERE`, a target, or hosts that the request brought.
    """

    frame: str
    fingerprints: Sequence[str]
    kept: Sequence[str]
    shown: Sequence[str]
    tasks: Sequence[Mapping[str, Any]] = ()
    bare: Sequence[str] = ()
    request: str = "{}"
    source: str = "topology"

    @classmethod
    def of(cls, pieces: Mapping[str, Any]) -> PlanAnswer:
        """Returns the answer that `children.planner.write_plans` wrote."""
        shown = pieces["kept"] if pieces["shown"] is None else pieces["shown"]
        return cls(**{**pieces, "shown": shown})

    def verify(self, verifications: Sequence[str]) -> PlanAnswer:
        """Returns the answer with what the compiler says of each plan, JSON; not in what is stored.

        Plans that the compiler refuses go behind the others.
        """
        order = order_verified([json.loads(each)["status"] for each in verifications])

        def fill(plans: Sequence[str]) -> list[str]:
            filled = [_fill(plan, text) for plan, text in zip(plans, verifications, strict=True)]
            return [filled[place] for place in order]

        return replace(self, shown=fill(self.shown), bare=fill(self.bare))

    def cut_for_run(self) -> PlanAnswer:
        """Returns the answer as a run's result has it: of very many devices the plans are shown without them."""
        if sum(map(len, self.shown)) <= RUN_CHARS:
            return self
        message = "the plans are too large for a run's result, which leaves their devices out"
        hint = "GET /mesh/plan/{fingerprint} has them"
        return replace(self, shown=self.bare).warn(Notice(code="devices_left_out", message=message, hint=hint))

    def warn(self, notice: Notice) -> PlanAnswer:
        """Returns the answer with one warning more, about the request and not about a plan."""
        frame = Plans.model_validate_json(self.frame)
        warned = frame.model_copy(update={"warnings": (*frame.warnings, notice)})
        return replace(self, frame=warned.model_dump_json())

    def write(self) -> str:
        """Returns the reply: the same text as of the models."""
        return frame_plans(self.frame, *self.shown)


def frame_plans(frame: str, *plans: str) -> str:
    """Returns a reply with these plans, JSON; `frame` is one without."""
    return frame.replace(_HOLE, f'"plans":[{",".join(plans)}]', 1)


def _fill(plan: str, verification: str) -> str:
    """Returns a plan that was written without a verification, with it. Inside JSON strings the quotes are escaped."""
    before, found, after = plan.rpartition('"verification":null')
    assert found, "a plan is written with all its fields"
    return f'{before}"verification":{verification}{after}'


class PlannerQueue:
    """One planner process, and the requests that wait for it: one at a time, first come, first served.

    Args:
        planner: the process.
        max_waiting: requests that may wait.
    """

    def __init__(self, planner: Supervisor, max_waiting: int) -> None:
        self._planner = planner
        self._max_waiting = max_waiting
        self._count = 0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def ask(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the planner's answer.

        Raises:
            QueueFullError: as many requests wait as may.
            NotReadyError: the agent is shutting down.
            InvalidRequestError: the request is larger than a frame.
            ProblemError: the request is refused, or the planner failed.
        """
        if self._is_closed:
            raise _build_draining()
        if self._count > self._max_waiting:
            detail = f"{self._max_waiting} requests wait for the planner, and no more may wait"
            raise QueueFullError(detail, hint="try again after Retry-After", retry_after_s=RETRY_AFTER_S)
        self._count += 1
        self._idle.clear()
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
            if not self._count:
                self._idle.set()
        return answer.result

    async def close(self, limit_s: float) -> None:
        """Takes no more requests; ends what is under way after `limit_s`."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        await self._planner.release(reason="closing")


class PlanMaker:
    """Makes and keeps plans.

    Args:
        small: the planner of small requests.
        large: the planner of large ones.
        store: keeps plans.
        host: this host.
        measurements: what benches found of it.
    """

    def __init__(
        self, small: Supervisor, large: Supervisor, store: Store, host: Host, measurements: HostMeasurements
    ) -> None:
        self._small = PlannerQueue(small, MAX_WAITING)
        self._large = PlannerQueue(large, MAX_WAITING // 4)
        self._store = store
        self._host = host
        self._measurements = measurements

    # ---- plans -----------------------------------------------------------------------------------------------------

    async def answer(self, request: PlanRequest | SearchRequest) -> PlanAnswer:
        """Returns the answer to a request.

        Raises:
            RequestError: it is refused.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        is_here = not request.targets and request.topology is None
        source = HERE if is_here else "topology" if len(request.targets) != 1 else _name_target(request.targets[0])
        dumped, count = None, _count_devices(request)
        if is_here:
            here = self._host.here()
            count = len(here.topology.devices)
            if count <= SMALL_HOST_DEVICES and request.training is None:
                return await self._settle(PlanAnswer.of(write_plans(request, here)), source)
            dumped = self._dump_here(here)
        queue = self._large if count > LARGE_DEVICES else self._small
        arguments = {"request": request.model_dump_json(exclude_unset=True), "here": dumped}
        op = "plan" if isinstance(request, PlanRequest) else "search"
        return await self._settle(PlanAnswer.of(await queue.ask(op, arguments)), source)

    async def _settle(self, answer: PlanAnswer, source: str) -> PlanAnswer:
        """Keeps the plans, unless the compiler is to be asked: then whoever asks it keeps them with what it says."""
        answer = replace(answer, source=source)
        return answer if answer.tasks else await self.keep(answer)

    async def keep(self, answer: PlanAnswer) -> PlanAnswer:
        """Stores the plans; a store that does not answer costs the storing, not the plan."""
        try:
            kept = zip(answer.fingerprints, answer.kept, strict=True)
            await self._store.write(*[await self._build_document(answer.source, *each) for each in kept])
        except StoreUnavailableError as error:
            message = f"the plan is right but was not stored, its fingerprint finds nothing: {error.detail}"
            hint = "keep this reply in a file (MESHWRIGHT_PLAN)"
            return answer.warn(Notice(code="plan_not_stored", message=message, hint=hint))
        return answer

    async def _build_document(self, source: str, fingerprint: str, body: str) -> Document:
        """Returns a plan as it is stored: one of other hardware does not replace that of this host."""
        if source == HERE:
            return Document(PLAN, fingerprint, body, HERE)
        known = await self._store.get(PLAN, fingerprint)
        is_taken = known is not None and known.state == HERE
        return Document(PLAN, f"{fingerprint}@{source}" if is_taken else fingerprint, body)

    async def read_stored(self, fingerprint: str) -> str:
        """Returns the reply that shows a plan made earlier.

        Raises:
            NotFoundError: none has this fingerprint.
        """
        return frame_plans(Plans(plans=()).model_dump_json(), await self._find_stored(fingerprint))

    async def _find_stored(self, fingerprint: str, target: str | None = None) -> str:
        """Returns a stored plan: that of the target if there is one, else that of this host, else the newest."""
        document = await self._store.get(PLAN, f"{fingerprint}@{_name_target(target)}") if target else None
        document = document or await self._store.get(PLAN, fingerprint)
        if document is None:
            detail = f"no plan with fingerprint {fingerprint[:80]!r} is stored on this host"
            raise NotFoundError(detail, hint="POST /mesh/plan makes and stores one; fingerprints begin with mw1-")
        return document.body

    # ---- batch sizes -----------------------------------------------------------------------------------------------

    async def answer_batch(self, request: BatchSizeRequest) -> BatchSize:
        """Returns the table, the roofline and the verdict; with a model also its batch, estimated.

        Raises:
            RequestError: a name or target is none, or a field is about a model and none is given.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        if request.model is None:
            return self.advise(request)
        estimated = EstimatedBatch.model_validate_json((await self._ask_of_batch("estimate", request))["estimated"])
        advice = self.advise(request.model_copy(update={"target": estimated.target}))
        return advice.model_copy(update={"estimated": estimated})

    async def build_fit_task(self, request: BatchSizeRequest) -> CompileTask:
        """Returns what is to be compiled for the largest batch.

        Raises:
            RequestError: refused; NotFoundError: no plan has the fingerprint that it names.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        return CompileTask(**await self._ask_of_batch("fit", request))

    def advise(self, request: BatchSizeRequest) -> BatchSize:
        """Returns what the table says; this host stands in only where the request names no hardware.

        Raises:
            RequestError: a name is none, or a field is about a model and none is given.
            UnavailableError: this host's devices are not known.
        """
        check_batch_fields(request)
        request = name_batch_hardware(request)
        if request.hardware is not None:
            return answer_batch_size(request, platform=None, kind=None, basis="declared")
        first = self._host.topology().devices[0]
        basis: Basis = first.jax.basis if first.jax else first.basis
        return answer_batch_size(request, platform=first.platform, kind=first.kind, basis=basis)

    async def _ask_of_batch(self, op: str, request: BatchSizeRequest) -> dict[str, Any]:
        plan = None if request.plan is None else await self._find_stored(request.plan, request.target)
        here = None if request.target is not None else self._try_to_dump_here()
        is_large = request.target is not None and _count_target(request.target) > LARGE_DEVICES
        queue = self._large if is_large else self._small
        return await queue.ask(op, {"request": request.model_dump_json(exclude_unset=True), "plan": plan, "here": here})

    def _dump_here(self, here: Inventory) -> dict[str, Any]:
        """Returns this host as `children.planner.parse_here` takes it."""
        return {**self._host.dump_here(here), "measured": self._measurements.dump()}

    def _try_to_dump_here(self) -> dict[str, Any]:
        """Returns this host for a request that is not read yet; if it is not known, the reason."""
        try:
            return self._dump_here(self._host.here())
        except UnavailableError as error:
            return {"problem": error.detail}

    async def close(self, limit_s: float) -> None:
        """Asks the planners no more; ends what they do after `limit_s`. Plans on a small host go on being answered."""
        await asyncio.gather(self._small.close(limit_s), self._large.close(limit_s))


def _count_devices(request: PlanRequest | SearchRequest) -> int:
    """Returns how many devices a request brings or names, all together."""
    hosts = request.topology if isinstance(request.topology, tuple) else (request.topology,)
    brought = sum(len(host.devices) for host in hosts if host is not None)
    return brought + sum(map(_count_target, request.targets))


def _name_target(target: str) -> str:
    """Returns a target as it is written canonically; what is none, as it is: the planner says why."""
    try:
        return str(read_target(target))
    except RequestError:
        return target


def _count_target(target: str) -> int:
    """Returns a target's devices; 0 where it is none: the planner says why."""
    try:
        spec = read_target(target)
        return spec.granules * count_devices(find_hardware(spec))
    except RequestError:
        return 0


def _build_draining() -> NotReadyError:
    hint = "ask again when the agent has started again"
    return NotReadyError("the agent is shutting down and has ended its planner", hint=hint)
