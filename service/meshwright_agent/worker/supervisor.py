"""Supervisor: owns one child process, hands it calls one at a time, and survives whatever it does.

Rule: carries out `states.TABLE` and decides nothing that stands there. Every caller gets exactly one answer:
a result, the child's own error, `WorkerCrashedError`, `WorkerTimeoutError`, `WorkerFailedError` or
`CallCancelled`. Lives on the agent's event loop and never blocks it. Knows nothing of what the calls do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from meshwright.wire.devices import Worker
from meshwright_agent.clock import Clock
from meshwright_agent.telemetry.tracing import TRACING
from meshwright_agent.worker.calls import Calls
from meshwright_agent.worker.deaths import Deaths
from meshwright_agent.worker.faults import Fault, Obituary
from meshwright_agent.worker.jobs import Answer, CallCancelled, Job, OnProgress
from meshwright_agent.worker.machine import Machine
from meshwright_agent.worker.process import ChildSpec, Spawn, spawn_child
from meshwright_agent.worker.protocol import (
    Call,
    Cancel,
    Failure,
    Frame,
    FrameError,
    Hello,
    Progress,
    Refusal,
    Result,
    Stopped,
    format_frame,
)
from meshwright_agent.worker.states import LIVE, Action, Event, State
from meshwright_agent.worker.tenure import Tenure

__all__ = ["Answer", "CallCancelled", "ChildSpec", "ReleaseOutcome", "Supervisor"]


@dataclass(frozen=True)
class ReleaseOutcome:
    """What became of a release.

    Attributes:
        took_s: seconds until the process was gone (or abandoned), or the time was up.
        killed: it did not go by itself: a signal was needed.
        abandoned_pids: processes that even SIGKILL did not end, now or earlier, or not in time: they may still hold
            devices; `Supervisor.holding_pids` tells which of them are there still.
    """

    took_s: float
    killed: bool
    abandoned_pids: tuple[int, ...] = ()


class Supervisor:
    """One child process, started on demand.

    Args:
        spec: what to run.
        clock: for `since`, durations and the crash window. Timers are the event loop's.
        on_change: called after each change of state, on the event loop.
        spawn: how to start a process.

    Attributes:
        durations: by operation and outcome, how long calls took that reached a process.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        clock: Clock,
        on_change: Callable[[], None] | None = None,
        spawn: Spawn = spawn_child,
    ) -> None:
        self.spec = spec
        self._clock = clock
        self._spawn = spawn
        self._tenure: Tenure | None = None
        self._deaths = Deaths(spec, clock)
        self._calls = Calls(spec.name, clock)
        self._generation = 0
        self._has_crashed = False
        self.durations = self._calls.durations
        self._is_closed = False
        actions: dict[Action, Callable[[], None]] = {
            "spawn": self._begin_tenure,
            "offer": self._offer,
            "send_call": self._send_call,
            "send_cancel": self._send_cancel,
            "stop": lambda: self._begin_teardown(gently=True),
            "kill": lambda: self._begin_teardown(gently=False),
            "time_start": lambda: self._machine.arm(spec.start_timeout_s),
            "time_call": lambda: self._machine.arm(self._calls.current.deadline_s if self._calls.current else None),
            "time_grace": lambda: self._machine.arm(spec.cancel_grace_s),
            "time_idle": lambda: self._machine.arm(spec.idle_release_s),
            "time_pause": lambda: self._machine.arm(self._deaths.pause_s),
            "resume": self._resume,
            "refuse": lambda: self._calls.give_up(self._deaths.build_spent()),
            "forget": self._deaths.forget,
        }
        self._machine = Machine(spec.name, actions, on_timeout=self._on_timeout, clock=clock, on_change=on_change)

    # what it is like now

    @property
    def state(self) -> State:
        """Where in `states.TABLE` the child is."""
        return self._machine.state

    @property
    def generation(self) -> int:
        """The number of the newest process, counted from 1; 0 before the first."""
        return self._generation

    @property
    def since(self) -> datetime:
        """When the state last changed, UTC."""
        return self._machine.since

    @property
    def pid(self) -> int | None:
        """The process id; None without a process."""
        return self._tenure.pid if self._tenure else None

    @property
    def hello(self) -> dict[str, Any] | None:
        """What the child told about itself (versions, platform, device count); None without one that did."""
        return self._tenure.hello if self._tenure else None

    @property
    def last_error(self) -> str | None:
        """The last thing that went wrong; kept after a recovery, until `reset`."""
        return self._deaths.last_error

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last lines that this child, or else the one before, wrote to stdout and stderr."""
        return self._tenure.log if self._tenure else self._deaths.last_log

    @property
    def obituary(self) -> Obituary | None:
        """What is known of the process that ended last, and of what it was working on; None before the first end."""
        return self._deaths.obituary

    @property
    def crash_count(self) -> int:
        """How many processes ended as they should not."""
        return self._deaths.crash_count

    @property
    def has_crashed(self) -> bool:
        """True from a crash until another process is ready."""
        return self._has_crashed

    @property
    def abandoned_pids(self) -> tuple[int, ...]:
        """Processes that SIGKILL did not end (state D) and that have not ended since."""
        return self._deaths.abandoned_pids

    @property
    def holding_pids(self) -> tuple[int, ...]:
        """Processes of which the devices are not free: those abandoned, and the one that is there now."""
        return (*self.abandoned_pids, *(pid for pid in [self.pid] if pid is not None))

    def view(self) -> Worker:
        """Returns the state as it goes over the wire."""
        return Worker(
            state=self._machine.state,
            generation=self._generation,
            pid=self.pid,
            since=self._machine.since,
            last_error=self.last_error,
        )

    # what can be asked of it

    async def start(self) -> None:
        """Brings the child to ready, starting one if there is none; waits out a pause after a crash.

        Raises:
            WorkerFailedError: it cannot start (its own reason and log), has crashed too often, or an earlier one
                that may hold the devices does not end.
            WorkerTimeoutError: it did not say hello in time.
            CallCancelled: it was released or closed meanwhile.
        """
        if self._machine.state not in ("ready", "busy"):
            await self._submit(Job())

    async def call(
        self, op: str, arguments: dict[str, Any], *, deadline_s: float, on_progress: OnProgress | None = None
    ) -> Answer:
        """Returns the child's answer; starts one if there is none. Calls are served in the order they came.

        Cancelling the task cancels the call: the child is asked to stop and, after the grace, killed; the
        task ends when the child has stopped.

        Args:
            op: which handler.
            arguments: a JSON object.
            deadline_s: how long the child may work on it, then it is killed; waiting does not count.
            on_progress: gets what the handler tells.

        Raises:
            ProblemError: the handler raised one: the same class here. Other exceptions are a RunFailedError.
            WorkerCrashedError: the child died while it worked; the log is its last lines.
            WorkerTimeoutError: the deadline passed, or the child did not start in time.
            WorkerFailedError: the child cannot start, or has crashed too often.
            CallCancelled: the call was cancelled, or the child released or closed.
            FrameError: JSON cannot say the arguments.
        """
        format_frame(Call(0, op, arguments))
        with TRACING.span(f"{self.spec.name} {op}", kind="CLIENT") as span:
            answer = await self._submit(Job(op, arguments, deadline_s, on_progress))
            span.note(meshwright__generation=answer.generation)
            return answer

    async def release(self, *, reason: str = "released", within_s: float | None = None) -> ReleaseOutcome:
        """Ends the process, whatever it does, in bounded time; who waits gets `CallCancelled(reason)`.

        Args:
            reason: what is told to who waits, and to the call under way.
            within_s: answers then at the latest: a process that is there still goes on being ended, and is named.
        """
        began_s, tenure = self._clock.monotonic(), self._tenure
        self._calls.give_up(CallCancelled(reason))
        self._end(reason, "released")
        if tenure is None or tenure.teardown is None:
            return ReleaseOutcome(0.0, killed=False, abandoned_pids=self.abandoned_pids)
        done, _ = await asyncio.wait({tenure.teardown}, timeout=within_s)
        killed = not done or (tenure.ending is not None and tenure.ending.killed)
        return ReleaseOutcome(
            self._clock.monotonic() - began_s, killed, self.abandoned_pids if done else self.holding_pids
        )

    def reset(self) -> None:
        """Forgets the crashes and the last error: an operator says that the host is mended."""
        self._machine.apply("reset")

    async def close(self) -> None:
        """Releases the child for good; what is asked after that gets `CallCancelled("closing")`."""
        self._is_closed = True
        await self.release(reason="closing")
        self._machine.disarm()
        self._deaths.close()

    # callers

    async def _submit(self, job: Job) -> Answer:
        if self._is_closed:
            raise CallCancelled("closing")
        if self._deaths.is_haunted:
            raise self._deaths.build_haunted()
        self._calls.add(job)
        self._machine.apply("wanted")
        try:
            return await asyncio.shield(job.future)
        except asyncio.CancelledError:
            await self._abort(job)
            raise
        finally:
            del job  # it holds the error, whose traceback holds this frame: a cycle that would keep the arguments

    async def _abort(self, job: Job) -> None:
        """Takes the job of a caller who has left out of the queue, or stops the child's work on it."""
        self._calls.remove(job)
        if job is self._calls.current:
            job.is_cancelled = True
            self._machine.apply("cancelled")
            await asyncio.wait({job.future})

    # actions of the table

    def _offer(self) -> None:
        """Hands the next call to the child; those who only wanted it ready are answered on the way."""
        if self._calls.current is None and self._calls.take_next(self._generation):
            self._machine.apply("dispatched")

    def _send_call(self) -> None:
        self._send(self._calls.build_call())

    def _send_cancel(self) -> None:
        self._send(self._calls.build_cancel())

    def _send(self, frame: Call | Cancel) -> None:
        assert self._tenure is not None
        assert self._tenure.child is not None
        self._tenure.child.send(format_frame(frame))

    def _resume(self) -> None:
        if self._calls and self._deaths.is_haunted:
            self._calls.give_up(self._deaths.build_haunted())
        if self._calls:
            self._machine.apply("wanted")

    # from spawn …

    def _begin_tenure(self) -> None:
        self._generation += 1
        tenure = self._tenure = Tenure(self.spec, self._generation, self._clock.monotonic())
        begin = tenure.begin(self._spawn, partial(self._on_frame, tenure), partial(self._on_lost, tenure))
        tenure.spawning = asyncio.create_task(begin, context=Context())  # a child outlives the request that starts it

    def _on_frame(self, tenure: Tenure, frame: Frame) -> None:
        """Takes a frame of the child.

        Raises:
            FrameError: it is not what this state and this call expect.
        """
        if not self._is_living(tenure):
            return
        match frame:
            case Hello() if self._machine.state == "starting":
                tenure.greet(frame)
                self._has_crashed = False
                self._machine.apply("hello")
            case Refusal() if self._machine.state == "starting":
                words = f"{frame.name}: {frame.message}"
                self._end(Fault("refused", words, tuple(frame.traceback.splitlines())), "lost")
            case Progress() if self._calls.is_current(frame, tenure.generation):
                self._calls.tell(frame)
            case Result() | Failure() | Stopped() if self._calls.is_current(frame, tenure.generation):
                self._calls.settle(frame)
                self._machine.apply("reply")
            case _:
                raise FrameError(f"a {type(frame).__name__} frame that nobody waits for")

    def _is_living(self, tenure: Tenure) -> bool:
        return tenure is self._tenure and self._machine.state in LIVE

    # … to burial

    def _on_lost(self, tenure: Tenure, words: str) -> None:
        if self._is_living(tenure):
            self._end(Fault("lost", words), "lost")

    def _on_timeout(self) -> None:
        match self._machine.state, self._calls.current:
            case "starting", _:
                self._end(Fault("start_timeout"), "timeout")
            case "busy", Job(is_cancelled=False):
                self._end(Fault("call_timeout"), "timeout")
            case "busy", _:
                self._end("cancelled", "timeout")
            case _:
                self._end("idle", "timeout")

    def _end(self, why: Fault | str, event: Event) -> None:
        if self._tenure is not None and self._is_living(self._tenure):
            self._tenure.end = why
        self._machine.apply(event)

    def _begin_teardown(self, *, gently: bool) -> None:
        assert self._tenure is not None
        self._tenure.teardown = asyncio.create_task(self._tear_down(self._tenure, gently=gently))

    async def _tear_down(self, tenure: Tenure, *, gently: bool) -> None:
        await tenure.finish(gently=gently)
        self._answer_mourners(tenure)
        self._tenure = None
        self._has_crashed |= tenure.has_crashed
        spent = self._deaths.is_spent
        self._machine.apply("gone" if not tenure.has_crashed else "crashed_out" if spent else "crashed")

    def _answer_mourners(self, tenure: Tenure) -> None:
        """Answers the call that died with the process; if it never got ready, all who waited for that."""
        error, end = self._deaths.record(tenure, self._calls.current), tenure.end
        if isinstance(end, Fault) and tenure.hello is None:
            self._calls.give_up(error)
        self._calls.fail_current(error, end.kind if isinstance(end, Fault) else "cancelled")
