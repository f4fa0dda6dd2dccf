"""Client: asks, waits, and returns the answer. Its twin is `awaiting`; a test holds their signatures equal.

Knows no endpoint and no HTTP library: `_calls` says what is sent, `_http` sends it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from meshwright import _http
from meshwright._calls import calls, flows
from meshwright._calls.calls import (
    Call,
    EnvironmentStrategy,
    ExportFormat,
    MemoryStrategyName,
    ModelLike,
    PlanOptions,
    Readiness,
    TrainingLike,
    Verify,
)
from meshwright._calls.flows import Flow, Observer, Open, Pause, ReadChunk, Send, Step
from meshwright._client.connection import DEFAULT_TIMEOUT_S, Connection, advance
from meshwright.errors import AgentConnectionError, ProblemError
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.batch_size import BatchSize
from meshwright.wire.bench import BenchCase, BenchRecord, BenchResult, Dtype, LatestBench
from meshwright.wire.devices import Devices, Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Health
from meshwright.wire.mesh import Plan, Plans
from meshwright.wire.runs import Progress, Run, RunEvent, RunList, RunState
from meshwright.wire.targets import Targets

T = TypeVar("T")


class Client(Connection):
    """An agent, for code that waits for answers. Threads may share one.

    Args:
        base_url: "http://host:8790", "https://…" or "unix:///path"; None: MESHWRIGHT_URL, else the default
            port of this host.
        token: sent as a bearer token; None: MESHWRIGHT_TOKEN, else the content of MESHWRIGHT_TOKEN_FILE.
        timeout: seconds that one answer may take; None waits for ever. A `http_client` keeps its own.
        max_retries: how often a request is sent again when the agent does not answer, is busy or fails.
        http_client: a pool to send with, such as `meshwright.testing.FakeAgent().http_client()`; it is
            not closed.
        pause: waits between retries, given seconds; None: `time.sleep`.

    Raises:
        SettingsError: the address, the token or a file that the environment names cannot be used.

    Every method raises AgentConnectionError when nobody answers, AgentTimeoutError when the answer takes too
    long, and the class of `meshwright.errors` that the agent's problem names.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        max_retries: int = 2,
        http_client: _http.HttpClient | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(base_url, token, max_retries, _http.find_address(http_client) if http_client else "")
        self._owns_http = http_client is None
        self._http = http_client or _http.build_client(self._settings, timeout)
        self._pause = pause or time.sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; a `http_client` that was given stays open."""
        if self._owns_http:
            self._http.close()

    def alive(self) -> bool:
        """Returns whether an agent answers its liveness check; asks once, and raises nothing."""
        try:
            return self._ask(calls.alive())
        except (AgentConnectionError, ProblemError):
            return False

    def ready(self) -> Readiness:
        """Returns whether the agent can answer plans, with its one line on why; asks once."""
        return self._ask(calls.ready())

    def health(self) -> Health:
        """Returns the state of each component of the host."""
        return self._ask(calls.health())

    def devices(self) -> Devices:
        """Returns the host's topology: devices, links, granules, and the facts around them."""
        return self._ask(calls.devices())

    def devices_text(self) -> str:
        """Returns the same as a table and a link matrix for people."""
        return self._ask(calls.devices_text())

    def release(self) -> Release:
        """Makes the agent's worker let go of the devices; returns who still holds one."""
        return self._ask(calls.release())

    def plan(
        self,
        mesh: MeshLike | MeshSpec | None = None,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> Plan:
        """Returns the best plan for a mesh such as "dp:2,tp:-1" on the agent's devices.

        Args:
            mesh: axes, outermost first: a string, a dict, a list of pairs or a MeshSpec; one size may be -1. None: the
                fastest for `model` and `training` that fits.
            on_progress: called with each progress of the compile.
            timeout_s: seconds to wait for the compile, in the queue too; None: as long as it takes.
            **options: which devices, model and training, and what to tell: see `PlanOptions`.

        Raises:
            InvalidMeshError: the mesh is none.
            InvalidRequestError: an option is none that there is, or has the wrong type.
            DoesNotDivideError: the mesh cannot shard the model.
            PlanInfeasibleError: it cannot be laid on these devices; the hint has shapes that can.
            DevicesUnusedError: it would leave devices unused.
        """
        if mesh is None:
            options.setdefault("top", 1)
        return self._complete(calls.best_plan(calls.plans(mesh, **options)), on_progress, timeout_s)

    def plans(
        self,
        mesh: MeshLike | MeshSpec | None = None,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> Plans:
        """Returns all plans, best first, and what was rejected; arguments and errors as for `plan`."""
        return self._complete(calls.plans(mesh, **options), on_progress, timeout_s)

    def get_plan(self, fingerprint: str) -> Plan:
        """Returns the stored plan with this fingerprint: how every rank gets the same one.

        Raises:
            PlanNotFoundError: the agent has none.
        """
        return self._ask(calls.best_plan(calls.stored_plan(fingerprint)))

    def batch_size(
        self,
        hardware: str | None = None,
        batch: int | None = None,
        *,
        model: ModelLike | None = None,
        training: TrainingLike | None = None,
        mesh: MeshLike | MeshSpec | None = None,
        target: str | None = None,
        plan: Plan | str | None = None,
        memory_strategy: MemoryStrategyName = "balanced",
        verify: Verify = "none",
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
    ) -> BatchSize:
        """Returns recommended batch sizes for `hardware` (None: the host's own), and the verdict on `batch`.

        With a `model` also `reckoned`: how many sequences its step should have on a mesh, and which limit says so. With
        `verify="compile"` `compiled` instead: the largest batch of a model that XLA's compiler says fits.

        Args:
            hardware: "h100", "tpu_v5e", a JAX device kind, …
            batch: a batch size per device to judge.
            model: what is trained, as for `plan`.
            training: how, such as {"sequence_length": 8192}; `global_batch`, where given, is the greatest to look at.
            mesh: the mesh that it is trained on; None: the fastest that fits is searched (not with `verify`).
            target: the hardware, as for `plan`; None: the agent's host.
            plan: one that the agent keeps, or its fingerprint, instead of `mesh` and `target`.
            memory_strategy: how much memory the job's JAX may take on a GPU.
            verify: "compile" asks XLA's compiler, and waits for its word.
            on_progress: called with each progress of the compiles.
            timeout_s: seconds to wait for them, in the queue too; None: as long as it takes.

        Raises:
            UnknownHardwareError: no table knows the name; near ones stand in the hint.
            InvalidRequestError: training, mesh or plan without a model, or a model that is none.
            PlanNotFoundError: the agent has no such plan.
            DoesNotDivideError: the mesh cannot shard the model.
            PlanInfeasibleError: nothing is known of what such devices can do (name a target), or no mesh fits.
            RunFailedError: the run failed; or the class of its problem.
        """
        call = calls.batch_size(
            hardware,
            batch,
            model=model,
            training=training,
            mesh=mesh,
            target=target,
            plan=plan,
            memory_strategy=memory_strategy,
            verify=verify,
        )
        return self._complete(call, on_progress, timeout_s)

    def bench(
        self,
        *,
        suite: Literal["quick", "full"] = "quick",
        cases: Sequence[BenchCase] | None = None,
        devices: Sequence[int] | None = None,
        mesh: MeshLike | MeshSpec | None = None,
        axis: str | None = None,
        sizes_bytes: Sequence[int] | None = None,
        matmul_size: int | None = None,
        dtype: Dtype | None = None,
        samples: int | None = None,
        max_s: float | None = None,
        on_progress: Callable[[Progress], object] | None = None,
        on_record: Callable[[BenchRecord], object] | None = None,
        timeout_s: float | None = None,
    ) -> BenchResult:
        """Runs a bench on the agent's devices, waits for it, and returns its result.

        The run is cancelled when the waiting ends early: `timeout_s`, an interrupt, an error of a callback.

        Args:
            suite: "quick" is within 20 s; "full" has more sizes and samples.
            cases: what is measured; None: all.
            devices: local indices; None: all.
            mesh: the mesh that collectives run on; None: one axis over the devices.
            axis: the one axis that they run over; None: each in turn.
            sizes_bytes: sizes of transfers and collectives; None: the suite's.
            matmul_size: n of the n×n×n matmul; None: the suite's.
            dtype: None: float32 on CPU, bfloat16 elsewhere.
            samples: how many per measurement, at least 3; None: the suite's.
            max_s: the time limit of the run on the agent.
            on_progress: called with each progress, at once.
            on_record: called with each record as soon as it is measured.
            timeout_s: seconds to wait, in the queue too; None: as long as it takes.

        Raises:
            RunFailedError: it failed; or the class of its problem, such as WorkerCrashedError.
            RunCancelledError: somebody cancelled it.
            QueueFullError: too many runs wait.
            BenchTooLargeError: it needs more memory than there is.
        """
        submit = calls.submit_bench(
            suite=suite,
            cases=cases,
            devices=devices,
            mesh=mesh,
            axis=axis,
            sizes_bytes=sizes_bytes,
            matmul_size=matmul_size,
            dtype=dtype,
            samples=samples,
            max_s=max_s,
        )
        return self._drive(flows.bench(submit, self._link, Observer(on_progress, on_record), timeout_s))

    def submit_bench(
        self,
        *,
        suite: Literal["quick", "full"] = "quick",
        cases: Sequence[BenchCase] | None = None,
        devices: Sequence[int] | None = None,
        mesh: MeshLike | MeshSpec | None = None,
        axis: str | None = None,
        sizes_bytes: Sequence[int] | None = None,
        matmul_size: int | None = None,
        dtype: Dtype | None = None,
        samples: int | None = None,
        max_s: float | None = None,
    ) -> Run:
        """Queues a bench and returns its run at once; arguments and errors as for `bench`."""
        return self._ask(
            calls.submit_bench(
                suite=suite,
                cases=cases,
                devices=devices,
                mesh=mesh,
                axis=axis,
                sizes_bytes=sizes_bytes,
                matmul_size=matmul_size,
                dtype=dtype,
                samples=samples,
                max_s=max_s,
            )
        )

    def latest_bench(self) -> LatestBench:
        """Returns the newest record of each measurement."""
        return self._ask(calls.latest_bench())

    def latest_bench_as(self, format: ExportFormat) -> dict[str, Any]:  # noqa: A002
        """Returns the same as nccl-tests' or nvbandwidth's JSON.

        Raises:
            InvalidRequestError: no such format.
        """
        return self._ask(calls.latest_bench_as(format))

    def run(self, run_id: str) -> Run:
        """Returns a run.

        Raises:
            RunNotFoundError: no run has this id.
        """
        return self._ask(calls.run(run_id))

    def runs(self, limit: int | None = None, state: RunState | None = None) -> RunList:
        """Returns the newest runs, newest first; `limit` None is the agent's."""
        return self._ask(calls.runs(limit, state))

    def run_events(self, run_id: str, after: int = 0) -> Iterator[RunEvent]:
        """Yields a run's events from the one after `after`, as they come, until its final state.

        Connects again by itself when the stream breaks; no event comes twice.

        Raises:
            RunNotFoundError: no run has this id.
        """
        events: deque[RunEvent] = deque()
        flow = flows.follow(run_id, self._link, emit=events.append, after=after)
        yield from self._iterate(flow, events)

    def cancel_run(self, run_id: str) -> Run:
        """Cancels a run and returns it; one that is over is returned as it is.

        Raises:
            RunNotFoundError: no run has this id.
        """
        return self._ask(calls.cancel_run(run_id))

    def wait(
        self,
        run_id: str,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        on_record: Callable[[BenchRecord], object] | None = None,
        timeout_s: float | None = None,
    ) -> Run:
        """Returns a run once it is over, however it went; it goes on when the waiting ends early.

        Raises:
            AgentTimeoutError: it is not over after `timeout_s`.
            RunNotFoundError: no run has this id.
        """
        return self._drive(flows.wait(run_id, self._link, Observer(on_progress, on_record), timeout_s))

    def environment(
        self, memory_strategy: EnvironmentStrategy | None = "balanced", memory_fraction: float | None = None
    ) -> Environment:
        """Returns the variables that a job on this host should start with; `memory_fraction` wins."""
        return self._ask(calls.environment(memory_strategy, memory_fraction))

    def targets(self, chip: str | None = None) -> Targets:
        """Returns the chips, hosts and slices that a plan's target may name; of one chip, where it is named.

        Raises:
            UnknownHardwareError: no table knows the chip; near ones stand in the hint.
        """
        return self._ask(calls.targets(chip))

    def metrics(self) -> str:
        """Returns the agent's metrics in Prometheus' text format."""
        return self._ask(calls.metrics())

    def _ask(self, call: Call[T]) -> T:
        reply = self._drive(flows.exchange(call, self._link))
        self._check_version(reply)
        return reply

    def _complete(self, call: Call[T], on_progress: Callable[[Progress], object] | None, timeout_s: float | None) -> T:
        reply = self._drive(flows.complete(call, self._link, Observer(on_progress), timeout_s))
        self._check_version(reply)
        return reply

    def _drive(self, flow: Flow[T]) -> T:
        sender = _http.Sender(self._http, self._shared)
        outcome: Any = None
        interruption: BaseException | None = None
        try:
            while True:
                try:
                    step = flow.throw(interruption) if interruption else flow.send(outcome)
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                try:
                    outcome, interruption = self._do(step, sender), None
                except BaseException as error:
                    interruption = error
        finally:
            sender.close()

    def _iterate(self, flow: Flow[None], events: deque[RunEvent]) -> Iterator[RunEvent]:
        sender = _http.Sender(self._http, self._shared)
        outcome: Any = None
        try:
            while (step := advance(flow, outcome)) is not None:
                while events:
                    yield events.popleft()
                outcome = self._do(step, sender)
            while events:
                yield events.popleft()
        finally:
            sender.close()

    def _do(self, step: Step, sender: _http.Sender) -> Any:
        match step:
            case Send(request, timeout_s):
                return sender.send(request, timeout_s)
            case Open(request, silence_s):
                return sender.open(request, silence_s)
            case ReadChunk():
                return sender.read_chunk()
            case Pause(delay_s):
                return self._pause(delay_s)
