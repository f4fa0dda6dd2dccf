"""Benches and runs."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

from meshwright._calls import calls, flows
from meshwright._calls.flows import Observer
from meshwright._client.awaiting.driving import AsyncDriver
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.bench import BenchCase, BenchRecord, BenchResult, Dtype, LatestBench
from meshwright.wire.leases import Lease
from meshwright.wire.runs import Progress, Run, RunEvent, RunList, RunState


class AsyncRunCalls(AsyncDriver):
    """The benches and other long runs of an agent."""

    async def bench(
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
        lease: Lease | str | None = None,
        on_progress: Callable[[Progress], object] | None = None,
        on_record: Callable[[BenchRecord], object] | None = None,
        timeout_s: float | None = None,
    ) -> BenchResult:
        """Runs a bench on the agent's devices, waits for it, and returns its result.

        The run is cancelled when the waiting ends early: `timeout_s`, an interrupt, an error of a callback.

        Args:
            suite: "quick" takes up to 20 s; "full" has more sizes and samples.
            cases: the measured cases; None: all.
            devices: local indices; None: all.
            mesh: the mesh that collectives run on; None: one axis over the devices.
            axis: the axis that they run over; None: each in turn.
            sizes_bytes: sizes of transfers and collectives; None: the suite's.
            matmul_size: n of the n×n×n matmul; None: the suite's.
            dtype: None: float32 on CPU, bfloat16 elsewhere.
            samples: their number per measurement, at least 3; None: the suite's.
            max_s: the time limit of the run on the agent.
            lease: the caller's own lease, whose devices may be measured.
            on_progress: called with each progress, at once.
            on_record: called with each record as soon as it is measured.
            timeout_s: seconds to wait, including the queue; None: no limit.

        Raises:
            RunFailedError: the run failed; or the class of its problem, such as WorkerFailedError.
            RunCancelledError: the run was cancelled.
            QueueFullError: too many runs are in the queue.
            DeviceLeasedError: another lease has the devices.
            DeviceBusyError: another process uses them.
            BenchTooLargeError: the bench needs more memory than the devices have.
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
            lease=lease,
        )
        return await self._drive(flows.bench(submit, self._link, Observer(on_progress, on_record), timeout_s))

    async def submit_bench(
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
        lease: Lease | str | None = None,
    ) -> Run:
        """Queues a bench and returns its run at once; arguments and errors as for `bench`."""
        return await self._ask(
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
                lease=lease,
            )
        )

    async def latest_bench(self) -> LatestBench:
        """Returns the newest record of each measurement."""
        return await self._ask(calls.latest_bench())

    async def run(self, run_id: str) -> Run:
        """Returns a run.

        Raises:
            NotFoundError: no run has this id.
        """
        return await self._ask(calls.run(run_id))

    async def runs(self, limit: int | None = None, state: RunState | None = None) -> RunList:
        """Returns the newest runs, newest first; `limit` None is the agent's limit."""
        return await self._ask(calls.runs(limit, state))

    async def run_events(self, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        """Yields a run's events from the one after `after`, as they come, until its final state.

        Connects again by itself when the stream breaks; no event comes twice.

        Raises:
            NotFoundError: no run has this id.
        """
        events: deque[RunEvent] = deque()
        flow = flows.follow(run_id, self._link, emit=events.append, after=after)
        async for event in self._iterate(flow, events):
            yield event

    async def cancel_run(self, run_id: str) -> Run:
        """Cancels a run and returns it; a finished run does not change.

        Raises:
            NotFoundError: no run has this id.
        """
        return await self._ask(calls.cancel_run(run_id))

    async def wait(
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
            NotFoundError: no run has this id.
        """
        return await self._drive(flows.wait(run_id, self._link, Observer(on_progress, on_record), timeout_s))
