"""The calls of one child: those that wait, and the one that it works on. Each is answered exactly once.

Rule: calls are handed out in the order they came, and what a child says counts only for the call that it was given.
Knows no process and no state; `supervisor` says when to hand out, and sends.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from meshwright.errors import MeshwrightError
from meshwright_agent.clock import Clock
from meshwright_agent.telemetry.durations import Durations
from meshwright_agent.worker.jobs import Answer, CallCancelled, Job
from meshwright_agent.worker.protocol import Call, Cancel, Failure, Frame, Progress, Result, Stopped, build_error

_log = logging.getLogger("meshwright.worker")

_OUTCOMES: Final[dict[type[Frame], str]] = {Result: "succeeded", Failure: "failed", Stopped: "cancelled"}


class Calls:
    """Calls of one child, through all its processes.

    Args:
        who: the child's name, for the log.
        clock: for how long calls take.

    Attributes:
        current: the one that the child works on; None: none.
        durations: by operation and outcome, how long calls took that reached a process.
    """

    def __init__(self, who: str, clock: Clock) -> None:
        self.current: Job | None = None
        self.durations = Durations()
        self._who = who
        self._clock = clock
        self._waiting: deque[Job] = deque()
        self._count = 0

    def __bool__(self) -> bool:
        """True if somebody waits."""
        return bool(self._waiting)

    def add(self, job: Job) -> None:
        """Lets a call wait, or somebody who only wants the child ready."""
        self._waiting.append(job)

    def remove(self, job: Job) -> None:
        """Takes a call out that waits; one that does not stays where it is."""
        if job in self._waiting:
            self._waiting.remove(job)

    def give_up(self, error: MeshwrightError) -> None:
        """Answers all that wait with an error."""
        while self._waiting:
            self._waiting.popleft().fail(error)

    def take_next(self, generation: int) -> bool:
        """Makes the next call the current one; False: none waits. Who only wanted a child is answered on the way."""
        while self._waiting:
            job = self._waiting.popleft()
            if job.op is not None:
                self.current = job
                return True
            job.succeed(Answer({}, generation))
        return False

    def build_call(self) -> Call:
        """Returns the frame that hands the current call to the child, and begins to count its time."""
        job = self._require_current()
        assert job.op is not None
        self._count += 1
        job.id, job.sent_s = self._count, self._clock.monotonic()
        return Call(job.id, job.op, job.arguments)

    def build_cancel(self) -> Cancel:
        """Returns the frame that asks the child to stop its work on the current call."""
        job = self._require_current()
        return Cancel(job.id)

    def is_current(self, frame: Progress | Result | Failure | Stopped, generation: int) -> bool:
        """Tells whether the process of this generation speaks of the current call."""
        return self.current is not None and (frame.id, frame.generation) == (self.current.id, generation)

    def tell(self, frame: Progress) -> None:
        """Passes on what the child tells of the current call; a listener that fails costs nothing."""
        job = self._require_current()
        if job.on_progress:
            try:
                job.on_progress(frame.value)
            except Exception:
                _log.exception("%s: a listener failed on progress %.200r", self._who, frame.value)

    def settle(self, frame: Result | Failure | Stopped) -> None:
        """Answers the current call with what the child answered.

        Raises:
            FrameError: a failure that says no error; the call is the current one still.
        """
        error = build_error(frame) if isinstance(frame, Failure) else None
        job = self._take_current(_OUTCOMES[type(frame)])
        if isinstance(frame, Result):
            job.succeed(Answer(frame.result, frame.generation))
        else:
            job.fail(error or CallCancelled("cancelled" if job.is_cancelled else "stopped by the child itself"))

    def fail_current(self, error: MeshwrightError, outcome: str) -> None:
        """Answers the current call, if there is one, with an error."""
        if self.current is not None:
            self._take_current(outcome).fail(error)

    def _take_current(self, outcome: str) -> Job:
        job, self.current = self._require_current(), None
        self.durations.observe((job.op or "", outcome), self._clock.monotonic() - job.sent_s)
        return job

    def _require_current(self) -> Job:
        assert self.current is not None, "the child has no call"
        return self.current
