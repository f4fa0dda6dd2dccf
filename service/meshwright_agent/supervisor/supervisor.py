"""Supervisor: owns one child process, sends it calls one at a time, and survives any failure of it.

Each call is one coroutine: it waits for its turn, starts the child if necessary, and sends the call. Then it reads
frames until the answer, the deadline or a cancel. Between calls one task waits for idleness or the child's end. So
exactly one coroutine reads from the child at any time. `_tear_down` ends every process that must end: it kills and
reaps the group first, so that a device never has two owners.

Every caller gets one answer: a result, the child's own error, `UnavailableError` or `CallCancelled`. The supervisor
runs on the agent's event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from meshwright.errors import MeshwrightError, ProblemError, UnavailableError
from meshwright.wire.devices import Worker, WorkerState
from meshwright_agent.clock import Clock
from meshwright_agent.supervisor.process import Child, ChildError, ChildSpec
from meshwright_agent.supervisor.protocol import (
    PROTOCOL_VERSION,
    CallFrame,
    CancelFrame,
    FailureFrame,
    Hello,
    ProgressFrame,
    Refusal,
    ResultFrame,
    Stopped,
    format_frame,
)

OnProgress = Callable[[dict[str, Any]], None]
"""Receives the progress reports of a handler; called on the event loop."""
_BuildError = Callable[[], MeshwrightError]
"""Each caller raises its own error, because a shared error would hold the frames of all callers."""

_DOCTOR: Final = "the log has its last lines; `meshwright-agent doctor` says what is wrong with this host's JAX"
_AGAIN: Final = "ask again: a new one is started; if it happens again, the log says where the worker was"

_log = logging.getLogger("meshwright.worker")


class CallCancelled(MeshwrightError):  # noqa: N818 — not an error: the cancel was requested
    """The call was cancelled on request, for the reason in its text."""


@dataclass(frozen=True)
class Answer:
    """The result of a call, and the worker (counted from 1) that returned it."""

    result: dict[str, Any]
    generation: int


@dataclass(frozen=True)
class ReleaseOutcome:
    """The outcome of a release.

    Attributes:
        killed: the process did not end by itself: a signal was needed.
        abandoned_pids: processes that SIGKILL did not end, now or earlier, or not in time. They may still hold devices.
            `Supervisor.holding_pids` lists those that still exist.
    """

    killed: bool
    abandoned_pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Work:
    """A call in progress in a child."""

    id: int
    op: str
    deadline_s: float
    on_progress: OnProgress | None


class Supervisor:
    """One child process, started on demand.

    Args:
        clock: for `since`, durations and the crash window. Timers use the event loop.
        build_child: builds a process that is not started yet.

    Attributes:
        state: stopped → starting → ready ⇄ busy → stopping → stopped, or after a crash backoff, or failed.
        since: when the state last changed, UTC.
        generation: the number of the newest process, counted from 1; 0 before the first.
        last_error: the last error; kept after a recovery, until `reset`.
        has_crashed: true from a crash until another process is ready.
        crash_count: number of processes that ended unexpectedly.
        neighbor: the supervisor of another child that opens the same devices, or None.
        on_change: called after each change of state, on the event loop, or None.
    """

    def __init__(
        self, spec: ChildSpec, *, clock: Clock, build_child: Callable[[ChildSpec, int], Child] = Child
    ) -> None:
        self.spec = spec
        self.state: WorkerState = "stopped"
        self.since = clock.now()
        self.generation = 0
        self.last_error: str | None = None
        self.has_crashed = False
        self.crash_count = 0
        self._clock = clock
        self.on_change: Callable[[], None] | None = None
        self._build_child = build_child
        self._ids = itertools.count(1)
        self._lock = asyncio.Lock()  # its holder owns the child
        self._child: Child | None = None
        self._last_log: tuple[str, ...] = ()
        self._began_s = 0.0  # when the newest child received its work, or else was started
        self._heard_s = 0.0  # when the last frame about its work came
        self._work: _Work | None = None
        self._idling: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[_BuildError] | None = None  # of the newest child; kept after its end
        self._pause: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._give_up_count = 0
        self._give_up_error: _BuildError = partial(CallCancelled, "released")
        self._crashed_s: tuple[float, ...] = ()
        self._abandoned: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False
        self.neighbor: Supervisor | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame of the child during a call; 0 without a call."""
        return 0.0 if self._work is None else self._clock.monotonic() - self._heard_s

    @property
    def idle_s(self) -> float:
        """Seconds since the last frame about a call, which ended it if none runs."""
        return self._clock.monotonic() - self._heard_s

    @property
    def pid(self) -> int | None:
        """The process id; None without a process."""
        return self._child.pid if self._child else None

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last lines of stdout and stderr of this child, or else of the previous one."""
        return self._child.log_tail if self._child else self._last_log

    @property
    def abandoned_pids(self) -> tuple[int, ...]:
        """Processes that SIGKILL did not end (state D) and that still exist."""
        return tuple(self._abandoned)

    @property
    def holding_pids(self) -> tuple[int, ...]:
        """Processes that may hold devices: the abandoned ones and the current one."""
        return (*self._abandoned, *([] if self.pid is None else [self.pid]))

    def view(self) -> Worker:
        """Returns the state as the API's model."""
        return Worker(
            state=self.state, generation=self.generation, pid=self.pid, since=self.since, last_error=self.last_error
        )

    # ---- public calls ----------------------------------------------------------------------------------------------

    async def call(
        self, op: str, arguments: dict[str, Any], *, deadline_s: float, on_progress: OnProgress | None = None
    ) -> Answer:
        """Returns the child's answer. Starts a child if necessary; after a crash it waits for the backoff.

        Calls are served in order of arrival.

        Cancelling the task cancels the call. The child gets a cancel frame and is killed after the grace period. The
        task ends when the child has stopped.

        Args:
            deadline_s: time limit of the child's work, after which the child is killed. Waiting does not count.
            on_progress: receives the handler's progress.

        Raises:
            ProblemError: the handler raised an error of the same class. Other exceptions become a RunFailedError.
            UnavailableError: the child died during the call (the log has its last lines), or the deadline passed. Or
                it cannot start or did not send hello in time (its own reason and log). Or it has crashed too often, or
                an earlier process that may hold the devices does not end.
            CallCancelled: the call was cancelled, or the child was released or closed.
            FrameError: the arguments cannot be written as JSON.
        """
        call = CallFrame(id=next(self._ids), op=op, arguments=arguments)
        work = _Work(call.id, op, deadline_s, on_progress)
        serving = self._serve(work, format_frame(call), self._give_up_count)
        return await _run_to_its_end(serving)

    async def release(self, *, reason: str = "released", within_s: float | None = None) -> ReleaseOutcome:
        """Ends the process in bounded time. Waiting callers get `CallCancelled(reason)`.

        Args:
            reason: the reason for the waiting callers and the current call.
            within_s: time limit of the answer. A remaining process is listed, and its end continues.
        """
        child = self._child
        self._give_up(partial(CallCancelled, reason))
        if child is None:
            return ReleaseOutcome(killed=False, abandoned_pids=self.abandoned_pids)
        done, _ = await asyncio.wait({self._begin_end(reason, gently=True)}, timeout=within_s)
        killed = not done or (child.ending is not None and child.ending.killed)
        pids = self.abandoned_pids if done else self.holding_pids
        return ReleaseOutcome(killed, pids)

    def reset(self) -> None:
        """Forgets the crashes and the last error, so that the next call starts the child again."""
        self._crashed_s, self.last_error = (), None
        if self.state in ("backoff", "failed"):
            self._become("stopped")

    async def close(self) -> None:
        """Releases the child permanently. Later calls get `CallCancelled("closing")`."""
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
            try:
                child = await self._bring_up(give_up_count)
            except BaseException:
                if self._child is not None:
                    self._rest(self._child)
                raise
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
            case ResultFrame():
                return Answer(reply.result, child.generation)
            case FailureFrame():
                raise reply.build_error()
            case Stopped():
                raise CallCancelled("stopped by the child itself")

    async def _bring_up(self, give_up_count: int) -> Child:
        """Returns the ready child to the caller that has the lock."""
        await self._stop_idling()
        while self.state in ("stopping", "backoff") and give_up_count == self._give_up_count and not self._is_closed:
            await self._changed.wait()
        if give_up_count != self._give_up_count:
            raise self._give_up_error()
        if self._is_closed:
            raise CallCancelled("closing")
        stuck = self._abandoned | (self.neighbor._abandoned if self.neighbor else {})
        if self.spec.has_devices and stuck and self._child is None:
            raise self._build_abandoned(*stuck)
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
            if self._ending is not None:  # a release, between the hello and its reading
                raise ChildError("lost", "was released while it started")
        except (TimeoutError, ChildError) as error:
            build_error = await self._end(error if isinstance(error, ChildError) else ChildError("start_timeout"))
            raise build_error() from None
        except asyncio.CancelledError:
            await self._end("cancelled")
            raise
        if self.has_crashed:
            _log.info("%s is ready", self._name(child))
        self.has_crashed = False
        self._become("ready")
        return child

    async def _read_hello(self, child: Child) -> None:
        match await child.read():
            case Hello() as hello:
                found = (hello.protocol, hello.kind, hello.generation, hello.pid)
                expected = (PROTOCOL_VERSION, self.spec.name, self.generation, child.pid)
                if found != expected:
                    words = f"its hello says protocol, kind, generation, pid {found}; expected {expected}"
                    raise ChildError("lost", f"broke the protocol: {words}")
            case Refusal() as refusal:
                words = f"{refusal.name}: {refusal.message}"
                raise ChildError("refused", words, tuple(refusal.traceback.splitlines()))
            case frame:
                raise _build_unexpected(frame.type)

    async def _read_reply(self, child: Child, work: _Work) -> ResultFrame | FailureFrame | Stopped:
        while True:
            frame = await child.read()
            self._heard_s = self._clock.monotonic()
            if self._ending is not None:
                raise ChildError("lost", "answered too late")
            if isinstance(frame, Hello | Refusal | CallFrame | CancelFrame) or frame.id != work.id:
                raise _build_unexpected(frame.type)
            if not isinstance(frame, ProgressFrame):
                self._work = None
                return frame
            if work.on_progress is not None:
                try:
                    work.on_progress(frame.value)
                except Exception:
                    _log.exception("%s: a listener failed on progress %.200r", self.spec.name, frame.value)

    async def _stop_work(self, child: Child, work: _Work) -> None:
        """Sends a cancel for the work of a cancelled caller. Ends the child after the grace period."""
        child.send(format_frame(CancelFrame(id=work.id)))
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
        """Ends a child that is idle for too long, that dies, or that sends an unexpected frame."""
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
        """Ends the process and returns the error for its waiting callers."""
        return await asyncio.shield(self._begin_end(why, gently=gently))

    def _begin_end(self, why: ChildError | str, *, gently: bool) -> asyncio.Task[_BuildError]:
        """Begins to end the newest process. The first reason counts. Cancelling a waiting caller does not stop it."""
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
            build_crash = partial(self._build_crash, child, why, self._work, now_s - self._began_s, is_starting)
            build_error = build_crash
            self.last_error = build_crash().detail
            _log.warning("%s", self.last_error)
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
        """Returns the pause before the next start, doubled with each crash."""
        doublings = min(len(self._crashed_s) - 1, 60)
        return min(self.spec.backoff_initial_s * 2.0**doublings, self.spec.backoff_max_s)

    # ---- visible state ---------------------------------------------------------------------------------------------

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
        """Makes all waiting callers raise this error."""
        self._give_up_count += 1
        self._give_up_error = build_error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _build_crash(
        self, child: Child, why: ChildError, work: _Work | None, duration_s: float, is_starting: bool
    ) -> ProblemError:
        """Returns the error for the callers of a child that was lost, refused to work, or took too long."""
        who, ending = self._name(child), _describe_ending(child)
        asked = f"{work.op} was asked of {who}" if work else f"{who} was {'started' if is_starting else 'idle'}"
        hint, log, retry_after_s = _AGAIN if work else _DOCTOR, (*child.log_tail, *why.log), self._find_pause_s()
        if why.kind == "refused":
            return UnavailableError(f"{asked}; it cannot work: {why.words}", hint=hint, log=log, code="worker_failed")
        if why.kind == "lost":
            after = f"after {duration_s:.1f} s " if work or is_starting else ""
            detail = f"{asked}; {after}it {why.words} and {ending}"
            return UnavailableError(detail, hint=hint, log=log, retry_after_s=retry_after_s, code="worker_failed")
        missed, limit_s = ("did not answer", work.deadline_s) if work else ("was not ready", self.spec.start_timeout_s)
        detail = f"{asked}; it {missed} within {limit_s:g} s and was killed"
        return UnavailableError(detail, hint=hint, log=log, retry_after_s=retry_after_s, code="worker_failed")

    def _build_abandoned(self, *pids: int) -> ProblemError:
        return UnavailableError(
            f"the {self.spec.name} worker is not started: an earlier worker of the agent "
            f"(process {', '.join(map(str, pids))}) does not end, not even by SIGKILL, and may hold the devices",
            hint=f"the kernel holds it: cat /proc/{pids[0]}/stack; drain this host, and reboot if nothing else helps",
            log=self._last_log,
            code="worker_failed",
        )

    def _build_spent(self) -> ProblemError:
        return UnavailableError(
            f"the {self.spec.name} worker crashed {len(self._crashed_s)} times within {self.spec.crash_window_s:g} s "
            f"and stays down; last: {self.last_error}",
            hint=f"{_DOCTOR}; restart the agent after the cause is repaired",
            log=self._last_log,
            code="worker_failed",
        )


async def _run_to_its_end(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Returns the result of a coroutine. The first cancel cancels it and waits; a second cancel does not wait."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    finally:
        del task  # it holds the error, whose traceback holds this frame: this cycle would keep the arguments


def _describe_ending(child: Child) -> str:
    return child.ending.describe() if child.ending else "never ran"


def _build_unexpected(frame_type: str) -> ChildError:
    return ChildError("lost", f"broke the protocol: a {frame_type} frame that no call waits for")
