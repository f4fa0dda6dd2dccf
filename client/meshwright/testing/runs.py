"""The runs of a fake agent: submitted, finished at once or held, cancelled; their events and made-up results.

Nothing is measured or compiled: figures are the same at every call. Independent of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, get_args

from pydantic import BaseModel

from meshwright.errors import NotFoundError, ProblemError, RunCancelledError
from meshwright.planning.compile_job import build_unfitted
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.bench import BenchCase, BenchRecord, BenchRequest, BenchResult, LatestBench
from meshwright.wire.devices import Devices
from meshwright.wire.mesh import Plan
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import FINAL_STATES, Progress, Run, RunEvent, RunKind, RunList
from meshwright.wire.verification import MemoryParts, Verification, VerifiedCollective

BenchOutcome = BenchResult | ProblemError
Outcome = BaseModel | ProblemError
"""The end of a run: its result, or its error."""
Clock = Callable[[], datetime]

COLLECTIVES: Final[dict[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "permute": lambda n: 1.0,
}
"""busbw ÷ algbw for n ranks. Source: nccl-tests, doc/PERFORMANCE.md."""

SIZE_BYTES: Final = 2**20
MEDIAN_S: Final = 1e-3


def build_record(case: BenchCase, devices: Devices, at: datetime) -> BenchRecord:
    """Returns a made-up record of a case: 1 MiB in 1 ms."""
    count = len(devices.devices)
    factor = COLLECTIVES[case](count) if case in COLLECTIVES else None
    rate = SIZE_BYTES / MEDIAN_S
    return BenchRecord(
        case=case,
        name=f"{case}_fake",
        description=f"{case}, made up by FakeAgent",
        device_indices=tuple(range(count)),
        axis="x" if factor is not None else None,
        axis_size=count if factor is not None else None,
        dtype="float32" if devices.platform == "cpu" else "bfloat16",
        size_bytes=SIZE_BYTES,
        samples_s=(0.9e-3, MEDIAN_S, 1.1e-3),
        median_s=MEDIAN_S,
        p10_s=0.9e-3,
        p90_s=1.1e-3,
        algbw_bytes_per_s=rate,
        busbw_factor=factor,
        busbw_bytes_per_s=None if factor is None else rate * factor,
        flops_per_s=1e12 if case == "matmul" else None,
        wrong_elements=0,
        correct=True,
        basis="measured",
        observed_at=at,
        age_s=0.0,
    )


def build_result(request: BenchRequest, devices: Devices, at: datetime) -> BenchResult:
    """Returns a made-up result with one record for each requested case."""
    cases: tuple[BenchCase, ...] = request.cases or get_args(BenchCase)
    return BenchResult(
        suite=request.suite,
        platform=devices.platform,
        device_kind=devices.devices[0].kind if devices.devices else "none",
        device_count=len(devices.devices),
        jax=devices.software.jax or "0",
        jaxlib=devices.software.jaxlib or "0",
        started_at=at,
        duration_s=MEDIAN_S * len(cases),
        records=tuple(build_record(case, devices, at) for case in cases),
    )


def build_verification(plan: Plan) -> Verification:
    """Returns a made-up report: it fits with free memory, and each axis has one all-reduce."""
    axes = [(name, size) for name, size in plan.mesh_shape.items() if size > 1]
    return Verification(
        status="verified",
        key="mwv1-fake",
        target=plan.target,
        peak_memory_bytes=10 * 2**30,
        capacity_bytes=15 * 2**30,
        memory=MemoryParts(argument_bytes=6 * 2**30, temporary_bytes=4 * 2**30),
        collectives=tuple(
            VerifiedCollective(axis=name, op="all-reduce", count=1.0, bytes=float(SIZE_BYTES), group_size=size)
            for name, size in axes
        ),
        flops=1e15,
        parameter_count=plan.model.parameter_count if plan.model else None,
        compile_s=1.0,
        versions={"jax": "0"},
    )


def build_compiled(count: int, verification: Verification | None, target: str | None) -> CompiledBatch:
    """Returns a made-up answer of a few compiles: 8 sequences fit on each of `count` parts, on whatever mesh."""
    verification = verification or Verification(
        status="verified", peak_memory_bytes=10 * 2**30, capacity_bytes=15 * 2**30, target=target
    )
    if verification.status != "verified":
        return build_unfitted(count, verification)
    return CompiledBatch(
        per_replica_batch_size=8,
        global_batch_size=8 * count,
        data_parallel_size=count,
        compile_count=3,
        margin_bytes=5 * 2**30,
        limit="memory",
        verification=verification,
    )


class RunBook:
    """All runs of one fake agent.

    Attributes:
        outcome: the outcome of the next benches: a result, an error, or None for a made-up result.
        held: True leaves runs running until `finish`.
    """

    def __init__(self, clock: Clock) -> None:
        self.outcome: BenchOutcome | None = None
        self.held = False
        self._clock = clock
        self._runs: dict[str, Run] = {}
        self._events: dict[str, list[RunEvent]] = {}
        self._planned: dict[str, Outcome] = {}

    def submit(self, request: BenchRequest, devices: Devices) -> Run:
        """Returns a new bench."""
        return self.submit_any("bench", request, lambda: self.outcome or build_result(request, devices, self._clock()))

    def submit_any(self, kind: RunKind, request: BaseModel, plan: Callable[[], Outcome]) -> Run:
        """Returns a new run that will end with the outcome of `plan`."""
        run = self._start(kind, request, plan())
        return run if self.held else self.finish(run.id)

    def _start(self, kind: RunKind, request: BaseModel, planned: Outcome) -> Run:
        now, run_id = self._clock(), f"run-{len(self._runs) + 1:08x}"
        asked = request.model_dump(mode="json")
        self._runs[run_id] = Run(id=run_id, kind=kind, state="queued", created_at=now, request=asked)
        self._events[run_id] = []
        self._planned[run_id] = planned
        self._note(run_id, "state")
        return self._change(run_id, state="running", started_at=now, generation=1)

    def finish(self, run_id: str, outcome: Outcome | None = None) -> Run:
        """Ends a run with `outcome`, or with the outcome set when it was submitted; returns it.

        Raises:
            NotFoundError: there is no such run.
        """
        if self.get(run_id).state in FINAL_STATES:
            return self.get(run_id)
        outcome = outcome or self._planned[run_id]
        if isinstance(outcome, ProblemError):
            state = "cancelled" if isinstance(outcome, RunCancelledError) else "failed"
            return self._end(run_id, state=state, error=build_problem(outcome))
        if isinstance(outcome, BenchResult):
            self._describe_records(run_id, outcome.records)
        else:
            self.advance(run_id, Progress(done=1, total=1, message="compiled"))
        return self._end(run_id, state="succeeded", result=outcome.model_dump(mode="json"))

    def _describe_records(self, run_id: str, records: tuple[BenchRecord, ...]) -> None:
        for done, record in enumerate(records, start=1):
            self._note(run_id, "record", record=record.model_dump(mode="json"))
            self.advance(run_id, Progress(done=done, total=len(records), message=record.case))

    def advance(self, run_id: str, progress: Progress) -> None:
        """Notes how far a held run is."""
        self._runs[run_id] = self.get(run_id).model_copy(update={"progress": progress})
        self._note(run_id, "progress", progress=progress)

    def cancel(self, run_id: str, reason: str = "by request (DELETE)") -> Run:
        """Cancels a run and returns it; a finished run does not change.

        Raises:
            NotFoundError: there is no such run.
        """
        if self.get(run_id).state in FINAL_STATES:
            return self.get(run_id)
        error = RunCancelledError(f"{run_id} was cancelled: {reason}", hint="submit it again")
        return self._end(run_id, state="cancelled", error=build_problem(error))

    def get(self, run_id: str) -> Run:
        """Returns a run.

        Raises:
            NotFoundError: there is no such run.
        """
        if run_id not in self._runs:
            raise NotFoundError(f"no run is called {run_id!r}; there are {len(self._runs)}", hint="GET /runs")
        return self._runs[run_id]

    def list(self, limit: int, state: str | None) -> RunList:
        """Returns the newest runs first."""
        found = [run for run in reversed(self._runs.values()) if state in (None, run.state)]
        return RunList(runs=tuple(found[:limit]))

    def events(self, run_id: str, after: int) -> tuple[RunEvent, ...]:
        """Returns the events so far, from the one after `after`.

        Raises:
            NotFoundError: there is no such run.
        """
        self.get(run_id)
        return tuple(event for event in self._events[run_id] if event.seq > after)

    def latest(self) -> LatestBench:
        """Returns the newest record of each measurement."""
        newest: dict[tuple[object, ...], BenchRecord] = {}
        done = [run for run in self._runs.values() if (run.kind, run.state) == ("bench", "succeeded")]
        for run in done:
            for record in BenchResult.model_validate(run.result).records:
                what = (record.case, record.axis, record.axis_size, record.dtype, record.size_bytes)
                newest[(*what, record.device_indices)] = record
        return LatestBench(records=tuple(newest.values()), runs=tuple(run.id for run in done))

    def _end(self, run_id: str, **changes: Any) -> Run:
        return self._change(run_id, finished_at=self._clock(), **changes)

    def _change(self, run_id: str, **changes: Any) -> Run:
        run = self._runs[run_id] = self._runs[run_id].model_copy(update=changes)
        self._note(run_id, "state")
        return run

    def _note(self, run_id: str, type_: Any, **fields: Any) -> None:
        events, state = self._events[run_id], self._runs[run_id].state
        events.append(RunEvent(seq=len(events) + 1, at=self._clock(), type=type_, run_id=run_id, state=state, **fields))
