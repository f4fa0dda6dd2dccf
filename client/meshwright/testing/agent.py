"""FakeAgent: every route answered in this process, from state that a test may set, with failures on demand.

It checks requests and answers against the same models as a real agent. Sends nothing, measures nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel

from meshwright._calls.calls import Readiness
from meshwright._calls.endpoints import ENDPOINTS
from meshwright._calls.messages import Answer, FailureKind, Request
from meshwright._client import AsyncClient, Client
from meshwright._http import (
    AsyncHttpClient,
    BrokenError,
    FakeTransport,
    HttpClient,
    build_fake_async_client,
    build_fake_client,
)
from meshwright.environment import DeviceConfiguration, MemoryStrategy, build_environment, format_exports
from meshwright.errors import (
    InvalidRequestError,
    NotReadyError,
    PlanNotFoundError,
    ProblemError,
    class_for,
)
from meshwright.planning.batch_request import check_batch_fields, name_batch_hardware, reckon_request
from meshwright.planning.batch_size import answer_batch_size
from meshwright.planning.compile_request import build_unfitted
from meshwright.planning.request import answer_request
from meshwright.testing.hardware import build_devices
from meshwright.testing.routing import Asked, Served, find_route, write, write_events, write_problem
from meshwright.testing.runs import Outcome, RunBook, build_verification
from meshwright.topology.catalogue import list_targets
from meshwright.topology.model import Topology
from meshwright.topology.text import format_devices
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, CompiledBatch, ReckonedBatch
from meshwright.wire.bench import BenchRequest
from meshwright.wire.devices import Devices, Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Component, Health
from meshwright.wire.mesh import Plan, PlanRequest, Plans
from meshwright.wire.runs import Run, RunKind
from meshwright.wire.targets import Targets
from meshwright.wire.verification import Verification

URL: Final = "http://fake-agent"


@dataclass(frozen=True)
class _Fault:
    """What goes wrong with the next request: on `path` only, unless that is None."""

    path: str | None
    act: Callable[[], Served]


class FakeAgent:
    """An agent for your tests. Give it to a client: `FakeAgent("h100:8").client()`.

    Attributes:
        devices: what `/devices` answers, and what plans are made on.
        health: what `/health` answers.
        readiness: what `/readyz` answers.
        metrics: what `/metrics` answers.
        exports: what `/placement/bench?format=…` answers, by format.
        runs: its benches and compiles; `runs.outcome` sets what benches end with, `runs.held` leaves all running.
        verification: what its compiler says of each plan; None: a made-up report that it fits. An error: the run fails.
        requests: every request that came, in order.
        pauses_s: the seconds that its clients would have waited between retries.
    """

    def __init__(
        self, devices: Devices | str = "cpu:8", *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.devices: Devices = build_devices(devices, at=clock()) if isinstance(devices, str) else devices
        self.health: Health = _build_health(self.devices, clock())
        self.readiness: Readiness = Readiness(True, "ready")
        self.metrics = "# TYPE meshwright_up gauge\nmeshwright_up 1\n"
        self.exports: dict[str, dict[str, Any]] = {
            "nccl-tests": {"results": []},
            "nvbandwidth": {"testcases": []},
        }
        self.runs: RunBook = RunBook(clock)
        self.verification: Verification | ProblemError | None = None
        self.requests: list[Request] = []
        self.pauses_s: list[float] = []
        self._plans: dict[str, Plan] = {}
        self._fixed: dict[tuple[str, str], Callable[[Asked], Any]] = {}
        self._faults: deque[_Fault] = deque()
        self._cuts: deque[int] = deque()

    def client(self, *, max_retries: int = 2, token: str | None = None) -> Client:
        """Returns a client of this agent that does not wait between retries."""
        return Client(http_client=self.http_client(), token=token, max_retries=max_retries, pause=self.pauses_s.append)

    def async_client(self, *, max_retries: int = 2, token: str | None = None) -> AsyncClient:
        """Returns the same for asyncio."""

        async def pause(delay_s: float) -> None:
            self.pauses_s.append(delay_s)
            await asyncio.sleep(0)

        return AsyncClient(http_client=self.async_http_client(), token=token, max_retries=max_retries, pause=pause)

    def http_client(self) -> HttpClient:
        """Returns an HTTP client whose requests all come here: `Client(http_client=fake.http_client())`."""
        return build_fake_client(self.transport(), URL)

    def async_http_client(self) -> AsyncHttpClient:
        """Returns the same for `AsyncClient`."""
        return build_fake_async_client(self.transport(), URL)

    def transport(self) -> FakeTransport:
        """Returns the httpx transport, sync and async, for a client of your own."""
        return FakeTransport(self._handle)

    def answer(self, method: str, path: str, reply: object) -> None:
        """Answers a route with `reply` from now on: a model, a text, a dict, or an error to refuse with.

        Args:
            method, path: as in the agent's OpenAPI document: "POST", "/mesh/plan".
            reply: checked against the route's model.

        Raises:
            ValueError: there is no such route, or the reply is none of it.
        """
        endpoint = next((e for e in ENDPOINTS if (e.method, e.path) == (method, path)), None)
        if endpoint is None:
            known = ", ".join(sorted({f"{e.method} {e.path}" for e in ENDPOINTS}))
            raise ValueError(f"{method} {path} is no route; there are {known}")
        if not isinstance(reply, ProblemError | endpoint.reply):
            if not issubclass(endpoint.reply, BaseModel):
                raise ValueError(f"{method} {path} answers {endpoint.reply.__name__}, not {type(reply).__name__}")
            reply = endpoint.reply.model_validate(reply)
        self._fixed[method, path] = lambda asked: reply

    def fail_next(
        self,
        status: int = 503,
        code: str = "not_ready",
        *,
        detail: str = "a failure that the test asked for",
        hint: str = "",
        retry_after_s: float | None = None,
        times: int = 1,
        path: str | None = None,
    ) -> None:
        """Refuses the next `times` requests (to `path`, if given) with a problem."""
        error = class_for(code, status)(detail, hint=hint, retry_after_s=retry_after_s, status=status, code=code)
        self._faults.extend([_Fault(path, lambda: write_problem(error))] * times)

    def answer_next(self, status: int, body: bytes, *, media_type: str = "text/html", path: str | None = None) -> None:
        """Answers the next request (to `path`, if given) with bytes: a proxy's page, half a JSON."""
        self._faults.append(_Fault(path, lambda: (Answer(status, {"content-type": media_type}), iter((body,)))))

    def drop_next(self, *, times: int = 1, kind: FailureKind = "lost", path: str | None = None) -> None:
        """Breaks the connection of the next `times` requests: "refused", "timeout", "stale" or "lost"."""

        def act() -> Served:
            raise BrokenError(kind, f"{kind}: as the test asked for")

        self._faults.extend([_Fault(path, act)] * times)

    def cut_streams(self, *, after_events: int, times: int = 1) -> None:
        """Breaks the next `times` event streams after so many events."""
        self._cuts.extend([after_events] * times)

    def _handle(self, request: Request) -> Served:
        self.requests.append(request)
        path = urlsplit(request.path).path
        for fault in self._faults:
            if fault.path in (None, path):
                self._faults.remove(fault)
                return fault.act()
        try:
            endpoint, asked = find_route(request)
            fixed = self._fixed.get((endpoint.method, endpoint.path))
            reply = (fixed or getattr(self, _ROUTES[endpoint.method, endpoint.path]))(asked)
            if isinstance(reply, ProblemError):
                raise reply
            return write(reply)
        except ProblemError as error:
            return write_problem(error)

    def _alive(self, asked: Asked) -> str:
        return "ok\n"

    def _ready(self, asked: Asked) -> object:
        status = 200 if self.readiness.ready else 503
        return Answer(status, {"content-type": "text/plain; charset=utf-8"}, f"{self.readiness.line}\n".encode())

    def _health(self, asked: Asked) -> Health:
        return self.health

    def _devices(self, asked: Asked) -> object:
        if asked.query.get("format", "json") == "text":
            return format_devices(self.devices)
        return self.devices

    def _release(self, asked: Asked) -> Release:
        cancelled = tuple(run.id for run in self.runs.list(1000, "running").runs)
        for run_id in cancelled:
            self.runs.cancel(run_id, "the devices were released")
        worker = self.devices.worker.model_copy(update={"state": "stopped", "pid": None})
        self.devices = self.devices.model_copy(update={"worker": worker})
        return Release(released=True, took_s=0.01, killed=False, cancelled_runs=cancelled, worker=worker)

    def _plan(self, asked: Asked) -> object:
        request: PlanRequest = asked.body
        plans = answer_request(request, lambda: Topology.of(self.devices))
        self._plans.update({plan.fingerprint: plan for plan in plans.plans})
        if request.verify == "none":
            return plans
        return self._accept("plan", request, asked, lambda: self._verify_plans(plans))

    def _verify_plans(self, plans: Plans) -> Outcome:
        if isinstance(self.verification, ProblemError):
            return self.verification
        verified = tuple(
            plan.model_copy(update={"verification": self.verification or build_verification(plan)})
            for plan in plans.plans
        )
        self._plans.update({plan.fingerprint: plan for plan in verified})
        return plans.model_copy(update={"plans": verified})

    def _accept(self, kind: RunKind, request: BaseModel, asked: Asked, finish: Callable[[], Outcome]) -> object:
        """Answers 202 and a run; the second time, as what was compiled is kept, 200 and its result."""
        for run in self.runs.list(1000, "succeeded").runs:
            if (run.kind, run.request) == (kind, request.model_dump(mode="json")):
                return _mark_stored(run.result or {})
        if not self.readiness.ready:
            raise NotReadyError(self.readiness.line)
        return _write_accepted(
            self.runs.submit_any(kind, request, asked.request.headers.get("idempotency-key"), finish)
        )

    def _stored_plan(self, asked: Asked) -> Plans:
        return Plans(plans=(self._find_plan(asked.parts["fingerprint"]),))

    def _find_plan(self, fingerprint: str) -> Plan:
        if fingerprint not in self._plans:
            raise PlanNotFoundError(f"no plan has the fingerprint {fingerprint!r}", hint="POST /mesh/plan makes one")
        return self._plans[fingerprint]

    def _batch_size(self, asked: Asked) -> object:
        request: BatchSizeRequest = asked.body
        first = self.devices.devices[0] if self.devices.devices else None
        kind = first.kind if first else "unknown"
        if request.verify == "none":
            check_batch_fields(request)
            reckoned = self._reckon(request) if request.model is not None else None
            named = name_batch_hardware(request.model_copy(update={"target": reckoned.target}) if reckoned else request)
            reply = answer_batch_size(named, platform=self.devices.platform, kind=kind, basis="live")
            return reply.model_copy(update={"reckoned": reckoned})
        reply = answer_batch_size(request, platform=self.devices.platform, kind=kind, basis="live")
        return self._accept("batch_size", request, asked, lambda: self._fit(request, reply))

    def _reckon(self, request: BatchSizeRequest) -> ReckonedBatch:
        stored = None if request.plan is None else self._find_plan(request.plan)
        return reckon_request(request, lambda: Topology.of(self.devices), stored=stored)

    def _fit(self, request: BatchSizeRequest, reply: BatchSize) -> Outcome:
        """Makes up the answer of a few compiles: 8 sequences fit on each part, on whatever mesh."""
        if isinstance(self.verification, ProblemError):
            return self.verification
        parts = self.devices.devices
        verification = self.verification or Verification(
            status="verified", peak_memory_bytes=10 * 2**30, capacity_bytes=15 * 2**30, target=request.target
        )
        compiled = CompiledBatch(
            batch_per_device=8,
            global_batch=8 * len(parts),
            data_parallel_size=len(parts),
            compile_count=3,
            margin_bytes=5 * 2**30,
            limit="memory",
            verification=verification,
        )
        if verification.status != "verified":
            compiled = build_unfitted(len(parts), verification)
        return reply.model_copy(update={"compiled": compiled})

    def _submit_bench(self, asked: Asked) -> object:
        request: BenchRequest = asked.body
        if not self.readiness.ready:
            raise NotReadyError(self.readiness.line)
        return _write_accepted(self.runs.submit(request, asked.request.headers.get("idempotency-key"), self.devices))

    def _latest_bench(self, asked: Asked) -> object:
        format_ = asked.query.get("format", "json")
        if format_ == "json":
            return self.runs.latest()
        if format_ not in self.exports:
            there = ", ".join(("json", *self.exports))
            message = f"format {format_!r} is none of {there}"
            errors = [{"field": "format", "message": message}]
            raise InvalidRequestError(f"format: {message}", hint=f"use one of {there}", errors=errors)
        return self.exports[format_]

    def _runs(self, asked: Asked) -> object:
        return self.runs.list(int(asked.query.get("limit", "50")), asked.query.get("state"))

    def _run(self, asked: Asked) -> object:
        return self.runs.get(asked.parts["run_id"])

    def _cancel_run(self, asked: Asked) -> object:
        return self.runs.cancel(asked.parts["run_id"])

    def _run_events(self, asked: Asked) -> object:
        after = asked.request.headers.get("last-event-id") or asked.query.get("after", "0")
        events = self.runs.events(asked.parts["run_id"], int(after))
        cut = self._cuts.popleft() if self._cuts else None
        return Answer(200, {"content-type": "text/event-stream; charset=utf-8"}), write_events(events, cut)

    def _environment(self, asked: Asked) -> Environment:
        strategy, fraction = (
            asked.query.get("memory_strategy", "balanced"),
            asked.query.get("memory_fraction"),
        )
        try:
            config = DeviceConfiguration(MemoryStrategy(strategy), None if fraction is None else float(fraction))
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        variables = build_environment(config, {})
        return Environment(
            memory_strategy=strategy,
            memory_fraction=config.resolve_memory_fraction(),
            variables=variables,
            exports=format_exports(variables),
        )

    def _targets(self, asked: Asked) -> Targets:
        return list_targets(asked.query.get("chip"))

    def _metrics(self, asked: Asked) -> str:
        return self.metrics


_ROUTES: Final = {
    ("GET", "/healthz"): "_alive",
    ("GET", "/readyz"): "_ready",
    ("GET", "/health"): "_health",
    ("GET", "/devices"): "_devices",
    ("POST", "/devices/release"): "_release",
    ("POST", "/mesh/plan"): "_plan",
    ("GET", "/mesh/plan/{fingerprint}"): "_stored_plan",
    ("POST", "/batch-size"): "_batch_size",
    ("POST", "/placement/bench"): "_submit_bench",
    ("GET", "/placement/bench"): "_latest_bench",
    ("GET", "/runs"): "_runs",
    ("GET", "/runs/{run_id}"): "_run",
    ("GET", "/runs/{run_id}/events"): "_run_events",
    ("DELETE", "/runs/{run_id}"): "_cancel_run",
    ("GET", "/environment"): "_environment",
    ("GET", "/targets"): "_targets",
    ("GET", "/metrics"): "_metrics",
}


def _write_accepted(run: Run) -> Answer:
    headers = {"content-type": "application/json", "location": f"/runs/{run.id}"}
    return Answer(202, headers, run.model_dump_json().encode())


def _mark_stored(result: dict[str, Any]) -> dict[str, Any]:
    """Returns a plan's or a batch's answer with each verification marked as an earlier compile's."""
    if "compiled" in result:
        compiled = result["compiled"]
        return {**result, "compiled": {**compiled, "verification": {**compiled["verification"], "stored": True}}}
    plans = [{**plan, "verification": {**plan["verification"], "stored": True}} for plan in result["plans"]]
    return {**result, "plans": plans}


def _build_health(devices: Devices, at: datetime) -> Health:
    names = ["store", "worker", *(f"device:{device.local_index}" for device in devices.devices)]
    seen = {"state": "healthy", "observed_at": at, "age_s": 0.0}
    return Health(state="healthy", components=tuple(Component.model_validate({"name": n, **seen}) for n in names))
