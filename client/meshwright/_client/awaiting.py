"""AsyncClient: the agent's API for asyncio. `blocking.Client` is generated from it by tools/sync_client.py.

To follow a call: `health` → `_ask` → `_send`, which sends with httpx until there is an answer, → `replies.read_reply`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Self, TypeVar, Unpack, cast

import httpx
from pydantic import BaseModel

from meshwright import wire
from meshwright._client.connection import build_async_client, build_auth, build_timeout
from meshwright._client.holding import CHECK_S, DEFAULT_TTL_S, HOLD_TTL_S, RENEW_TIMEOUT_S, RENEWALS, Held, keep_in_task
from meshwright._client.replies import (
    ERRORS,
    MIN_ANSWER_S,
    Attempts,
    Outcome,
    build_deadline,
    build_error,
    count_left,
    delay_retry,
    name_failure,
    read_reply,
    read_result,
)
from meshwright._client.requests import (
    BenchOptions,
    EnvironmentStrategy,
    LeasedLike,
    MemoryStrategyName,
    ModelLike,
    PlanOptions,
    Readiness,
    SearchOptions,
    TrainingLike,
    build_bench,
    build_lease,
    build_renewal,
    build_request,
    name_lease,
    name_new_lease,
    print_mesh,
    print_time,
    quote_part,
    take_best,
)
from meshwright._client.settings import read_settings
from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    DeviceLeasedError,
    MeshwrightError,
    NotFoundError,
    ProblemError,
)
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.base import read_known

DEFAULT_TIMEOUT_S: Final = 30.0
SILENCE_S: Final = 45.0
"""A stream without data for this time is closed and opened again: three of the agent's keep-alive intervals."""
MIN_WINDOW_S: Final = 0.2
CANCEL_TIMEOUT_S: Final = 3.0
SETTLE_S: Final = 0.1

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", "wire.runs.RunEvent", "wire.health.HealthEvent")


@dataclass
class Cursor:
    """Where a stream of events is: the number of the last one, and how the stream ended."""

    after: int
    end: Literal["ended", "silent", "broken"] = "broken"
    may_restart: bool = False
    """A stream that begins below `after` is that of a new history: of the host's health, and never of a run."""


class AsyncClient:
    """An agent, for asyncio. Tasks of one event loop may share one.

    Args:
        base_url: "http://host:8790", "https://…" or "unix:///path"; None: MESHWRIGHT_URL, else
            /run/meshwright/agent.sock where it is there, else http://127.0.0.1:8790.
        token: sent as a bearer token; None: MESHWRIGHT_TOKEN, else the content of MESHWRIGHT_TOKEN_FILE.
        timeout: seconds to wait for a connection (at most 5), and then for each further piece of an answer; None waits
            for ever. A `http_client` keeps its own.
        max_retries: how often a request is sent again when the agent does not answer, is busy or fails.
        transport: passed to httpx as it is, such as `httpx.MockTransport`; None: TCP, or the unix socket.
        http_client: a pool to send with, such as `httpx.AsyncClient(transport=FakeAgent().transport())`; it is
            not closed.
        pause: waits between retries, given seconds; None: `asyncio.sleep`.

    Raises:
        SettingsError: the address, the token or a file that the environment names cannot be used.

    Every method raises AgentConnectionError when no agent answers, AgentTimeoutError when the answer takes
    too long, and the class of `meshwright.errors` that the agent's problem names.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        max_retries: int = 2,
        transport: httpx.AsyncBaseTransport | None = None,
        http_client: httpx.AsyncClient | None = None,
        pause: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        given = None if http_client is None else str(http_client.base_url).rstrip("/")
        settings = read_settings(base_url or given or None, token, os.environ)
        self._address, self._auth = settings.address, build_auth(settings)
        self._owns_http, self._pid = http_client is None, os.getpid()
        self._build = functools.partial(build_async_client, settings, timeout, transport)
        self._http = http_client or self._build()
        self._max_retries = max_retries
        self._pause = pause or asyncio.sleep
        self._answered: set[str] = set()
        """The paths that this agent has answered: if it does not now, it is most likely being restarted."""

    @property
    def base_url(self) -> str:
        """The agent's address, as a person would write it."""
        return self._address.shown

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a `http_client` that was given stays open."""
        if self._owns_http:
            await self._http.aclose()

    def _find_pool(self) -> httpx.AsyncClient:
        """Returns the connections. A process has its own after a fork: two would read each other's answers."""
        if self._owns_http and self._pid != os.getpid() and not self._http.is_closed:
            self._pid, self._http = os.getpid(), self._build()
        return self._http

    async def _ask(self, model: type[M], method: str, path: str, *, gone: M | None = None, **options: Any) -> M:
        """Returns the answer as its model, or `gone` where the request is repeated after a lost answer: 404."""
        response = await self._send(method, path, is_gone_fine=gone is not None, **options)
        return read_reply(model, response, self._address.shown) if gone is None or response.status_code != 404 else gone

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: BaseModel | None = None,
        accept: str = "application/json",
        statuses: Sequence[int] = (200, 202),
        makes_run: bool = False,
        is_gone_fine: bool = False,
        max_retries: int | None = None,
        deadline: float | None = None,
    ) -> httpx.Response:
        """Sends until there is an answer with one of the statuses, or a retry is useless."""
        options: dict[str, Any] = {
            "params": {name: str(value) for name, value in (params or {}).items() if value is not None},
            "headers": {"Accept": accept} if body is None else {"Accept": accept, "Content-Type": "application/json"},
            "content": None if body is None else body.model_dump_json(exclude_unset=True),
        }
        route = f"{method} {'/leases/' if path.startswith('/leases/') else path}"  # each lease has a path of its own
        attempts = Attempts(
            self._max_retries if max_retries is None else max_retries,
            makes_run=makes_run,
            was_reached=bool(self._answered),
            was_ready=route in self._answered,
        )
        while True:
            outcome = await self._try(method, path, options, deadline)
            if isinstance(outcome, httpx.Response):
                if outcome.status_code in statuses:
                    self._answered.add(route)
                    return outcome
                if is_gone_fine and attempts.is_lost and outcome.status_code == 404:
                    return outcome
            delay_s = attempts.find_delay(outcome)
            if delay_s is None or delay_s >= count_left(deadline):
                raise build_error(outcome, f"{method} {path}", self.base_url, makes_run=makes_run)
            if delay_s:
                await self._pause(delay_s)

    async def _try(self, method: str, path: str, options: Mapping[str, Any], deadline: float | None) -> Outcome:
        """Sends once, and returns the reply, or why there is none."""
        http = self._find_pool()
        if http.is_closed:
            hint = "make a new client, or close this one later"
            raise AgentConnectionError(f"{method} {path}: this client has been closed", host=self.base_url, hint=hint)
        timeout = None if deadline is None else build_timeout(max(count_left(deadline), MIN_ANSWER_S))
        try:
            options = {**options, "timeout": timeout or httpx.USE_CLIENT_DEFAULT}
            return await http.send(http.build_request(method, self._address.url + path, **options), auth=self._auth)
        except ERRORS as error:
            return error

    async def _try_delete(self, path: str) -> None:
        """Ends a run or a lease that nothing waits for any more; failures are ignored."""
        with contextlib.suppress(MeshwrightError):
            deadline = build_deadline(CANCEL_TIMEOUT_S)
            await self._send("DELETE", path, max_retries=0, deadline=deadline)

    async def _compute(
        self,
        model: type[M],
        path: str,
        request: wire.mesh.PlanRequest | wire.mesh.SearchRequest | wire.batch_size.BatchSizeRequest,
        on_progress: Callable[[wire.runs.Progress], object] | None,
        timeout_s: float | None,
    ) -> M:
        """Returns the answer, directly or (202) as the result of a run, which continues if the waiting ends early."""
        deadline, makes_run = build_deadline(timeout_s), request.compile
        reply = await self._send("POST", path, body=request, makes_run=makes_run, deadline=deadline)
        if reply.status_code != 202:
            return read_reply(model, reply, self.base_url)
        accepted = read_reply(wire.runs.Run, reply, self.base_url)
        run = await self.wait(accepted.id, on_progress=on_progress, timeout_s=timeout_s and count_left(deadline))
        return read_result(model, run, self.base_url)

    async def _follow(
        self,
        run_id: str,
        after: int,
        deadline: float | None = None,
        report: Callable[[wire.runs.Progress | None], object] = lambda progress: None,
    ) -> AsyncGenerator[wire.runs.RunEvent, None]:
        """Yields each event of a run once and in order, until its final state.

        A broken stream is opened again after the last received event. If a stream brings no event, the run itself is
        requested. This distinguishes a broken stream from a dead agent, and reports progress if no stream works.
        """
        path = f"/runs/{quote_part('run_id', run_id)}"
        cursor, fruitless = Cursor(after), 0
        while True:
            seen = cursor.after
            async with contextlib.aclosing(
                self._listen(f"{path}/events", wire.runs.RunEvent, cursor, deadline)
            ) as events:
                async for event in events:
                    yield event
                    if event.type == "state" and event.state in wire.runs.FINAL_STATES:
                        return
            fruitless = 0 if cursor.after > seen else fruitless + 1
            if not fruitless and count_left(deadline):
                continue
            run = await self._ask(wire.runs.Run, "GET", path, deadline=deadline)
            is_last = cursor.end == "ended" or fruitless > self._max_retries or not count_left(deadline)
            if is_last and run.state in wire.runs.FINAL_STATES:
                return
            report(run.progress)
            delay_s = 0.0 if cursor.end == "silent" else delay_retry(max(0, fruitless - 1))
            await self._pause_until(deadline, delay_s, run)

    async def _pause_until(self, deadline: float | None, delay_s: float, run: wire.runs.Run) -> None:
        left_s = count_left(deadline)
        if not left_s:
            words = f"the time to wait for {run.id} at {self.base_url} is over; it was {run.state}"
            raise AgentTimeoutError(words, host=self.base_url, hint="give it a longer timeout_s")
        if delay_s:
            await self._pause(min(delay_s, left_s))

    async def _listen(
        self, path: str, model: type[E], cursor: Cursor, deadline: float | None = None
    ) -> AsyncGenerator[E, None]:
        """Yields the new events of one stream. Each is one line of data; lines end at a line feed only.

        The timeout of one read can be set only when a stream is opened. To keep a deadline, the timeout is a quarter of
        the remaining time. The stream ends as "silent" when less than the timeout remains.
        """
        cursor.end, rest, left_s, may_restart = "broken", b"", count_left(deadline), cursor.may_restart
        http = self._find_pool()
        if http.is_closed or not left_s:
            return
        window_s = min(SILENCE_S, left_s, max(left_s / 4, MIN_WINDOW_S))
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", "Last-Event-ID": str(cursor.after)}
        options: dict[str, Any] = {"headers": headers, "timeout": build_timeout(window_s), "auth": self._auth}
        try:
            async with (
                http.stream("GET", self._address.url + path, **options) as response,
                contextlib.aclosing(cast(Any, response.aiter_bytes())) as chunks,
            ):
                media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                if response.status_code != 200 or media_type != "text/event-stream":
                    return
                async for chunk in chunks:
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = read_known(model, line.removeprefix(b"data:")) if line.startswith(b"data:") else None
                        if event is not None and (
                            event.seq > cursor.after or (may_restart and event.seq < cursor.after)
                        ):
                            cursor.after, may_restart = event.seq, False
                            yield event
                    if window_s > count_left(deadline):
                        cursor.end = "silent"
                        return
                cursor.end = "ended"
        except ERRORS as error:
            cursor.end = "silent" if name_failure(error) == "timeout" else "broken"

    async def alive(self) -> bool:
        """Returns whether an agent answers its liveness check; tries once, and raises nothing."""
        try:
            await self._send("GET", "/healthz", max_retries=0)
        except (AgentConnectionError, ProblemError):
            return False
        return True

    async def ready(self) -> Readiness:
        """Returns whether the agent can answer plans, with one line on why; tries once."""
        response = await self._send("GET", "/readyz", statuses=(200, 503), max_retries=0)
        return Readiness(response.status_code == 200, response.text.strip())

    async def health(self) -> wire.health.Health:
        """Returns the state of each component of the host."""
        return await self._ask(wire.health.Health, "GET", "/health")

    async def events(
        self,
        component: str | None = None,
        *,
        after: int | None = None,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> wire.health.HealthEvents:
        """Returns the events of the host's health, oldest first.

        Args:
            component: only events of this component, such as "device:3".
            after: only events after the event with this `seq`.
            limit: the maximum number of events; None: the agent's limit.
            since: only events from this time on; without a zone: UTC.

        Raises:
            InvalidRequestError: a number is out of range.
        """
        params = {"component": component, "after": after, "limit": limit, "since": print_time(since)}
        return await self._ask(wire.health.HealthEvents, "GET", "/events", params=params)

    async def follow_events(self, after: int | None = None) -> AsyncIterator[wire.health.HealthEvent]:
        """Yields events of the host's health as they happen, from the event after `after`; None: from now on.

        Never ends by itself. Connects again when the stream breaks. No event is repeated, and none is lost while the
        agent keeps its history. A new history (an empty state directory) is followed from its first event, unless it
        has more events already than `after`.

        Raises:
            AgentConnectionError: the agent is unreachable for longer than the retries last. Continue later after the
                last `seq`.
        """
        if after is None:
            after = (await self.events(limit=1)).last_seq
        cursor, fruitless = Cursor(after, may_restart=True), 0
        while True:
            seen = cursor.after
            async with contextlib.aclosing(self._listen("/events/stream", wire.health.HealthEvent, cursor)) as events:
                async for event in events:
                    yield event
            fruitless = 0 if cursor.after != seen else fruitless + 1
            if not fruitless:
                continue
            history = await self.events(after=cursor.after)  # a dead agent is an error, and any proxy lets this through
            if history.last_seq < cursor.after:  # a new history has begun, whose first events have lower numbers
                cursor.after = 0
                history = await self.events(after=0)
            for event in history.events:
                cursor.after = event.seq
                yield event
            if cursor.end != "silent":
                await self._pause(delay_retry(fruitless - 1))

    async def acknowledge(self, component: str, reason: str) -> wire.health.Component:
        """Reports to the agent that the faults of a component are resolved; returns the new state of the component.

        Args:
            component: its name, as in `health()`.
            reason: the action taken, for the history.

        Raises:
            NotFoundError: there is no component with this name.
            ForbiddenError: the token does not have the scope `admin`.
        """
        request = build_request(wire.health.Acknowledgement, None, {"component": component, "reason": reason})
        return await self._ask(wire.health.Component, "POST", "/health/acknowledge", body=request)

    async def devices(self) -> wire.devices.Devices:
        """Returns the host's topology: devices, links, granules, and the facts around them."""
        return await self._ask(wire.devices.Devices, "GET", "/devices")

    async def devices_text(self) -> str:
        """Returns the same as a table and a link matrix for people."""
        return (await self._send("GET", "/devices", params={"format": "text"}, accept="text/plain")).text

    async def release(self) -> wire.devices.Release:
        """Makes the agent's worker release the devices; returns the processes that still use one."""
        return await self._ask(wire.devices.Release, "POST", "/devices/release")

    async def environment(
        self, memory_strategy: EnvironmentStrategy | None = "balanced", memory_fraction: float | None = None
    ) -> wire.devices.Environment:
        """Returns the variables that a job on this host should start with.

        Args:
            memory_strategy: how much of a GPU's memory JAX may take: "conservative" 0.6, "balanced" 0.75, "aggressive"
                0.9; "custom": `memory_fraction`.
            memory_fraction: the share of a GPU's memory, above 0 and at most 1; None: the strategy's.

        Raises:
            InvalidRequestError: the fraction is out of range, or missing for "custom".
        """
        params = {"memory_strategy": memory_strategy, "memory_fraction": memory_fraction}
        return await self._ask(wire.devices.Environment, "GET", "/environment", params=params)

    async def targets(self, chip: str | None = None) -> wire.devices.Targets:
        """Returns the chips, hosts and slices that a plan's target may name; those of one chip, where it is given.

        Raises:
            UnknownHardwareError: the chip is in no table. The hint names similar chips.
        """
        return await self._ask(wire.devices.Targets, "GET", "/targets", params={"chip": chip})

    async def metrics(self) -> str:
        """Returns the agent's metrics in Prometheus' text format."""
        return (await self._send("GET", "/metrics", accept="text/plain")).text

    async def plan(
        self,
        mesh: MeshLike | MeshSpec | wire.mesh.PlanRequest,
        *,
        on_progress: Callable[[wire.runs.Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> wire.mesh.Plan:
        """Returns the plan of a mesh such as "dp:2,tp:-1" on the agent's devices.

        Args:
            mesh: axes, outermost first: a string, a dict, a list of pairs or a MeshSpec; one size may be -1. Or a whole
                request, without options.
            on_progress: called with each progress of the compile.
            timeout_s: time limit of the call, with the queue and the compile; None: only `timeout`, for each wait.
            **options: devices, model, training, and the contents of the answer: see `PlanOptions`.

        Raises:
            InvalidMeshError: the mesh is not valid.
            InvalidRequestError: an option does not exist, or has the wrong type.
            PlanInfeasibleError: the mesh cannot shard the model, does not fit these devices, or leaves some unused;
                the `code` tells which. The hint has shapes that work.
        """
        request = build_request(wire.mesh.PlanRequest, mesh, {"mesh": mesh, **options})
        plans = await self._compute(wire.mesh.Plans, "/mesh/plan", request, on_progress, timeout_s)
        return take_best(plans, asked="POST /mesh/plan", host=self.base_url)

    async def search(
        self,
        model: ModelLike | wire.mesh.SearchRequest,
        training: TrainingLike | None = None,
        *,
        on_progress: Callable[[wire.runs.Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[SearchOptions],
    ) -> wire.mesh.Plans:
        """Returns plans of the meshes with the fastest step of a model, of those that fit, and why others were
        rejected.

        Args:
            model: the trained model: a preset such as "llama3-70b", the content of a config.json, or dimensions. Or a
                whole request, without training and options.
            training: its training, such as {"global_batch_size": 64, "seq_len": 8192}.
            on_progress: called with each progress of the compiles.
            timeout_s: time limit of the call, with the queue and the compiles; None: only `timeout`, for each wait.
            **options: devices or targets, the choices, and the contents of the answer: see `SearchOptions`.

        Raises:
            InvalidRequestError: an option does not exist, or has the wrong type; or the model is not valid.
            PlanInfeasibleError: no mesh divides model and batch; or such devices are unknown (name a target).
        """
        request = build_request(wire.mesh.SearchRequest, model, {"model": model, "training": training, **options})
        return await self._compute(wire.mesh.Plans, "/mesh/search", request, on_progress, timeout_s)

    async def get_plan(self, fingerprint: str) -> wire.mesh.Plan:
        """Returns the stored plan with this fingerprint, so that every rank can get the same plan.

        Raises:
            NotFoundError: the agent does not have this plan.
        """
        path = f"/mesh/plan/{quote_part('fingerprint', fingerprint)}"
        return take_best(await self._ask(wire.mesh.Plans, "GET", path), asked=f"GET {path}", host=self.base_url)

    async def batch_size(
        self,
        hardware: str | wire.batch_size.BatchSizeRequest | None = None,
        per_device_batch_size: int | None = None,
        *,
        model: ModelLike | None = None,
        training: TrainingLike | None = None,
        mesh: MeshLike | MeshSpec | None = None,
        target: str | None = None,
        plan: wire.mesh.Plan | str | None = None,
        memory_strategy: MemoryStrategyName | None = None,
        compile: bool = False,
        on_progress: Callable[[wire.runs.Progress], object] | None = None,
        timeout_s: float | None = None,
    ) -> wire.batch_size.BatchSize:
        """Returns recommended batch sizes for `hardware` (None: the host's own), and checks a batch size of a device.

        With a `model`, the answer has `estimated`: the recommended number of sequences of its step on a mesh, and why.
        With `compile=True`, it has `compiled` instead: the largest batch of a model that fits by XLA's compiler.

        Args:
            hardware: "h100", "tpu_v5e", a JAX device kind, … Or a whole request, without other fields.
            per_device_batch_size: is checked against the table.
            model: the trained model, as for `plan`.
            training: its training, such as {"seq_len": 8192}; `global_batch_size`, where given, is the limit.
            mesh: the mesh of the training; None: the fastest that fits is searched (not with `compile`).
            target: the hardware, as for `plan`; None: the agent's host.
            plan: a plan that the agent stores, or its fingerprint, instead of `mesh` and `target`.
            memory_strategy: the part of a GPU's memory that the job's JAX may take; None: 0.92 where a model is
                trained.
            compile: asks XLA's compiler, and waits for the result.
            on_progress: called with each progress of the compiles.
            timeout_s: time limit of the call, with the queue and the compiles; None: only `timeout`, for each wait.

        Raises:
            UnknownHardwareError: the name is in no table. The hint has similar names.
            InvalidRequestError: training, mesh or plan without a model, or the model is not valid.
            NotFoundError: the agent does not have this plan.
            PlanInfeasibleError: the mesh cannot shard the model.
            PlanInfeasibleError: no figures are known for such devices (name a target), or no mesh fits.
            RunFailedError: the run failed; or the class of its problem.
        """
        fields = {
            "hardware": hardware,
            "per_device_batch_size": per_device_batch_size,
            "model": model,
            "training": training,
            "mesh": print_mesh(mesh),
            "target": plan.target if target is None and isinstance(plan, wire.mesh.Plan) else target,
            "plan": plan,
            "memory_strategy": memory_strategy,
            "compile": compile,
        }
        request = build_request(wire.batch_size.BatchSizeRequest, hardware, fields)
        return await self._compute(wire.batch_size.BatchSize, "/batch-size", request, on_progress, timeout_s)

    async def bench(
        self,
        request: wire.bench.BenchRequest | None = None,
        *,
        on_progress: Callable[[wire.runs.Progress], object] | None = None,
        on_record: Callable[[wire.bench.BenchRecord], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[BenchOptions],
    ) -> wire.bench.BenchResult:
        """Runs a bench on the agent's devices, waits for it, and returns its result.

        The run is cancelled when the waiting ends early: `timeout_s`, an interrupt, an error of a callback.

        Args:
            request: a whole request, without options.
            on_progress: called with each progress, at once.
            on_record: called with each record as soon as it is measured.
            timeout_s: time limit of the call, with the queue; None: only `timeout`, for each wait.
            **options: what is measured, and how: see `BenchOptions`.

        Raises:
            RunFailedError: the run failed, or was cancelled; or the class of its problem, such as UnavailableError.
            QueueFullError: too many runs are in the queue.
            DeviceLeasedError: another lease has the devices.
            DeviceBusyError: another process uses them.
            InvalidRequestError: the bench needs more memory than the devices have.
        """
        deadline = build_deadline(timeout_s)
        run = await self._start_run("/placement/bench", build_bench(request, options), deadline)
        left_s = timeout_s and count_left(deadline)
        try:
            run = await self.wait(run.id, on_progress=on_progress, on_record=on_record, timeout_s=left_s)
        except GeneratorExit:
            raise  # the loop is gone: nothing can be sent any more
        except BaseException:
            await self._try_delete(f"/runs/{run.id}")
            raise
        return read_result(wire.bench.BenchResult, run, self.base_url)

    async def submit_bench(
        self, request: wire.bench.BenchRequest | None = None, **options: Unpack[BenchOptions]
    ) -> wire.runs.Run:
        """Queues a bench and returns its run at once.

        Args:
            request: the whole request, instead of `options`.
            options: fields of the request, as for `bench`.

        Raises:
            QueueFullError: too many runs are in the queue.
            DeviceLeasedError: another lease has the devices.
            DeviceBusyError: another process uses them.
            InvalidRequestError: the bench needs more memory than the devices have.
        """
        return await self._start_run("/placement/bench", build_bench(request, options), None)

    async def start_preflight(
        self, request: wire.preflight.PreflightRequest, *, timeout_s: float | None = None
    ) -> wire.runs.Run:
        """Starts this host's part of a preflight and returns its run; `meshwright.preflight` asks many hosts.

        Args:
            request: the whole request.
            timeout_s: time limit of the call: the agent asks the driver first; None: only `timeout`, for each wait.

        Raises:
            NotFoundError: the host does not have the request's lease.
            ConflictError: its devices are in use, or leased by others.
        """
        return await self._start_run("/preflight", request, build_deadline(timeout_s))

    async def _start_run(self, path: str, request: BaseModel, deadline: float | None) -> wire.runs.Run:
        return await self._ask(wire.runs.Run, "POST", path, body=request, makes_run=True, deadline=deadline)

    async def latest_bench(self) -> wire.bench.LatestBench:
        """Returns the newest record of each measurement."""
        return await self._ask(wire.bench.LatestBench, "GET", "/placement/bench")

    async def run(self, run_id: str) -> wire.runs.Run:
        """Returns a run.

        Raises:
            NotFoundError: no run has this id.
        """
        return await self._ask(wire.runs.Run, "GET", f"/runs/{quote_part('run_id', run_id)}")

    async def runs(self, limit: int | None = None, state: wire.runs.RunState | None = None) -> wire.runs.RunList:
        """Returns the newest runs, newest first.

        Args:
            limit: the maximum number of runs, 1 to 1000; None: the agent's limit, 50.
            state: only runs in this state, such as "running"; None: in any.

        Raises:
            InvalidRequestError: the limit is out of range.
        """
        return await self._ask(wire.runs.RunList, "GET", "/runs", params={"limit": limit, "state": state})

    async def run_events(self, run_id: str, after: int = 0) -> AsyncIterator[wire.runs.RunEvent]:
        """Yields a run's events from the one after `after`, as they come, until its final state.

        Connects again by itself when the stream breaks; no event comes twice.

        Args:
            run_id: the `id` of a run.
            after: the `seq` of the last known event; 0: from the first event.

        Raises:
            NotFoundError: no run has this id.
        """
        async with contextlib.aclosing(self._follow(run_id, after)) as events:
            async for event in events:
                yield event

    async def cancel_run(self, run_id: str) -> wire.runs.Run:
        """Cancels a run and returns it; a finished run does not change.

        Raises:
            NotFoundError: no run has this id.
        """
        return await self._ask(wire.runs.Run, "DELETE", f"/runs/{quote_part('run_id', run_id)}")

    async def wait(
        self,
        run_id: str,
        *,
        on_progress: Callable[[wire.runs.Progress], object] | None = None,
        on_record: Callable[[wire.bench.BenchRecord], object] | None = None,
        timeout_s: float | None = None,
    ) -> wire.runs.Run:
        """Returns a run once it is over, however it went; it goes on when the waiting ends early.

        Args:
            run_id: the `id` of a run.
            on_progress: called with each new progress.
            on_record: called with each record of a bench.
            timeout_s: seconds to wait; None: without a limit.

        Raises:
            AgentTimeoutError: it is not over after `timeout_s`.
            NotFoundError: no run has this id.
        """
        last: wire.runs.Progress | None = None

        def report(progress: wire.runs.Progress | None) -> None:
            nonlocal last
            if progress is not None and progress != last and on_progress is not None:
                last = progress
                on_progress(progress)

        deadline = build_deadline(timeout_s)
        async with contextlib.aclosing(self._follow(run_id, 0, deadline, report)) as events:
            async for event in events:
                report(event.progress)
                record = read_known(wire.bench.BenchRecord, event.record)
                if record is not None and on_record is not None:
                    on_record(record)
        while True:  # the last event may be there before the run itself is written
            run = await self._ask(wire.runs.Run, "GET", f"/runs/{quote_part('run_id', run_id)}", deadline=deadline)
            if run.state in wire.runs.FINAL_STATES:
                return run
            await self._pause_until(deadline, SETTLE_S, run)

    async def lease(
        self,
        devices: LeasedLike = "all",
        *,
        purpose: str,
        ttl_s: float = DEFAULT_TTL_S,
        preemptible: bool = False,
        lease_id: str | None = None,
    ) -> wire.leases.Lease:
        """Reserves devices of the host until the time is over, or the lease is ended; `hold` does that by itself.

        Args:
            devices: local indices, host/index, uuids or PCI bus ids; "all": every device of the host; {"count": 4}: so
                many that are well and free; a plan: those that it uses.
            purpose: what for, as others shall read it: "slurm job 4711".
            ttl_s: seconds until the lease ends by itself.
            preemptible: a lease that is not preemptible may take the devices over.
            lease_id: the id of the lease, such as "slurm-4711". Where a lease of yours with this id holds these devices
                already, it is renewed. None: an id is made, and each call makes a lease of its own.

        Raises:
            DeviceLeasedError: another lease has one of the devices, for how long; or the lease with this id has other
                devices.
            ForbiddenError: the lease with this id belongs to another owner.
            InvalidRequestError: no such device, a plan on a target or on several hosts, or an argument that is out of
                range.
        """
        request = build_lease(devices, purpose=purpose, ttl_s=ttl_s, preemptible=preemptible)
        return await self._create_lease(name_new_lease(lease_id), request, is_new=lease_id is None)

    async def leases(self) -> wire.leases.Leases:
        """Returns the leases that there are, oldest first."""
        return await self._ask(wire.leases.Leases, "GET", "/leases")

    async def get_lease(self, lease: wire.leases.Lease | str) -> wire.leases.Lease:
        """Returns a lease, or one with this id, as it stands now.

        Raises:
            NotFoundError: it has ended, or never was.
        """
        return await self._ask(wire.leases.Lease, "GET", name_lease(lease))

    async def renew_lease(self, lease: wire.leases.Lease | str, ttl_s: float) -> wire.leases.Lease:
        """Makes a lease end `ttl_s` seconds from now, earlier or later than before; returns it.

        Raises:
            NotFoundError: it has ended, or never was.
        """
        return await self._renew(lease, ttl_s)

    async def end_lease(self, lease: wire.leases.Lease | str) -> wire.leases.Lease:
        """Ends a lease, and returns it as it was.

        Raises:
            NotFoundError: it has ended, or never was.
        """
        held = lease if isinstance(lease, wire.leases.Lease) else None
        with contextlib.suppress(NotFoundError):  # one that is being granted is not to be read yet
            held = held or await self.get_lease(lease)
        return await self._ask(wire.leases.Lease, "DELETE", name_lease(lease), gone=held)

    async def put_verdict(
        self, lease: wire.leases.Lease | str, request: wire.leases.VerdictRequest
    ) -> wire.leases.Verdict:
        """Stores the finding of a preflight under a lease on its host; returns it.

        Raises:
            NotFoundError: the lease has ended, or never was.
        """
        return await self._ask(wire.leases.Verdict, "PUT", f"{name_lease(lease)}/verdict", body=request)

    async def get_verdict(self, lease: wire.leases.Lease | str) -> wire.leases.Verdict:
        """Returns what the last preflight under a lease found on this host.

        Raises:
            NotFoundError: there is none yet; or the lease has ended, or never was.
        """
        return await self._ask(wire.leases.Verdict, "GET", f"{name_lease(lease)}/verdict")

    @contextlib.asynccontextmanager
    async def hold(
        self,
        devices: LeasedLike = "all",
        *,
        purpose: str,
        ttl_s: float = HOLD_TTL_S,
        preemptible: bool = False,
        wait_s: float = 0.0,
        on_lost: Callable[[MeshwrightError], object] | None = None,
    ) -> AsyncIterator[Held]:
        """Leases devices for a block, keeps the lease renewed while it runs, and ends it afterwards.

        A lease that is lost meanwhile (taken over, ended, or not renewed in time) does not end the block.
        The client asks the agent every 2 s, and once more at the end of the block. Read `held.lost`, call
        `held.check()` where the block may end, or give `on_lost`; without any of these, the end of the block emits a
        UserWarning.

        Args:
            devices: local indices, host/index, uuids or PCI bus ids; "all": every device of the host; {"count": 4}: so
                many that are well and free; a plan: those that it uses.
            purpose: what for, as others shall read it.
            ttl_s: seconds after which the lease ends when this process is gone; renewed at a third of it.
            preemptible: a lease that is not preemptible may take the devices over.
            wait_s: seconds to wait for devices that another owner has leased.
            on_lost: called once with why, as soon as it is known: from a thread of the client, by the event loop, or by
                `held.check()` and `held.lost`.

        Raises:
            DeviceLeasedError: another owner has one of the devices, and the lease has not ended after `wait_s`.
            InvalidRequestError: no such device, a plan on a target or on several hosts, or an argument that is out of
                range.
        """
        request = build_lease(devices, purpose=purpose, ttl_s=ttl_s, preemptible=preemptible)
        held = Held(await self._take(name_new_lease(None), request, build_deadline(wait_s)), on_lost)
        try:
            async with keep_in_task(held, functools.partial(self._keep, held, ttl_s)):
                yield held
        finally:
            for text in filter(None, (await self._give_back(held), held.unsaid)):
                warnings.warn(text, UserWarning, stacklevel=3)

    async def _create_lease(self, path: str, request: wire.leases.LeaseRequest, *, is_new: bool) -> wire.leases.Lease:
        """Returns the lease. If the answer is lost, ends a lease with a new id, because nobody else knows that id."""
        try:
            return await self._ask(wire.leases.Lease, "PUT", path, body=request, statuses=(200, 201))
        except GeneratorExit:
            raise
        except BaseException as error:
            if is_new and (not isinstance(error, ProblemError) or not error.code):  # no agent's answer
                await self._try_delete(path)
            raise

    async def _take(self, path: str, request: wire.leases.LeaseRequest, deadline: float | None) -> wire.leases.Lease:
        """Returns the new lease; waits for devices that another lease has."""
        while True:
            try:
                return await self._create_lease(path, request, is_new=True)
            except DeviceLeasedError as error:
                left_s = count_left(deadline)
                if not left_s:
                    raise
                await self._pause(min(error.retry_after_s or CHECK_S, CHECK_S, left_s))

    async def _renew(self, lease: wire.leases.Lease | str, ttl_s: float, **options: Any) -> wire.leases.Lease:
        """Reads the lease first, since an ended lease must not be created again; one that was is ended."""
        path = name_lease(lease)
        held = await self._ask(wire.leases.Lease, "GET", path, **options)
        response = await self._send("PUT", path, body=build_renewal(held, ttl_s), statuses=(200, 201), **options)
        if response.status_code == 201:
            await self._try_delete(path)
            raise NotFoundError(f"lease {held.id} ended before it was renewed", hint="make a new lease")
        return read_reply(wire.leases.Lease, response, self.base_url)

    async def _keep(self, held: Held, ttl_s: float, pause: Callable[[float], Awaitable[None]]) -> None:
        """Renews the lease at a third of its time, and asks for it every `CHECK_S`, until it is lost.

        A failed renewal is tried again until the last granted time is over.
        """
        try:
            renewal = time.monotonic() + min(ttl_s, held.lease.expires_in_s) / RENEWALS
            while not held.is_lost:
                await pause(min(CHECK_S, count_left(renewal)))
                if held.is_lost:
                    return
                now = time.monotonic()
                try:
                    if now < renewal:
                        path, deadline = name_lease(held.lease), now + CHECK_S
                        await self._ask(wire.leases.Lease, "GET", path, max_retries=0, deadline=deadline)
                        continue
                    deadline = now + min(count_left(held.end_s), RENEW_TIMEOUT_S)
                    held.lease = await self._renew(held.lease, ttl_s, max_retries=0, deadline=deadline)
                    held.end_s, held.failure = now + held.lease.expires_in_s, None
                    renewal = now + min(ttl_s, held.lease.expires_in_s) / RENEWALS
                except (NotFoundError, DeviceLeasedError) as error:
                    held.lose(error)
                except MeshwrightError as error:  # an agent that cannot be reached for a while costs no lease
                    if now >= renewal:
                        held.failure = error
                        renewal = time.monotonic() + min(CHECK_S, count_left(held.end_s))
        except Exception as error:  # whatever it is, the lease is not renewed any more
            if not held.lose(MeshwrightError(f"the lease is not renewed any more: {type(error).__name__}: {error}")):
                raise  # what was wrong was `on_lost`

    async def _give_back(self, held: Held) -> str:
        """Ends the lease; returns "", or why it remains until it expires. One that has ended meanwhile is lost."""
        path, deadline = name_lease(held.lease), build_deadline(CANCEL_TIMEOUT_S)
        try:
            await self._ask(wire.leases.Lease, "DELETE", path, gone=held.lease, deadline=deadline)
        except NotFoundError as error:
            held.lose(error, at_end=True)
        except MeshwrightError as error:
            left_s = held.lease.expires_in_s
            text = f"the lease {held.lease.id} could not be ended, and ends by itself within {left_s:.0f} s: {error}"
            return "" if held.is_lost else text
        return ""
