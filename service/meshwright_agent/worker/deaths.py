"""The deaths of one child: how its last process ended, how many crashed, and which do not end at all.

Rule: a crash counts until its window is over or an operator says otherwise, and a process that not even SIGKILL ends
is named until it is gone. Lives on an event loop. Knows no caller and no state; `supervisor` answers who waited.
"""

from __future__ import annotations

import asyncio

from meshwright.errors import MeshwrightError, ProblemError
from meshwright_agent.clock import Clock
from meshwright_agent.worker.faults import Fault, Obituary, build_fault_error, build_haunted_error, build_spent_error
from meshwright_agent.worker.jobs import CallCancelled, Job
from meshwright_agent.worker.process import Child, ChildSpec
from meshwright_agent.worker.states import CrashHistory, CrashRule
from meshwright_agent.worker.tenure import Tenure


class Deaths:
    """What is known of the processes of one child that have ended, or should have.

    Args:
        spec: what they ran, and how many crashes are too many.
        clock: dates crashes.

    Attributes:
        crash_count: how many ended as they should not.
        last_error: the last thing that went wrong, in words; kept after a recovery, until `forget`.
        last_log: the last lines of the one that ended last.
        obituary: what is known of that one, and of what it was working on; None before the first end.
    """

    def __init__(self, spec: ChildSpec, clock: Clock) -> None:
        self.crash_count = 0
        self.last_error: str | None = None
        self.last_log: tuple[str, ...] = ()
        self.obituary: Obituary | None = None
        self._spec = spec
        self._clock = clock
        self._rule = CrashRule(spec.crash_budget, spec.crash_window_s, spec.backoff_initial_s, spec.backoff_max_s)
        self._crashes = CrashHistory()
        self._abandoned: dict[int, asyncio.Task[None]] = {}

    @property
    def abandoned_pids(self) -> tuple[int, ...]:
        """Processes that SIGKILL did not end (state D) and that have not ended since."""
        return tuple(self._abandoned)

    @property
    def is_haunted(self) -> bool:
        """True while a process that did not end may hold what a new one would take."""
        return self._spec.has_devices and bool(self._abandoned)

    @property
    def is_spent(self) -> bool:
        """True when the crashes have used up the budget."""
        return self._crashes.is_spent(self._rule)

    @property
    def pause_s(self) -> float:
        """How long to pause before the next start."""
        return self._crashes.pause_s(self._rule)

    def record(self, tenure: Tenure, job: Job | None) -> MeshwrightError:
        """Writes down how a tenure that is finished ended; returns the error for who waited for it.

        Args:
            tenure: the one that is over.
            job: what it was working on.
        """
        self.last_log = tenure.log
        if tenure.child is not None and tenure.abandoned_pid is not None:
            self._abandoned[tenure.abandoned_pid] = asyncio.create_task(self._reap(tenure.child))
        now_s = self._clock.monotonic()
        if tenure.has_crashed:
            self.crash_count += 1
            self._crashes = self._crashes.add(now_s, self._rule)
        dead = self.obituary = tenure.build_obituary(job, now_s)
        if isinstance(tenure.end, Fault):
            error = build_fault_error(tenure.end, dead, retry_after_s=self.pause_s)
            self.last_error = error.detail
            return error
        if tenure.has_crashed:
            self.last_error = f"{dead.who} was to be ended ({tenure.end}); it {dead.ending}"
        return CallCancelled(tenure.end)

    def build_haunted(self) -> ProblemError:
        """Returns the error for who wants a child while `is_haunted`."""
        return build_haunted_error(self._spec.name, self.abandoned_pids, self.last_log)

    def build_spent(self) -> ProblemError:
        """Returns the error for who wants a child that `is_spent`."""
        count, window_s = len(self._crashes.at_s), self._spec.crash_window_s
        return build_spent_error(self._spec.name, self.last_error, self.last_log, count=count, window_s=window_s)

    def forget(self) -> None:
        """Forgets the crashes and the last error; not the processes that have not ended."""
        self._crashes, self.last_error = CrashHistory(), None

    def close(self) -> None:
        """Waits for abandoned processes no longer."""
        for task in self._abandoned.values():
            task.cancel()

    async def _reap(self, child: Child) -> None:
        await child.reap()
        self._abandoned.pop(child.pid, None)
