"""Supervisor: owns one child process, hands it calls one at a time, and survives whatever it does.

Each call is one coroutine: it waits for its turn, starts the child if there is none, hands the call over, and reads
what comes back until the answer, the deadline or a cancel. Between calls one task waits for idleness or the child's
end. So exactly one coroutine listens to the child at any time. Every process that must go is ended by `_tear_down`: its
group is killed and reaped before anything else happens, so no device has two owners.

Every caller gets one answer: a result, the child's own error, `WorkerFailedError` or `CallCancelled`. Lives on the
agent's event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from meshwright.errors import MeshwrightError, ProblemError, WorkerFailedError
from meshwright.wire.devices import Worker, WorkerState
from meshwright_agent.clock import Clock
from meshwright_agent.supervisor.process import Child, ChildError, ChildSpec
from meshwright_agent.supervisor.protocol import (
    PROTOCOL_VERSION,
    Call,
    Cancel,
    Failure,
    Hello,
    Progress,
    Refusal,
    Result,
    Stopped,
    format_frame,
)

OnProgress = Callable[[dict[str, Any]], None]
"""Gets what a handler tells while it works; called on the event loop."""
T = TypeVar("T")
_BuildError = Callable[[], MeshwrightError]
"""Each caller raises an error of its own: one that were shared would hold the frames of all."""

_DOCTOR: Final = "the log has its last lines; `meshwright-agent doctor` says what is wrong with this host's JAX"
_AGAIN: Final = "ask again: a new one is started; if it happens again, the log says where the worker was"

_log = logging.getLogger("meshwright.worker")


class CallCancelled(MeshwrightError):  # noqa: N818 — not an error: somebody wanted it
    """The call was given up because somebody asked for it.

    Attributes:
        reason: "released", "cancelled", "closing", or the word of whoever asked.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Answer:
    """What a call returned, and which worker (counted from 1) said it."""

    result: dict[str, Any]
    generation: int


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


@dataclass(frozen=True)
class _Work:
    """A call: what a child works on."""

    id: int
    op: str
    deadline_s: float
    on_progress: OnProgress | None


class Supervisor:
    """One child process, started on demand.

    Args:
        spec: what to run.
        clock: for `since`, durations and the crash window. Timers are the event loop's.
        on_change: called after each change of state, on the event loop.
        build_child: makes a process that is not started yet.

    Attributes:
        state: stopped → starting → ready ⇄ busy → stopping → stopped, or after a crash backoff, or failed.
        since: when the state last changed, UTC.
        generation: the number of the newest process, counted from 1; 0 before the first.
        last_error: the last thing that went wrong; kept after a recovery, until `reset`.
        has_crashed: true from a crash until another process is ready.
        crash_count: how many processes ended as they should not.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        clock: Clock,
        on_change: Callable[[], None] | None = None,
        build_child: Callable[[ChildSpec, int], Child] = Child,
    ) -> None:
        self.spec = spec
        self.state: WorkerState = "stopped"
        self.since = clock.now()
        self.generation = 0
        self.last_error: str | None = None
        self.has_crashed = False
        self.crash_count = 0
        self._clock = clock
        self.on_change = on_change
        self._build_child = build_child
        self._ids = itertools.count(1)
        self._lock = asyncio.Lock()  # whoever has it has the child
        self._child: Child | None = None
        self._last_log: tuple[str, ...] = ()
        self._began_s = 0.0  # when the newest child got its work, or else was started
        self._heard_s = 0.0  # when the last frame about its work came
        self._work: _Work | None = None
        self._idling: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[_BuildError] | None = None  # of the newest child; stays when that has ended
        self._pause: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._give_up_count = 0
        self._give_up_error: _BuildError = partial(CallCancelled, "released")
        self._crashed_s: tuple[float, ...] = ()
        self._abandoned: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    @property
    def silent_s(self) -> float:
        """How long nothing was heard of the child while it works on a call; 0 where it has none."""
        return 0.0 if self._work is None else self._clock.monotonic() - self._heard_s

    @property
    def pid(self) -> int | None:
        """The process id; None without a process."""
        return self._child.pid if self._child else None

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last lines that this child, or else the one before, wrote to stdout and stderr."""
        return self._child.log_tail if self._child else self._last_log

    @property
    def abandoned_pids(self) -> tuple[int, ...]:
        """Processes that SIGKILL did not end (state D) and that have not ended since."""
        return tuple(self._abandoned)

    @property
    def holding_pids(self) -> tuple[int, ...]:
        """Processes of which the devices are not free: those abandoned, and the one that is there now."""
        return (*self._abandoned, *([] if self.pid is None else [self.pid]))

    def view(self) -> Worker:
        """Returns the state as it goes over the wire."""
        return Worker(
            state=self.state, generation=self.generation, pid=self.pid, since=self.since, last_error=self.last_error
        )

    # ---- what can be asked of it -----------------------------------------------------------------------------------

    async def call(
        self, op: str, arguments: dict[str, Any], *, deadline_s: float, on_progress: OnProgress | None = None
    ) -> Answer:
        """Returns the child's answer; starts one if there is none, after a crash when the pause is over.

        Calls are served in the order they came.

        Cancelling the task cancels the call: the child is asked to stop and, after the grace, killed; the
        task ends when the child has stopped.

        Args:
            op: which handler.
            arguments: a JSON object.
            deadline_s: how long the child may work on it, then it is killed; waiting does not count.
            on_progress: gets what the handler tells.

        Raises:
            ProblemError: the handler raised one: the same class here. Other exceptions are a RunFailedError.
            WorkerFailedError: the child died while it worked (the log is its last lines), the deadline passed, it
                cannot start or did not say hello in time (its own reason and log), has crashed too often, or an earlier
                one that may hold the devices does not end.
            CallCancelled: the call was cancelled, or the child released or closed.
            FrameError: JSON cannot say the arguments.
        """
        call = Call(id=next(self._ids), op=op, arguments=arguments)
        work = _Work(call.id, op, deadline_s, on_progress)
        serving = self._serve(work, format_frame(call), self._give_up_count)
        return await _run_to_its_end(serving)

    async def release(self, *, reason: str = "released", within_s: float | None = None) -> ReleaseOutcome:
        """Ends the process, whatever it does, in bounded time; who waits gets `CallCancelled(reason)`.

        Args:
            reason: what is told to who waits, and to the call under way.
            within_s: answers then at the latest: a process that is there still goes on being ended, and is named.
        """
        began_s, child = self._clock.monotonic(), self._child
        self._give_up(partial(CallCancelled, reason))
        if child is None:
            return ReleaseOutcome(0.0, killed=False, abandoned_pids=self.abandoned_pids)
        done, _ = await asyncio.wait({self._begin_end(reason, gently=True)}, timeout=within_s)
        killed = not done or (child.ending is not None and child.ending.killed)
        pids = self.abandoned_pids if done else self.holding_pids
        return ReleaseOutcome(self._clock.monotonic() - began_s, killed, pids)

    def reset(self) -> None:
        """Forgets the crashes and the last error: an operator says that the host is mended."""
        self._crashed_s, self.last_error = (), None
        if self.state in ("backoff", "failed"):
            self._become("stopped")

    async def close(self) -> None:
        """Releases the child for good; what is asked after that gets `CallCancelled("closing")`."""
        self._is_closed = True
        await self.release(reason="closing")
        await self._stop_idling()
        if self._pause is not None:
            self._pause.cancel()
        for reaping in self._abandoned.values():
            reaping.cancel()

    # ---- one call --------------------------------------------------------------------------------------------------

    async def _serve(self, work: _Work, line: bytes, give_up_count: int) -> Answer:
        async with self._lock:
            child = await self._bring_up(give_up_count)
            self._work = work
            self._began_s = self._heard_s = self._clock.monotonic()
            self._become("busy")
            child.send(line)
            try:
                async with asyncio.timeout(work.deadline_s):
                    reply = await self._read_reply(child, work)
            except (TimeoutError, ChildError) as error:
                build_error = await self._end(error if isinstance(error, ChildError) else ChildError("call_timeout"))
                raise build_error() from None
            except asyncio.CancelledError:
                await self._stop_work(child, work)
                raise
            self._rest(child)
        match reply:
            case Result():
                return Answer(reply.result, reply.generation)
            case Failure():
                raise reply.build_error()
            case Stopped():
                raise CallCancelled("stopped by the child itself")

    async def _bring_up(self, give_up_count: int) -> Child:
        """Returns the child, ready, to the caller who has the lock."""
        await self._stop_idling()
        while self.state in ("stopping", "backoff") and give_up_count == self._give_up_count:
            await self._changed.wait()
        if give_up_count != self._give_up_count:
            raise self._give_up_error()
        if self._is_closed:
            raise CallCancelled("closing")
        if self.spec.has_devices and self._abandoned:
            raise self._build_haunted()
        if self.state == "failed":
            raise self._build_spent()
        return await self._start() if self._child is None else self._child

    async def _start(self) -> Child:
        self.generation += 1
        child = self._child = self._build_child(self.spec, self.generation)
        self._ending = None
        self._began_s = self._clock.monotonic()
        self._become("starting")
        try:
            async with asyncio.timeout(self.spec.start_timeout_s):
                await child.open()
                await self._read_hello(child)
        except (TimeoutError, ChildError) as error:
            build_error = await self._end(error if isinstance(error, ChildError) else ChildError("start_timeout"))
            raise build_error() from None
        except asyncio.CancelledError:
            await self._end("cancelled")
            raise
        self.has_crashed = False
        self._become("ready")
        return child

    async def _read_hello(self, child: Child) -> None:
        match await child.read():
            case Hello() as hello:
                said = (hello.protocol, hello.kind, hello.generation, hello.pid)
                expected = (PROTOCOL_VERSION, self.spec.name, self.generation, child.pid)
                if said != expected:
                    words = f"its hello says protocol, kind, generation, pid {said}; expected {expected}"
                    raise ChildError("lost", f"broke the protocol: {words}")
            case Refusal() as refusal:
                words = f"{refusal.name}: {refusal.message}"
                raise ChildError("refused", words, tuple(refusal.traceback.splitlines()))
            case frame:
                raise _build_unexpected(frame.type)

    async def _read_reply(self, child: Child, work: _Work) -> Result | Failure | Stopped:
        while True:
            frame = await child.read()
            self._heard_s = self._clock.monotonic()
            if self._ending is not None:
                raise ChildError("lost", "answered too late")
            if isinstance(frame, Hello | Refusal | Call | Cancel):
                raise _build_unexpected(frame.type)
            if (frame.id, frame.generation) != (work.id, child.generation):
                raise _build_unexpected(frame.type)
            if not isinstance(frame, Progress):
                self._work = None
                return frame
            if work.on_progress is not None:
                try:
                    work.on_progress(frame.value)
                except Exception:
                    _log.exception("%s: a listener failed on progress %.200r", self.spec.name, frame.value)

    async def _stop_work(self, child: Child, work: _Work) -> None:
        """Asks the child to stop the work of a caller who has left; ends it after the grace."""
        child.send(format_frame(Cancel(id=work.id)))
        try:
            # Not asyncio.timeout: in a task that is cancelled Python before 3.11.3 raises CancelledError at its end.
            await asyncio.wait_for(self._read_reply(child, work), self.spec.cancel_grace_s)
        except TimeoutError:
            await self._end("cancelled")
        except ChildError as error:
            await self._end(error)
        else:
            self._rest(child)

    # ---- between calls ---------------------------------------------------------------------------------------------

    def _rest(self, child: Child) -> None:
        if self._ending is None:
            self._become("ready")
            self._idling = asyncio.create_task(self._idle(child), context=Context())

    async def _idle(self, child: Child) -> None:
        """Ends a child that has had nothing to do for long, or that dies or speaks unasked."""
        try:
            async with asyncio.timeout(self.spec.idle_release_s):
                frame = await child.read()
            await self._end(_build_unexpected(frame.type))
        except TimeoutError:
            await self._end("idle", gently=True)
        except ChildError as error:
            await self._end(error)

    async def _stop_idling(self) -> None:
        if self._idling is not None:
            self._idling.cancel()
            await asyncio.wait({self._idling})
            self._idling = None

    # ---- the end of a process --------------------------------------------------------------------------------------

    async def _end(self, why: ChildError | str, *, gently: bool = False) -> _BuildError:
        """Ends the process; returns the error for who waited for it."""
        return await asyncio.shield(self._begin_end(why, gently=gently))

    def _begin_end(self, why: ChildError | str, *, gently: bool) -> asyncio.Task[_BuildError]:
        """Begins to end the newest process; the first reason counts. Cancelling who waits does not stop it."""
        if self._ending is None:
            assert self._child is not None
            is_starting = self.state == "starting"
            ending = self._tear_down(self._child, why, gently=gently, is_starting=is_starting)
            self._ending = asyncio.create_task(ending, context=Context())
            self._become("stopping")
        return self._ending

    async def _tear_down(self, child: Child, why: ChildError | str, *, gently: bool, is_starting: bool) -> _BuildError:
        if isinstance(why, ChildError) and why.kind in ("start_timeout", "call_timeout"):
            await child.dump()
        await child.stop(gently=gently)
        self._child, self._last_log = None, child.log_tail
        is_abandoned = child.ending is not None and child.ending.status is None
        if is_abandoned and child.pid is not None:
            self._abandoned[child.pid] = asyncio.create_task(self._reap(child, child.pid))
        is_crash = is_abandoned or isinstance(why, ChildError)
        now_s = self._clock.monotonic()
        if is_crash:
            self.crash_count += 1
            self.has_crashed = True
            self._crashed_s = (*(s for s in self._crashed_s if now_s - s < self.spec.crash_window_s), now_s)
        build_error: _BuildError = partial(CallCancelled, str(why))
        if isinstance(why, ChildError):
            build_crash = partial(self._build_crash, child, why, self._work, now_s - self._began_s)
            build_error = build_crash
            self.last_error = build_crash().detail
            if is_starting:
                self._give_up(build_error)
        elif is_crash:
            self.last_error = f"{self._name(child)} was to be ended ({why}); it {_describe_ending(child)}"
        self._work = None
        if not is_crash:
            self._become("stopped")
        elif len(self._crashed_s) >= self.spec.crash_budget:
            self._become("failed")
        else:
            self._become("backoff")
            self._pause = asyncio.get_running_loop().call_later(self._find_pause_s(), self._become, "stopped")
        return build_error

    async def _reap(self, child: Child, pid: int) -> None:
        await child.reap()
        self._abandoned.pop(pid, None)

    def _name(self, child: Child) -> str:
        return f"the {self.spec.name} worker (generation {child.generation}, pid {child.pid})"

    def _find_pause_s(self) -> float:
        """Returns the pause before the next start: doubled with each crash."""
        doublings = min(len(self._crashed_s) - 1, 60)
        return min(self.spec.backoff_initial_s * 2.0**doublings, self.spec.backoff_max_s)

    # ---- what others see -------------------------------------------------------------------------------------------

    def _become(self, state: WorkerState) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if state == self.state:
            return
        _log.debug("%s: %s → %s", self.spec.name, self.state, state)
        self.state, self.since = state, self._clock.now()
        self._wake()
        if self.on_change is not None:
            self.on_change()

    def _give_up(self, build_error: _BuildError) -> None:
        """Lets all who wait for their turn raise this."""
        self._give_up_count += 1
        self._give_up_error = build_error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _build_crash(self, child: Child, why: ChildError, work: _Work | None, took_s: float) -> ProblemError:
        """Returns the error for who waited for a child that was lost, refused to work, or took too long."""
        who, ending = self._name(child), _describe_ending(child)
        asked = f"{work.op} was asked of {who}" if work else f"{who} was started"
        hint, log, retry_after_s = _AGAIN if work else _DOCTOR, (*child.log_tail, *why.log), self._find_pause_s()
        if why.kind == "refused":
            return WorkerFailedError(f"{asked}; it cannot work: {why.words}", hint=hint, log=log)
        if why.kind == "lost":
            detail = f"{asked}; after {took_s:.1f} s it {why.words} and {ending}"
            return WorkerFailedError(detail, hint=hint, log=log, retry_after_s=retry_after_s)
        missed, limit_s = ("did not answer", work.deadline_s) if work else ("was not ready", self.spec.start_timeout_s)
        detail = f"{asked}; it {missed} within {limit_s:g} s and was killed"
        return WorkerFailedError(detail, hint=hint, log=log, retry_after_s=retry_after_s)

    def _build_haunted(self) -> ProblemError:
        named = ", ".join(map(str, self._abandoned))
        return WorkerFailedError(
            f"an earlier {self.spec.name} worker (process {named}) does not end, not even by SIGKILL, and may hold the "
            "devices; no second one is started beside it",
            hint=f"the kernel holds it: cat /proc/{next(iter(self._abandoned))}/stack on the host; drain it, and "
            "reboot if nothing else helps",
            log=self._last_log,
        )

    def _build_spent(self) -> ProblemError:
        return WorkerFailedError(
            f"the {self.spec.name} worker crashed {len(self._crashed_s)} times within {self.spec.crash_window_s:g} s "
            f"and stays down; last: {self.last_error}",
            hint=f"{_DOCTOR}; restart the agent when it is mended",
            log=self._last_log,
        )


async def _run_to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Returns what a coroutine returns. Cancelling cancels it once and waits; a second cancel does not wait."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    finally:
        del task  # it holds the error, whose traceback holds this frame: a cycle that would keep the arguments


def _describe_ending(child: Child) -> str:
    return child.ending.describe() if child.ending else "never ran"


def _build_unexpected(frame_type: str) -> ChildError:
    return ChildError("lost", f"broke the protocol: a {frame_type} frame that nobody waits for")
