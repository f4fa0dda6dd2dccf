"""serve(): the main loop of every child process; the agent's side is the package `supervisor`.

Rule: a child never outlives its agent and never works unsupervised. The kernel kills it with its parent, and a thread
of the child ends it when the socket closes. It sends hello before any other frame. Work runs on the main thread, one
call at a time; the reader thread only reads frames. This module does not depend on the handlers.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import queue
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from meshwright.compiling.worker import end_with_parent, write_proc
from meshwright.errors import ProblemError, RunFailedError
from meshwright_agent.supervisor.protocol import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    CallFrame,
    CancelFrame,
    FailureFrame,
    Frame,
    FrameError,
    Hello,
    ProgressFrame,
    Refusal,
    ResultFrame,
    Stopped,
    format_frame,
    parse_frame,
)

_OOM_SCORE: Final = 250
"""Added to the kernel's score of −1000 to 1000. The child is killed before the agent, and after a compiler, which adds
more."""

_TRACEBACK_LINES: Final = 40

DUMP_SIGNAL: Final = signal.SIGUSR1
"""Makes the child write every thread's Python stack to its log, even while it holds the GIL."""


class Cancelled(BaseException):
    """The agent cancelled this call. Not an `Exception`, so that a handler's own `except` does not swallow it."""


class CallContext:
    """The interface of a handler to its call: cancellation and progress."""

    def __init__(self, call_id: int, send: Callable[[Frame], None]) -> None:
        self._id = call_id
        self._send = send
        self._cancelled = threading.Event()

    def check(self) -> None:
        """Raises Cancelled if the agent has cancelled the call."""
        if self._cancelled.is_set():
            raise Cancelled

    def progress(self, value: dict[str, Any]) -> None:
        """Sends `value` to the caller.

        Raises:
            FrameError: `value` cannot be written as JSON.
        """
        self._send(ProgressFrame(self._id, value))

    def cancel(self) -> None:
        """Marks the call as cancelled; called from the reader thread."""
        self._cancelled.set()


Handler = Callable[[dict[str, Any], CallContext], dict[str, Any]]
"""Does one operation: arguments and context in, a JSON object out."""


def serve(kind: str, prepare: Callable[[], object], handlers: Mapping[str, Handler]) -> NoReturn:
    """Answers calls until the agent closes the socket; never returns.

    Args:
        kind: the name of this child. The agent compares it with the expected name.
        prepare: does the slow start (imports, device discovery). An exception is reported to the agent and ends the
            child.
        handlers: operation → handler.
    """
    given = _parse_arguments(kind)
    end_with_parent(given.parent)
    write_proc("oom_score_adj", _OOM_SCORE)
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    child = _Child(given, handlers)
    threading.Thread(target=child.listen, name="reader", daemon=True).start()
    child.introduce(kind, prepare)
    while True:
        child.work()


def _parse_arguments(kind: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"The {kind} of meshwright-agent, which starts it; not for people.")
    for name in ("fd", "parent", "generation"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


class _Child:
    """The socket, the current call, and the queue between reader and main thread."""

    def __init__(self, given: argparse.Namespace, handlers: Mapping[str, Handler]) -> None:
        os.set_inheritable(given.fd, False)
        self._socket = socket.socket(fileno=given.fd)
        self._generation = given.generation
        self._handlers = handlers
        self._calls: queue.SimpleQueue[tuple[CallFrame, CallContext]] = queue.SimpleQueue()
        self._contexts: dict[int, CallContext] = {}
        self._sending = threading.Lock()

    # reader thread

    def listen(self) -> None:
        """Reads frames from the agent until the socket closes, then ends the process in any state."""
        try:
            with self._socket.makefile("rb") as lines:
                while line := lines.readline(MAX_FRAME_BYTES):
                    self._take(parse_frame(line))
        except Exception as error:
            os.write(2, f"the agent's socket broke: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(0)

    def _take(self, frame: Frame) -> None:
        match frame:
            case CallFrame():
                context = CallContext(frame.id, self._send)
                self._contexts[frame.id] = context
                self._calls.put((frame, context))
            case CancelFrame():
                if found := self._contexts.get(frame.id):  # else already answered: the two frames crossed
                    found.cancel()
            case _:
                raise FrameError(f"the agent sent a {type(frame).__name__} frame")

    # main thread

    def introduce(self, kind: str, prepare: Callable[[], object]) -> None:
        """Prepares and sends hello. On a failure sends the refusal and exits with status 1."""
        try:
            prepare()
        except BaseException as error:
            self._send(Refusal(type(error).__name__, str(error), "\n".join(_trace(error))))
            os._exit(1)
        self._send(Hello(PROTOCOL_VERSION, kind, os.getpid(), self._generation))

    def work(self) -> None:
        """Waits for one call, does it, answers it."""
        call, context = self._calls.get()
        answer = self._answer(call, context)
        try:
            self._send(answer)
        except FrameError as error:
            self._send(FailureFrame.of(call.id, _build_run_failed(call, error)))
        finally:
            self._contexts.pop(call.id, None)

    def _answer(self, call: CallFrame, context: CallContext) -> ResultFrame | FailureFrame | Stopped:
        try:
            context.check()
            return ResultFrame(call.id, self._handlers[call.op](call.arguments, context))
        except Cancelled:
            return Stopped(call.id)
        except ProblemError as error:
            return FailureFrame.of(call.id, error)
        except BaseException as error:  # also SystemExit: only the agent ends a child
            return FailureFrame.of(call.id, _build_run_failed(call, error))

    def _send(self, frame: Frame) -> None:
        line = format_frame(frame)
        try:
            with self._sending:
                self._socket.sendall(line)
        except OSError:  # the agent has gone; the reader thread will end this process
            os._exit(0)


def _build_run_failed(call: CallFrame, error: BaseException) -> RunFailedError:
    return RunFailedError(
        f"{call.op} raised {type(error).__name__}: {error}",
        hint="the log has the traceback; other requests are not affected",
        log=_trace(error),
    )


def _trace(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()[-_TRACEBACK_LINES:]
