"""Benches of this host: accepted after a fresh probe, run by the device worker, cached for scrapes.

A bench opens only idle devices that no other owner has reserved. Both conditions are checked at the request and again
before the worker is called. Results stay in memory for plans and scrapes, so that neither waits for a disk. This module
does not depend on routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from meshwright.errors import DeviceBusyError, NotFoundError, ProblemError, UnavailableError
from meshwright.planning.search.measured import Measurement, pick_newest
from meshwright.wire.bench import BenchRecord, BenchRequest, BenchResult
from meshwright.wire.devices import Device
from meshwright.wire.runs import Run
from meshwright_agent.bench.limits import check_bench, check_idle, list_opened
from meshwright_agent.bench.scope import DEFAULTS
from meshwright_agent.clock import Clock
from meshwright_agent.host.base import AgentHost
from meshwright_agent.host.snapshot import LOG_LINES
from meshwright_agent.leases import LeaseRegistry, Owner, Spawn, StoredLease
from meshwright_agent.runs import Done, Emit, RunQueue, identify_record
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor

BENCH_GRACE_S: Final = 60.0
"""Added to a bench's own time limit, for compiling the current case and for stopping."""
MAX_PROBE_AGE_S: Final = 2.0
"""Maximum age of the probe with which a bench begins."""
MAX_SCRAPED: Final = 1000
"""Records in memory, up to three series each. The store keeps 10,000, which `GET /placement/bench` returns."""


_SAME_FIELDS: Final = {
    *("case", "dtype", "device_indices", "device_kind", "axis_size"),
    *("size_bytes", "median_s", "observed_at"),
}
"""Fields that a record and a plan's measurement share."""
MAX_BENCHES: Final = 32
"""Newest runs that are read again for plans when an agent starts."""

log = logging.getLogger(__name__)


class HostMeasurements:
    """Measurements of one host; `clock` ages them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: tuple[Measurement, ...] = ()

    def recall(self, runs: tuple[Run, ...]) -> None:
        """Adds the results of earlier successful benches, given newest first."""
        for run in reversed(runs):
            self.note(run.id, run.result or {})

    def note(self, run_id: str, result: dict[str, Any]) -> None:
        """Adds the right records of a successful bench. Logs and skips a result that this release cannot read."""
        try:
            records = BenchResult.model_validate(result).records
        except ValidationError as error:
            log.warning("the result of %s is not read for plans: %s", run_id, error)
            return
        right = (_build(run_id, record) for record in records if record.correct)
        self._rows = pick_newest((*self._rows, *right))

    def dump(self) -> list[dict[str, Any]]:
        """Returns the measurements in the planner's format, oldest first, with their age in seconds."""
        now = self._clock.now()
        ages = [max(0.0, (now - row.observed_at).total_seconds()) for row in self._rows]
        return [{**row.model_dump(mode="json"), "age_s": age} for row, age in zip(self._rows, ages, strict=True)]


def _build(run_id: str, record: BenchRecord) -> Measurement:
    return Measurement(
        **record.model_dump(include=_SAME_FIELDS),
        flop_count=(record.flops_per_s or 0.0) * record.median_s,
        busbw_factor=(record.busbw_bytes_per_s or 0.0) / (record.algbw_bytes_per_s or 1.0),
        run_id=run_id,
    )


@dataclass
class Benches:
    """Benches of one host.

    Attributes:
        spawn: starts work that the agent ends when it closes.
        measurements: bench results that plans use.
    """

    device: Supervisor
    host: AgentHost
    runs: RunQueue
    registry: LeaseRegistry
    clock: Clock
    spawn: Spawn

    def __post_init__(self) -> None:
        self.measurements = HostMeasurements(self.clock)
        self._newest: dict[object, BenchRecord] = {}
        self._probing = asyncio.Lock()
        self._probed_s: float | None = None

    # ---- measurements ----------------------------------------------------------------------------------------------

    async def recall(self) -> None:
        """Reads the results of earlier benches."""
        for record in (await self.runs.read_latest_bench()).records:
            self.remember(record)
        self.measurements.recall(await self.runs.list_succeeded("bench", limit=MAX_BENCHES))

    def remember(self, record: BenchRecord) -> None:
        """Caches a record for scrapes, without its samples. It replaces the older record of its case."""
        place = identify_record(record)
        self._newest.pop(place, None)
        self._newest[place] = record.model_copy(update={"samples_s": ()})
        while len(self._newest) > MAX_SCRAPED:
            del self._newest[next(iter(self._newest))]

    def newest_records(self) -> tuple[BenchRecord, ...]:
        """Returns the newest records in memory, which a scrape reads without a call to the store.

        The last `MAX_SCRAPED`, oldest first, without samples.
        """
        return tuple(self._newest.values())

    # ---- requests --------------------------------------------------------------------------------------------------

    async def submit(self, request: BenchRequest, *, by: Owner) -> Run:
        """Queues a bench after checking that this host can run it.

        Raises:
            RequestError: this host cannot run the bench.
            DeviceLeasedError: a lease covers a device that the bench would open; NotFoundError: its own lease has
                ended.
            DeviceBusyError: another process uses such a device, or may use it.
            ForbiddenError: the lease that the request names belongs to another owner.
            UnavailableError: the holders of the devices could not be read.
        """
        self.host.require_hardware("a bench")
        self.host.snapshot.require_topology()
        self._require_unreserved(request)
        if request.lease is not None and (own := self.registry.find(request.lease)) is not None:
            by.check(own.lease)
        await self._probe_holders()
        check_bench(request, self.host.devices())
        self._require_platform()
        self._require_unreserved(request)  # a lease may have begun during the probe of the holders
        return await self.runs.submit("bench", request.model_dump(mode="json"), self.execute)

    def find_in_the_way(self, leased: Sequence[Device]) -> tuple[str, ...]:
        """Returns the queued and running benches and preflights that would open one of these devices, oldest first."""
        names = {device.local_index for device in leased}
        found = []
        for run in self.runs.list_live("device"):
            request = BenchRequest.model_validate(run.request) if run.kind == "bench" else BenchRequest()
            opened = list_opened(request, self.host.devices())
            if names & {device.local_index for device in opened}:
                found.append(run.id)
        return tuple(found)

    def _require_unreserved(self, request: BenchRequest) -> None:
        """Raises DeviceLeasedError if a lease other than the request's own covers a device that the bench would open.

        Raises:
            NotFoundError: the request's own lease does not exist or has ended.
        """
        opened = list_opened(request, self.host.devices())
        if in_the_way := self._list_in_the_way(request, opened):
            there = self.host.devices()
            others = there.devices if there.platform == "cpu" else ()  # on accelerators JAX opens all devices
            raise self.registry.refuse(in_the_way, opened, "the bench", others, request.lease)

    def _list_in_the_way(self, request: BenchRequest, opened: Sequence[Device]) -> tuple[StoredLease, ...]:
        if request.lease is not None and self.registry.find(request.lease) is None:
            detail = f"the bench names lease {request.lease!r}, which is not here or has ended"
            raise NotFoundError(detail, hint="GET /leases lists those that hold; leave it out to bench free devices")
        return self.registry.list_covering(opened, but=request.lease)

    async def _probe_holders(self) -> None:
        """Probes the holders of the devices, unless the last probe is recent. CPUs do not have holders.

        Raises:
            UnavailableError: the probe did not answer.
        """
        asked_s = self.clock.monotonic()
        async with self._probing:
            if self._probed_s is not None and asked_s - self._probed_s < MAX_PROBE_AGE_S:
                return
            began_s = self.clock.monotonic()
            await self.host.require_probe()
            self._probed_s = began_s

    def _require_platform(self) -> None:
        """Raises unless JAX runs on this host's accelerators: it would measure the CPU under their name."""
        if mismatch := self.host.snapshot.mismatch:
            hint = "run `meshwright-agent doctor` on the host; most often JAX lacks the plugin"
            raise UnavailableError(mismatch, hint=hint, log=self.device.log_tail[-LOG_LINES:], code="worker_failed")

    # ---- execution -------------------------------------------------------------------------------------------------

    async def execute(self, run: Run, emit: Emit) -> Done:
        """Executes one bench. The queue calls this method.

        Raises:
            CallCancelled: a lease has been taken.
            ProblemError: the worker failed, or a condition of `submit` failed; NotFoundError: its own lease has ended.
        """
        request = BenchRequest.model_validate(run.request)
        self._check_leases(request)
        await self._probe_holders()
        check_idle(request, self.host.devices())
        if self.host.snapshot.jax is None:
            await self.host.list_jax_devices()
        self._require_platform()
        self._check_leases(request)
        return await self._measure(run, request, emit)

    async def _measure(self, run: Run, request: BenchRequest, emit: Emit) -> Done:
        limit_s = request.max_s or DEFAULTS[request.suite, self.host.devices().platform == "cpu"].limit_s

        def receive(value: dict[str, Any]) -> None:
            emit(value)
            self.host.report_progress(value)
            if "record" in value:
                self.remember(BenchRecord.model_validate(value["record"]))

        yielding = self.spawn(self._yield_to_jobs(run, request))
        try:
            answer = await self.device.call(
                "bench", run.request, deadline_s=limit_s + BENCH_GRACE_S, on_progress=receive
            )
        except ProblemError:
            self.spawn(self._list_again())  # JAX may now report the cause of the failure
            raise
        finally:
            yielding.cancel()
        self.spawn(self._list_again())
        self.measurements.note(run.id, answer.result)
        return answer.result

    async def _yield_to_jobs(self, run: Run, request: BenchRequest) -> None:
        """Cancels the running bench when a probe shows that a device is no longer idle, because a job has begun."""
        while True:
            await self.host.wait_for_probe()
            try:
                check_idle(request, self.host.devices())
            except DeviceBusyError as error:
                await self.runs.cancel(run.id, f"yielded to a job: {error.detail}")

    async def _list_again(self) -> None:
        if self.device.state in {"ready", "busy"}:  # not restarted for this: a lease may have ended it
            await self.host.list_jax_devices()

    def _check_leases(self, request: BenchRequest) -> None:
        """Raises CallCancelled if a new lease covers a device that the bench would open; else as `submit`."""
        if in_the_way := self._list_in_the_way(request, list_opened(request, self.host.devices())):
            lease = in_the_way[0].lease
            raise CallCancelled(f"preempted by lease {lease.id} ({lease.purpose})")
