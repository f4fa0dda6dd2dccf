"""For your own tests: an agent without a process, a network or a device.

    from meshwright.testing import FakeAgent

    fake = FakeAgent("h100:8")
    with fake.client() as client:
        assert client.plan("dp:2,tp:4").mesh_shape == {"dp": 2, "tp": 4}

Plans, searches, batch sizes and environments are real: the planner computes them here. Request bodies are validated as
by a real agent, and a device has one lease at a time. All other replies are fixed, and `FakeAgent.answer` replaces
them. To test against the behavior of a whole agent, start `meshwright-agent serve --simulate h100:8`.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, get_args
from urllib.parse import unquote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from meshwright import AsyncClient, Client
from meshwright.environment import DeviceConfiguration, MemoryStrategy, build_environment
from meshwright.errors import (
    DeviceLeasedError,
    InvalidRequestError,
    NotFoundError,
    PlanInfeasibleError,
    ProblemError,
    RunFailedError,
)
from meshwright.planning.batch_request import check_batch_fields, estimate_request, name_batch_hardware
from meshwright.planning.batch_size import answer_batch_size
from meshwright.planning.compile_job import build_unfitted
from meshwright.planning.request import Inventory, answer_request, list_kept
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target, list_targets
from meshwright.topology.text import format_devices
from meshwright.wire.base import DeviceSelection
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest
from meshwright.wire.bench import BenchCase, BenchRequest, BenchResult, LatestBench, Skipped
from meshwright.wire.devices import Cpu, Device, Devices, Environment, Host, Memory, Release, Software, Targets, Worker
from meshwright.wire.health import Acknowledgement, Component, Health, HealthEvents, State, find_worst_state
from meshwright.wire.leases import LEASE_ID_PATTERN, LEASE_ID_RULE, Lease, LeaseRequest, Leases, Verdict, VerdictRequest
from meshwright.wire.mesh import Plan, PlanRequest, Plans, SearchRequest
from meshwright.wire.problem import build_problem, translate_validation
from meshwright.wire.runs import FINAL_STATES, Run, RunEvent, RunList
from meshwright.wire.verification import Verification

__all__ = ["FakeAgent"]

_URL: Final = "http://fake-agent"
_REQUEST_ID: Final = "fake-request"
_PAUSE_S: Final = 0.01
_JSON: Final = {"content-type": "application/json"}
_EVENT_STREAM: Final = {"content-type": "text/event-stream"}
_NO_COMPILER: Final = "FakeAgent has no compiler; set the reply of a compile with answer(), or ask a real agent"
_NOT_COMPILED: Final = Verification(status="not_compiled", reason=_NO_COMPILER)
_NO_PREFLIGHT: Final = InvalidRequestError("FakeAgent checks no hosts; set the reply with answer()")

_CASES: Final[tuple[BenchCase, ...]] = get_args(BenchCase)

Failure = ProblemError | httpx.TransportError | httpx.Response
Reply = BaseModel | dict[str, Any] | str | Failure
M = TypeVar("M", bound=BaseModel)


class FakeAgent:
    """One host's agent, in this process: `FakeAgent("h100:8").client()` is a client of it.

    Args:
        hardware: a target of one host, such as "cpu:8", "h100:8" or "v5e:2x2"; or the reply of `GET /devices`.
        host: the name of the host. Devices of hosts with different names have different identities.
        clock: the current time, with its zone. Leases expire by it.

    Attributes:
        devices: the reply of `GET /devices`, without leases, and the hardware of plans.
        health: the reply of `GET /health`. Plans leave out its unhealthy devices.
        requests: every received request, oldest first.
        pauses_s: the seconds that its clients would have waited before retries.

    Raises:
        InvalidRequestError: `hardware` is not a valid target.
        PlanInfeasibleError: the target does not exist.
        ValueError: the target has several hosts.
    """

    def __init__(
        self,
        hardware: Devices | str = "cpu:8",
        *,
        host: str = "fake-host",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.devices: Devices = _build_devices(hardware, host, clock()) if isinstance(hardware, str) else hardware
        self.requests: list[httpx.Request] = []
        self.pauses_s: list[float] = []
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[str, Callable[[httpx.Request], Any]] = {}
        self._failures: list[tuple[str | None, Failure]] = []
        self._plans: dict[str, Plan] = {}
        self._runs: dict[str, Run] = {}
        self._leases: dict[str, Lease] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._lease_ends: dict[str, datetime] = {}
        names = ("store", "worker", *(each.component for each in self.devices.devices))
        self.health: Health = _build_health(Component(name=name, state="healthy", **self._date()) for name in names)

    def client(self, **options: Any) -> Client:
        """Returns a client of this agent that waits 10 ms at most between retries; `options` as of `Client`."""

        def pause(delay_s: float) -> None:
            self.pauses_s.append(delay_s)
            time.sleep(min(delay_s, _PAUSE_S))

        return Client(_URL, **{"transport": self.transport(), "pause": pause, **options})

    def async_client(self, **options: Any) -> AsyncClient:
        """Returns the same for asyncio."""

        async def pause(delay_s: float) -> None:
            self.pauses_s.append(delay_s)
            await asyncio.sleep(min(delay_s, _PAUSE_S))

        return AsyncClient(_URL, **{"transport": self.transport(), "pause": pause, **options})

    def transport(self) -> httpx.MockTransport:
        """Returns the transport that sends the requests of any httpx client, sync or async, to this agent."""
        return httpx.MockTransport(self._respond)

    def answer(self, method: str, path: str, reply: Reply | Callable[[httpx.Request], Reply]) -> None:
        """Sets the reply of a route from now on.

        Args:
            method, path: as in the agent's OpenAPI document: "GET", "/runs/{run_id}".
            reply: a model, or a dict that is checked against the model; a text; an error to raise; a whole
                `httpx.Response`; or a function of the request that returns one of these. A `Run` is also found by
                `GET /runs/{run_id}`, with its events.

        Raises:
            ValueError: the route does not exist, or the reply does not match its model.
        """
        route = f"{method} {path}"
        if route not in _ROUTES:
            raise ValueError(f"{route} is not a route; the routes are {', '.join(_ROUTES)}")
        checked = reply if callable(reply) else _check_reply(_ROUTES[route][0], reply)
        self._answers[route] = reply if callable(reply) else lambda request: _copy(checked)

    def fail_next(self, failure: Failure, *, times: int = 1, path: str | None = None) -> None:
        """Makes the next requests fail.

        Args:
            failure: an error of `meshwright.errors`, such as `QueueFullError("…", retry_after_s=3)`, which is sent as
                a problem; an error of httpx, such as `httpx.ConnectError("…")`; or another server's response.
            times: the number of requests that fail.
            path: only requests to this path, such as "/leases/job-7"; None: to any.
        """
        self._failures += [(path, failure)] * times

    def change_health(self, name: str, state: State, reason: str = "", **fields: Any) -> Component:
        """Sets the state of a component, and returns the component.

        Args:
            name: "worker", "device:GPU-…"; a number after the colon, as in "device:1", is a device's local index.
            state, reason, fields: as of `Component`.

        Raises:
            ValueError: the host has no such device.
        """
        devices = {str(each.local_index): each.component for each in self.devices.devices}
        kind, colon, key = name.partition(":")
        key = devices.get(key, f"device:{key}").removeprefix("device:")
        if (kind == "device" or key.isdecimal()) and f"device:{key}" not in devices.values():
            raise ValueError(f"{name!r} is of no device here; name one of {', '.join(devices.values())}")
        name = f"{kind}{colon}{key}"
        component = Component(name=name, state=state, reason=reason, **{**self._date(), **fields})
        self.health = _build_health(({each.name: each for each in self.health.components} | {name: component}).values())
        return component

    def _respond(self, request: httpx.Request) -> httpx.Response:
        sent = httpx.Request(request.method, request.url, headers=request.headers, content=request.content)
        self.requests.append(sent)  # a copy, since httpx changes a request that it sends again with another token
        try:
            return _write(request, self._answer(request))
        except ProblemError as error:
            headers = {"content-type": "application/problem+json", "x-request-id": _REQUEST_ID}
            if error.retry_after_s is not None:
                headers["retry-after"] = f"{error.retry_after_s:g}"
            problem = build_problem(error, request_id=_REQUEST_ID)
            return httpx.Response(error.status, headers=headers, content=problem.model_dump_json())

    def _answer(self, request: httpx.Request) -> Any:
        with self._lock:  # clients may ask from several threads, such as one that renews a lease
            for failing in self._failures:
                if failing[0] in (None, request.url.path):
                    self._failures.remove(failing)
                    return _copy(failing[1])
        route, parts = _find_route(request)
        if (fixed := self._answers.get(route)) is not None:
            reply = _check_reply(_ROUTES[route][0], fixed(request))
        else:
            with self._lock:
                reply = _ROUTES[route][1](self, request, *parts)
        if isinstance(reply, Run):
            self._runs[reply.id] = reply
        return reply

    def _date(self) -> dict[str, Any]:
        return {"observed_at": self._clock(), "age_s": 0.0}

    # ---- the host -----------------------------------------------------------------------------------------------

    def _find_devices(self, request: httpx.Request) -> Devices | str:
        devices = self._mark_leased()
        return format_devices(devices) if request.url.params.get("format") == "text" else devices

    def _acknowledge(self, request: httpx.Request) -> Component:
        name = _read(Acknowledgement, request).component
        known = [each.name for each in self.health.components]
        if name not in known:
            raise NotFoundError(f"no component is called {name!r}", hint=f"there are {', '.join(known)}")
        return self.change_health(name, "healthy")

    def _build_environment(self, request: httpx.Request) -> Environment:
        fraction = request.url.params.get("memory_fraction")
        strategy = request.url.params.get("memory_strategy", "balanced")
        try:
            config = DeviceConfiguration(MemoryStrategy(strategy), None if fraction is None else float(fraction))
            variables = build_environment(config, {}, platform=self.devices.platform)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        if self.devices.platform == "cpu":
            variables |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(len(self.devices.devices))}
        return Environment(memory_fraction=config.resolve_memory_fraction(), variables=variables)

    # ---- plans --------------------------------------------------------------------------------------------------

    def _find_inventory(self) -> Inventory:
        devices, states = self._mark_leased(), {each.name: each.state for each in self.health.components}
        health = {place: states.get(each.component, "unknown") for place, each in enumerate(devices.devices)}
        return Inventory(Topology.of(devices), health=health)

    def _plan(self, request: httpx.Request) -> Plans:
        is_plan, here = request.url.path == "/mesh/plan", self._find_inventory()
        asked: PlanRequest | SearchRequest = _read(PlanRequest, request) if is_plan else _read(SearchRequest, request)
        plans = answer_request(asked, here)
        whole = asked.model_copy(update={"include_devices": True})
        stored = plans if asked.include_devices else answer_request(whole, here)
        for plan in list_kept(asked, stored):  # one of this host comes before one of a target
            if plan.target is None or self._plans.get(plan.fingerprint, plan).target is not None:
                self._plans[plan.fingerprint] = plan
        if not asked.compile:
            return plans
        marked = (plan.model_copy(update={"verification": _NOT_COMPILED}) for plan in plans.plans)
        return plans.model_copy(update={"plans": tuple(marked)})

    def _find_plan(self, fingerprint: str) -> Plan:
        if fingerprint not in self._plans:
            raise NotFoundError(f"no plan {fingerprint[:80]!r} is stored here", hint="POST /mesh/plan stores one")
        return self._plans[fingerprint]

    def _advise(self, request: httpx.Request) -> BatchSize:
        asked, first, estimated = _read(BatchSizeRequest, request), self.devices.devices[0], None
        check_batch_fields(asked)
        if asked.model is not None and not asked.compile:
            stored = None if asked.plan is None else self._find_plan(asked.plan)
            estimated = estimate_request(asked, self._find_inventory(), stored=stored)
            asked = asked.model_copy(update={"target": estimated.plan.target})
        name, platform = name_batch_hardware(asked), first.platform
        advice = answer_batch_size(name, platform=platform, kind=first.kind, basis=first.basis)
        compiled = None if not asked.compile else build_unfitted(_NOT_COMPILED)
        return advice.model_copy(update={"estimated": estimated, "compiled": compiled})

    # ---- runs ---------------------------------------------------------------------------------------------------

    def _bench(self, request: httpx.Request) -> Run:
        asked, now, devices = _read(BenchRequest, request), self._clock(), self.devices.devices
        _select(self._find_inventory(), asked.devices, asked.lease and self._find_lease(request, asked.lease).id)
        result = BenchResult(
            suite=asked.suite,
            platform=self.devices.platform,
            device_kind=devices[0].kind,
            device_count=len(devices),
            jax="0",
            jaxlib="0",
            started_at=now,
            duration_s=0.0,
            records=(),
            skipped=tuple(Skipped(case=case, reason="FakeAgent measures nothing") for case in asked.cases or _CASES),
        )
        times = {"created_at": now, "started_at": now, "finished_at": now}
        said = {"request": asked.model_dump(mode="json"), "result": result.model_dump(mode="json")}
        run = Run(id=f"run-{len(self._runs) + 1}", kind="bench", state="succeeded", **times, **said)
        return self._runs.setdefault(run.id, run)

    def _list_runs(self, request: httpx.Request) -> RunList:
        state, limit = request.url.params.get("state"), int(request.url.params.get("limit", "50"))
        found = [run for run in reversed(self._runs.values()) if state in (None, run.state)]
        return RunList(runs=tuple(found[:limit]))

    def _find_run(self, _: httpx.Request, run_id: str) -> Run:
        if run_id not in self._runs:
            raise NotFoundError(f"no run is called {run_id!r}", hint="GET /runs lists them")
        return self._runs[run_id]

    def _stream_run(self, request: httpx.Request, run_id: str) -> httpx.Response:
        """Returns an event for each record of a bench, one for the progress, and one for the state."""
        run, now = self._find_run(request, run_id), self._clock()
        parts: list[dict[str, Any]] = [
            *({"type": "record", "record": each} for each in (run.result or {}).get("records", ())),
            {"type": "progress", "progress": run.progress},
            {"type": "state"},
        ]
        events = [RunEvent(seq=n, at=now, run_id=run.id, state=run.state, **each) for n, each in enumerate(parts, 1)]
        after = int(request.headers.get("last-event-id") or request.url.params.get("after") or 0)
        frames = (f"id: {each.seq}\nevent: {each.type}\ndata: {each.model_dump_json()}\n\n" for each in events)
        return httpx.Response(200, headers=_EVENT_STREAM, content="".join(list(frames)[after:]))

    def _cancel_run(self, request: httpx.Request, run_id: str) -> Run:
        run = self._find_run(request, run_id)
        if run.state in FINAL_STATES:
            return run
        problem = build_problem(RunFailedError(f"{run_id} was cancelled: by request (DELETE)", code="run_cancelled"))
        return run.model_copy(update={"state": "cancelled", "finished_at": self._clock(), "error": problem})

    # ---- leases -------------------------------------------------------------------------------------------------

    def _list_leases(self) -> dict[str, Lease]:
        """Returns the current leases, oldest first, each with the time that it has left."""
        left = {lease_id: (self._lease_ends[lease_id] - self._clock()).total_seconds() for lease_id in self._leases}
        current = (lease for lease in self._leases.values() if left[lease.id] > 0)
        self._leases = {each.id: each.model_copy(update={"expires_in_s": left[each.id]}) for each in current}
        return self._leases

    def _find_lease(self, _: httpx.Request, lease_id: str) -> Lease:
        if (lease := self._list_leases().get(lease_id)) is not None:
            return lease
        raise NotFoundError(f"lease {lease_id!r} has ended, or never was", hint="GET /leases lists those that hold")

    def _end_lease(self, request: httpx.Request, lease_id: str) -> Lease:
        lease = self._find_lease(request, lease_id)  # which replaces self._leases
        return self._leases.pop(lease.id)

    def _put_verdict(self, request: httpx.Request, lease_id: str) -> Verdict:
        verdict = Verdict(**_read(VerdictRequest, request).model_dump())
        self._verdicts[self._find_lease(request, lease_id).id] = verdict
        return verdict

    def _find_verdict(self, request: httpx.Request, lease_id: str) -> Verdict:
        if (verdict := self._verdicts.get(self._find_lease(request, lease_id).id)) is not None:
            return verdict
        raise NotFoundError(f"no preflight under lease {lease_id!r} has told a verdict", hint="ask again")

    def _put_lease(self, request: httpx.Request, lease_id: str) -> httpx.Response:
        asked, now = _read(LeaseRequest, request), self._clock()
        if re.fullmatch(LEASE_ID_PATTERN, lease_id) is None:
            raise InvalidRequestError.of("lease_id", f"lease_id: it should be {LEASE_ID_RULE}, got {lease_id[:80]!r}")
        held = self._list_leases().get(lease_id)
        devices = self._choose(asked, held)
        for device in devices:
            if device.lease is not None and device.lease.id != lease_id:
                raise DeviceLeasedError(
                    f"device {device.local_index} is reserved by {device.lease.id} ({device.lease.purpose}); a device "
                    "has one lease at a time",
                    hint=f"wait for the end of {device.lease.id}, or have it ended: DELETE /leases/{device.lease.id}",
                )
        said = asked.model_dump(include={"purpose", "preemptible"}) | {"expires_in_s": asked.ttl_s}
        refs = tuple(each.to_reference() for each in devices)
        lease = Lease(id=lease_id, devices=refs, **said)
        if held and (held.devices, held.preemptible) != (lease.devices, lease.preemptible):
            raise DeviceLeasedError(
                f"lease {held.id} holds other devices, or preemptible differs; a renewal may change ttl_s and purpose",
                hint=f"end it first (DELETE /leases/{held.id}), or use another id",
            )
        if not held:
            self._verdicts.pop(lease_id, None)
        self._leases[lease_id], self._lease_ends[lease_id] = lease, now + timedelta(seconds=asked.ttl_s)
        headers = {**_JSON, "location": f"/leases/{lease_id}"}
        return httpx.Response(200 if held else 201, headers=headers, content=lease.model_dump_json())

    def _choose(self, asked: LeaseRequest, held: Lease | None) -> tuple[Device, ...]:
        """Returns the devices that a request names or counts; a renewal that counts as many keeps its devices."""
        here, kept = self._find_inventory(), tuple(each.local_index for each in held.devices) if held else ()
        names: Any = asked.devices
        if names == "all":
            return here.topology.devices
        if not isinstance(names, DeviceSelection):
            names = tuple(dict.fromkeys(names))
        elif kept and names.count in (None, len(kept)) and not {*kept} & {*names.exclude}:
            names = kept
        return tuple(here.topology.devices[place] for place in sorted(_select(here, names)))

    def _mark_leased(self) -> Devices:
        covers = {
            each.local_index: lease.model_copy(update={"devices": ()})
            for lease in self._list_leases().values()
            for each in lease.devices
        }
        marked = (
            each.model_copy(update={"lease": covers.get(each.local_index, each.lease)}) for each in self.devices.devices
        )
        return self.devices.model_copy(update={"devices": tuple(marked)})


_ROUTES: Final[dict[str, tuple[tuple[type, ...], Callable[..., Any]]]] = {
    "GET /healthz": ((str,), lambda fake, request: "ok\n"),
    "GET /readyz": ((str,), lambda fake, request: "ready\n"),
    "GET /health": ((Health,), lambda fake, request: fake.health),
    "POST /health/acknowledge": ((Component,), FakeAgent._acknowledge),
    "GET /events": ((HealthEvents,), lambda fake, request: HealthEvents(events=(), last_seq=0)),
    "GET /events/stream": ((str,), lambda fake, request: httpx.Response(200, headers=_EVENT_STREAM)),
    "GET /metrics": ((str,), lambda fake, request: "# TYPE meshwright_ready gauge\nmeshwright_ready 1\n"),
    "GET /devices": ((Devices, str), FakeAgent._find_devices),
    "POST /devices/release": ((Release,), lambda fake, request: Release(released=True, worker_killed=False)),
    "GET /environment": ((Environment,), FakeAgent._build_environment),
    "GET /targets": ((Targets,), lambda fake, request: list_targets(request.url.params.get("chip"))),
    "POST /mesh/plan": ((Plans, Run), FakeAgent._plan),
    "POST /mesh/search": ((Plans, Run), FakeAgent._plan),
    "GET /mesh/plan/{fingerprint}": ((Plans,), lambda fake, request, name: Plans(plans=(fake._find_plan(name),))),
    "POST /batch-size": ((BatchSize, Run), FakeAgent._advise),
    "POST /placement/bench": ((Run,), FakeAgent._bench),
    "POST /preflight": ((Run,), lambda fake, request: _NO_PREFLIGHT),
    "GET /placement/bench": ((LatestBench,), lambda fake, request: LatestBench(records=())),
    "GET /runs": ((RunList,), FakeAgent._list_runs),
    "GET /runs/{run_id}": ((Run,), FakeAgent._find_run),
    "GET /runs/{run_id}/events": ((str,), FakeAgent._stream_run),
    "DELETE /runs/{run_id}": ((Run,), FakeAgent._cancel_run),
    "GET /leases": ((Leases,), lambda fake, request: Leases(leases=tuple(fake._list_leases().values()))),
    "GET /leases/{lease_id}": ((Lease,), FakeAgent._find_lease),
    "PUT /leases/{lease_id}": ((Lease,), FakeAgent._put_lease),
    "DELETE /leases/{lease_id}": ((Lease,), FakeAgent._end_lease),
    "PUT /leases/{lease_id}/verdict": ((Verdict,), FakeAgent._put_verdict),
    "GET /leases/{lease_id}/verdict": ((Verdict,), FakeAgent._find_verdict),
}
"""Each route, with the models of its reply, and its default reply: of the agent, the request and the path's parts."""


def _find_route(request: httpx.Request) -> tuple[str, list[str]]:
    asked = f"{request.method} {request.url.raw_path.partition(b'?')[0].decode('ascii')}"
    for route in _ROUTES:
        if match := re.fullmatch(re.sub(r"{\w+}", "([^/]+)", route), asked):
            return route, [unquote(part) for part in match.groups()]
    raise NotFoundError(f"there is no route {asked}", hint="GET /openapi.json lists them")


def _check_reply(models: tuple[type, ...], reply: Any) -> Any:
    """Returns a reply, and a dict as the route's model; raises ValueError for one that the route does not give."""
    if isinstance(reply, (*models, ProblemError, httpx.TransportError, httpx.Response)):
        return reply
    return TypeAdapter(models[0]).validate_python(reply)


def _read(model: type[M], request: httpx.Request) -> M:
    try:
        return model.model_validate_json(request.content or b"{}")
    except ValidationError as error:
        raise translate_validation(error.errors()) from error


def _select(here: Inventory, names: Any, lease: str | None = None) -> tuple[int, ...]:
    try:
        return here.select(names, lease).indices
    except PlanInfeasibleError as error:
        raise InvalidRequestError(error.detail, hint=error.hint, errors=error.errors) from error


def _copy(reply: Any) -> Any:
    """Returns a new response, since httpx binds each to one request; any other reply as it is."""
    if isinstance(reply, httpx.Response):
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)
    return reply


def _write(request: httpx.Request, reply: Any) -> httpx.Response:
    if isinstance(reply, Exception):
        raise reply
    if isinstance(reply, httpx.Response):
        return reply
    if isinstance(reply, str):
        return httpx.Response(200, text=reply)
    if isinstance(reply, Run) and request.method == "POST":
        headers = {**_JSON, "location": f"/runs/{reply.id}"}
        return httpx.Response(202, headers=headers, content=reply.model_dump_json())
    return httpx.Response(200, headers=_JSON, content=reply.model_dump_json())


def _build_health(components: Any) -> Health:
    parts = tuple(components)
    return Health(state=find_worst_state(parts), components=parts)


def _build_devices(target: str, host: str, now: datetime) -> Devices:
    """Returns a target of one host as its agent would show it, with made-up identities."""
    topology = build_target(target)
    if len(topology.hosts) > 1:
        raise ValueError(f"target {target} has {len(topology.hosts)} hosts; a FakeAgent is one host, such as h100:8")
    seen: dict[str, Any] = {"basis": "live", "observed_at": now, "age_s": 0.0}
    mark = f"fa{zlib.crc32(host.encode()) & 0xFFFFFF:06x}"

    def place(device: Device) -> Device:
        names: dict[str, Any] = {"host": host, "processes": ()}
        if device.platform == "gpu":
            names["uuid"] = f"GPU-{mark}-0000-4000-8000-{device.local_index:012x}"
            names["pci_bus_id"] = f"0000:{0x1A + device.local_index:02x}:00.0"
        if device.memory is not None:
            names["memory"] = Memory(basis="live", capacity_bytes=device.memory.capacity_bytes, used_bytes=0)
        return device.model_copy(update={**names, **seen})

    return Devices(
        host=Host(name=host, boot_id=f"{mark}-0000-4000-8000-000000000000", **seen),
        cpu=Cpu(),
        numa_nodes=(),
        software=Software(agent="0.0.0", jax="0.10.0", jaxlib="0.10.0", **seen),
        platform=topology.platform,
        worker=Worker(state="ready", generation=1, pid=4242, since=now),
        granules=tuple(granule.model_copy(update={"name": host}) for granule in topology.granules),
        devices=tuple(map(place, topology.devices)),
        links=tuple(link.model_copy(update={"basis": "live"}) for link in topology.links),
    )
