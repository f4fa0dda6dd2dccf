"""FakeAgent: every route answered in this process, from state that a test may set, with failures on demand.

It checks requests and answers against the same models as a real agent. Sends nothing, measures nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel

from meshwright._calls.calls import Readiness
from meshwright._calls.endpoints import ENDPOINTS
from meshwright._calls.messages import Answer, Request
from meshwright._client import AsyncClient, Client
from meshwright.environment import DeviceConfiguration, MemoryStrategy, build_environment, format_exports
from meshwright.errors import InvalidRequestError, NotFoundError, NotReadyError, ProblemError
from meshwright.planning.batch_request import check_batch_fields, estimate_request, name_batch_hardware
from meshwright.planning.batch_size import answer_batch_size
from meshwright.planning.request import Inventory, answer_request
from meshwright.testing.faults import Faulty
from meshwright.testing.hardware import build_devices
from meshwright.testing.history import History, build_health, change_health, find_component
from meshwright.testing.leases import LeaseBook
from meshwright.testing.routing import Asked, Chunks, Served, find_route, write, write_problem, write_stream
from meshwright.testing.runs import Outcome, RunBook, build_compiled, build_verification
from meshwright.testing.tokens import Scope, Token, TokenBook
from meshwright.topology.model import Topology
from meshwright.topology.targets import list_targets
from meshwright.topology.text import format_devices
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, EstimatedBatch
from meshwright.wire.bench import BenchRequest
from meshwright.wire.devices import Devices, Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Acknowledgement, Component, Health, HealthEvents, State
from meshwright.wire.leases import Lease, Leases
from meshwright.wire.mesh import Plan, PlanRequest, Plans, SearchRequest
from meshwright.wire.runs import Run, RunKind, RunList
from meshwright.wire.targets import Targets
from meshwright.wire.verification import Verification

URL: Final = "http://fake-agent"


class FakeAgent(Faulty):
    """An agent for your tests. Create its client: `FakeAgent("h100:8").client()`.

    Attributes:
        devices: the answer of `/devices`, and the hardware of plans.
        health: the answer of `/health`.
        readiness: the answer of `/readyz`.
        metrics: the answer of `/metrics`.
        runs: its benches and compiles; `runs.outcome` sets the outcome of benches, `runs.held` leaves all running.
        leases: its leases; `leases.end()` and `leases.put()` act for other clients.
        verification: its compiler's report of each plan; None: a made-up report that the plan fits. An error: the run
            fails.
        requests: every received request, in order.
        pauses_s: the seconds that its clients would have waited between retries.
    """

    def __init__(
        self, devices: Devices | str = "cpu:8", *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        super().__init__()
        self.devices: Devices = build_devices(devices, at=clock()) if isinstance(devices, str) else devices
        self.health: Health = build_health(self.devices, clock())
        self.readiness: Readiness = Readiness(True, "ready")
        self.metrics = "# TYPE meshwright_up gauge\nmeshwright_up 1\n"
        self.runs: RunBook = RunBook(clock)
        self.leases: LeaseBook = LeaseBook(clock, self._list_running, self._cancel_runs)
        self.verification: Verification | ProblemError | None = None
        self.requests: list[Request] = []
        self.pauses_s: list[float] = []
        self._clock = clock
        self._history = History(clock)
        self._tokens = TokenBook()
        self._plans: dict[str, Plan] = {}
        self._fixed: dict[tuple[str, str], Callable[[Asked], Any]] = {}

    def client(self, *, max_retries: int = 2, token: str | None = None) -> Client:
        """Returns a client of this agent that does not wait between retries."""
        return Client(http_client=self.http_client(), token=token, max_retries=max_retries, pause=self.pauses_s.append)

    def async_client(self, *, max_retries: int = 2, token: str | None = None) -> AsyncClient:
        """Returns the same for asyncio."""

        async def pause(delay_s: float) -> None:
            self.pauses_s.append(delay_s)
            await asyncio.sleep(0)

        return AsyncClient(http_client=self.async_http_client(), token=token, max_retries=max_retries, pause=pause)

    def http_client(self) -> httpx.Client:
        """Returns an HTTP client that sends all requests to this agent: `Client(http_client=fake.http_client())`."""
        return httpx.Client(transport=self.transport(), base_url=URL, trust_env=False)

    def async_http_client(self) -> httpx.AsyncClient:
        """Returns the same for `AsyncClient`."""
        return httpx.AsyncClient(transport=self.transport(), base_url=URL, trust_env=False)

    def transport(self) -> httpx.MockTransport:
        """Returns the httpx transport, sync and async, for a client of your own."""
        return httpx.MockTransport(self._respond)

    def require_token(self, secret: str, scope: Scope = "admin", *, name: str = "test") -> None:
        """Accepts this token from now on, and rejects requests without a token: 401, or 403 where the scope is too
        small."""
        self._tokens.add(secret, Token(name, scope))

    def revoke_token(self, secret: str) -> None:
        """Refuses this token from now on."""
        self._tokens.remove(secret)

    def change_health(self, name: str, state: State, reason: str = "", **fields: Any) -> None:
        """Brings a component into a state, and notes that in the history; `fields` as of `Component`."""
        before = next((each.state for each in self.health.components if each.name == name), None)
        seen = {"observed_at": self._clock(), "age_s": 0.0, "reason": reason}
        component = Component.model_validate({"name": name, "state": state, **seen, **fields})
        self.health = change_health(self.health, component)
        self._history.note("state", component, before)

    def answer(self, method: str, path: str, reply: object) -> None:
        """Sets the reply of a route from now on: a model, a text, a dict, or an error to raise.

        Args:
            method, path: as in the agent's OpenAPI document: "POST", "/mesh/plan".
            reply: checked against the route's model.

        Raises:
            ValueError: the route does not exist, or the reply does not match its model.
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

    def _respond(self, sent: httpx.Request) -> httpx.Response:
        headers = {name.lower(): value for name, value in sent.headers.items()}
        request = Request(sent.method, sent.url.raw_path.decode("ascii"), headers, sent.content)
        answer, chunks = self._handle(request)
        return httpx.Response(answer.status, headers=dict(answer.headers), stream=Chunks(chunks))

    def _handle(self, request: Request) -> Served:
        self.requests.append(request)
        path = urlsplit(request.path).path
        if (fault := self._take_fault(path)) is not None:
            return fault.act()
        try:
            endpoint, asked = find_route(request)
            caller = self._tokens.admit(request, endpoint.method, endpoint.path)
            fixed = self._fixed.get((endpoint.method, endpoint.path))
            reply = (fixed or getattr(self, _ROUTES[endpoint.method, endpoint.path]))(replace(asked, caller=caller))
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
            return format_devices(self._here())
        return self._here()

    def _here(self) -> Devices:
        return self.leases.mark(self.devices)

    def _release(self, asked: Asked) -> Release:
        cancelled = self._cancel_runs("the devices were released")
        worker = self.devices.worker.model_copy(update={"state": "stopped", "pid": None})
        self.devices = self.devices.model_copy(update={"worker": worker})
        return Release(released=True, duration_s=0.01, worker_killed=False, cancelled_runs=cancelled, worker=worker)

    def _list_running(self) -> tuple[str, ...]:
        return tuple(run.id for run in self.runs.list(1000, "running").runs)

    def _cancel_runs(self, why: str) -> tuple[str, ...]:
        cancelled = self._list_running()
        for run_id in cancelled:
            self.runs.cancel(run_id, why)
        return cancelled

    def _plan(self, asked: Asked) -> object:
        request: PlanRequest | SearchRequest = asked.body
        plans = answer_request(request, Inventory(Topology.of(self._here())))
        self._plans.update({plan.fingerprint: plan for plan in plans.plans})
        if not request.compile:
            return plans
        return self._accept("plan", request, lambda: self._verify_plans(plans))

    def _verify_plans(self, plans: Plans) -> Outcome:
        if isinstance(self.verification, ProblemError):
            return self.verification
        verified = tuple(
            plan.model_copy(update={"verification": self.verification or build_verification(plan)})
            for plan in plans.plans
        )
        self._plans.update({plan.fingerprint: plan for plan in verified})
        return plans.model_copy(update={"plans": verified})

    def _accept(self, kind: RunKind, request: BaseModel, finish: Callable[[], Outcome]) -> object:
        """Answers 202 and a run; the second time 200 and the result, since compiles are cached."""
        for run in self.runs.list(1000, "succeeded").runs:
            if (run.kind, run.request) == (kind, request.model_dump(mode="json")):
                return _mark_stored(run.result or {})
        if not self.readiness.ready:
            raise NotReadyError(self.readiness.line)
        return _write_accepted(self.runs.submit_any(kind, request, finish))

    def _stored_plan(self, asked: Asked) -> Plans:
        return Plans(plans=(self._find_plan(asked.parts["fingerprint"]),))

    def _find_plan(self, fingerprint: str) -> Plan:
        if fingerprint not in self._plans:
            raise NotFoundError(f"no plan has the fingerprint {fingerprint!r}", hint="POST /mesh/plan makes one")
        return self._plans[fingerprint]

    def _batch_size(self, asked: Asked) -> object:
        request: BatchSizeRequest = asked.body
        first = self.devices.devices[0] if self.devices.devices else None
        kind = first.kind if first else "unknown"
        if not request.compile:
            check_batch_fields(request)
            estimated = self._estimate(request) if request.model is not None else None
            named = name_batch_hardware(
                request.model_copy(update={"target": estimated.target}) if estimated else request
            )
            reply = answer_batch_size(named, platform=self.devices.platform, kind=kind, basis="live")
            return reply.model_copy(update={"estimated": estimated})
        reply = answer_batch_size(request, platform=self.devices.platform, kind=kind, basis="live")
        return self._accept("batch_size", request, lambda: self._fit(request, reply))

    def _estimate(self, request: BatchSizeRequest) -> EstimatedBatch:
        stored = None if request.plan is None else self._find_plan(request.plan)
        return estimate_request(request, Inventory(Topology.of(self._here())), stored=stored)

    def _fit(self, request: BatchSizeRequest, reply: BatchSize) -> Outcome:
        if isinstance(self.verification, ProblemError):
            return self.verification
        compiled = build_compiled(len(self.devices.devices), self.verification, request.target)
        return reply.model_copy(update={"compiled": compiled})

    def _submit_bench(self, asked: Asked) -> object:
        request: BenchRequest = asked.body
        if not self.readiness.ready:
            raise NotReadyError(self.readiness.line)
        if request.lease is not None:
            self.leases.check_owner(request.lease, asked.caller)
        named = request.devices if self.devices.platform == "cpu" and request.devices else None
        self.leases.require(named or [each.local_index for each in self.devices.devices], request.lease)
        return _write_accepted(self.runs.submit(request, self.devices))

    def _latest_bench(self, _asked: Asked) -> object:
        return self.runs.latest()

    def _runs(self, asked: Asked) -> object:
        listed = self.runs.list(int(asked.query.get("limit", "50")), asked.query.get("state"))
        return RunList(runs=tuple(run.model_copy(update={"result": None}) for run in listed.runs))

    def _run(self, asked: Asked) -> object:
        return self.runs.get(asked.parts["run_id"])

    def _cancel_run(self, asked: Asked) -> object:
        return self.runs.cancel(asked.parts["run_id"])

    def _run_events(self, asked: Asked) -> object:
        return write_stream(self.runs.events(asked.parts["run_id"], asked.after or 0), self._take_cut())

    def _events(self, asked: Asked) -> HealthEvents:
        since = asked.query.get("since")
        return self._history.list(
            asked.query.get("component"),
            asked.after,
            int(asked.query.get("limit", "100")),
            None if since is None else datetime.fromisoformat(since),
        )

    def _event_stream(self, asked: Asked) -> object:
        return write_stream(self._history.follow(asked.after), self._take_cut())

    def _acknowledge(self, asked: Asked) -> Component:
        request: Acknowledgement = asked.body
        before = find_component(self.health, request.component)
        cleared = Component(name=before.name, state="healthy", observed_at=self._clock(), age_s=0.0)
        self.health = change_health(self.health, cleared)
        self._history.note("acknowledged", cleared, before.state, reason=request.reason)
        return cleared

    def _put_lease(self, asked: Asked) -> Answer:
        lease, is_new = self.leases.put(asked.parts["lease_id"], asked.body, self.devices, asked.caller)
        headers = {"content-type": "application/json", "location": f"/leases/{lease.id}"}
        return Answer(201 if is_new else 200, headers, lease.model_dump_json().encode())

    def _list_leases(self, asked: Asked) -> Leases:
        return self.leases.list()

    def _get_lease(self, asked: Asked) -> Lease:
        return self.leases.get(asked.parts["lease_id"])

    def _end_lease(self, asked: Asked) -> Lease:
        return self.leases.end(asked.parts["lease_id"], asked.caller)

    def _environment(self, asked: Asked) -> Environment:
        strategy, fraction = (
            asked.query.get("memory_strategy", "balanced"),
            asked.query.get("memory_fraction"),
        )
        try:
            config = DeviceConfiguration(MemoryStrategy(strategy), None if fraction is None else float(fraction))
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        platform = next((device.platform for device in self.devices.devices), None)
        variables = build_environment(config, {}, platform=platform)
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
    ("POST", "/mesh/search"): "_plan",
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
    ("PUT", "/leases/{lease_id}"): "_put_lease",
    ("GET", "/leases"): "_list_leases",
    ("GET", "/leases/{lease_id}"): "_get_lease",
    ("DELETE", "/leases/{lease_id}"): "_end_lease",
    ("GET", "/events"): "_events",
    ("GET", "/events/stream"): "_event_stream",
    ("POST", "/health/acknowledge"): "_acknowledge",
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
