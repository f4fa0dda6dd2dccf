"""A child as an operating system process: spawn, frames in and out, its log, and its guaranteed end.

Rule: ending a child always takes bounded time: close the socket → SIGTERM → SIGKILL to the process group. A process
that survives SIGKILL (state D: a hanging driver) is abandoned and reported. All of this runs in the agent. This module
does not depend on calls and states.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.compiling.process import NOT_FOR_CHILDREN, is_map_line
from meshwright_agent.supervisor.protocol import MAX_FRAME_BYTES, Frame, FrameError, parse_frame

LOG_LINES: Final = 200
"""Number of output lines for the crash report."""

_LINE_LIMIT_BYTES: Final = 4096
_READ_BYTES: Final = 1 << 16
_LAST_WORDS_S: Final = 0.2
"""How long a child that closed its socket may take to end by itself, because its own exit status is more informative
than SIGKILL. Also how long its last output and frames may take to arrive. They are in the kernel's buffers, unless a
grandchild holds the other end."""

_log = logging.getLogger("meshwright.worker")


@dataclass(frozen=True)
class ChildSpec:
    """The command and the time limits of a child. All times in seconds.

    Attributes:
        name: the child's kind, which its hello must repeat.
        module: run as `python -m module`.
        environment: builds the complete environment, at each spawn.
        start_timeout_s: time from spawn to hello.
        idle_release_s: time without work after which the child is stopped; None: never, 0: at once.
        cancel_grace_s: time from cancel to kill.
        stop_grace_s: time from closing the socket to SIGTERM.
        term_grace_s: time from SIGTERM to SIGKILL.
        reap_wait_s: time from SIGKILL to abandoning the process.
        backoff_initial_s, backoff_max_s: the pause after a crash, doubled with each crash.
        crash_budget, crash_window_s: number of crashes within the window after which the child stays down.
        has_devices: while a stuck process may hold the devices, no other is started.
    """

    name: str
    module: str
    environment: Callable[[], Mapping[str, str]]
    start_timeout_s: float = 120.0
    idle_release_s: float | None = None
    cancel_grace_s: float = 2.0
    stop_grace_s: float = 0.5
    term_grace_s: float = 0.5
    reap_wait_s: float = 2.0
    backoff_initial_s: float = 0.5
    backoff_max_s: float = 30.0
    crash_budget: int = 5
    crash_window_s: float = 300.0
    has_devices: bool = False


@dataclass(frozen=True)
class Ending:
    """How a process ended.

    Attributes:
        status: exit status, negative for a signal; None: the process was abandoned.
        killed: the process did not end by itself: SIGTERM or SIGKILL was needed.
    """

    status: int | None
    killed: bool

    def describe(self) -> str:
        """Returns the ending as text: "was killed by SIGSEGV", "exited with status 3"."""
        if self.status is None:
            return "could not be killed: the kernel holds it, most likely in a driver call"
        if self.status >= 0:
            return f"exited with status {self.status}"
        names = {each.value: each.name for each in signal.Signals}
        return f"was killed by {names.get(-self.status, f'signal {-self.status}')}"


@dataclass(eq=False)
class ChildError(Exception):
    """A child that must be ended without a request.

    Attributes:
        kind: it refused to work · it died or broke the protocol · no hello, or no answer, in time.
        words: its message or action; empty for a timeout.
        log: lines that are not in its output (a refusal's traceback).
    """

    kind: Literal["refused", "lost", "start_timeout", "call_timeout"]
    words: str = ""
    log: tuple[str, ...] = ()


class Child:
    """A process in its own session, with a socketpair and its output on a pipe. Created on the event loop.

    Attributes:
        generation: its number, counted from 1.
        pid: its process id, also that of its group and session; None if it could not be started.
        ending: how it ended, once it has been stopped.
    """

    def __init__(self, spec: ChildSpec, generation: int) -> None:
        self.generation = generation
        self.pid: int | None = None
        self.ending: Ending | None = None
        self._spec = spec
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._was_cut = False
        self._opening: asyncio.Task[None] | None = None

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last `LOG_LINES` lines of stdout and stderr together."""
        return tuple(self._lines)

    async def open(self) -> None:
        """Starts the process. Call it once. `stop` waits for a start in progress.

        Raises:
            ChildError: memory or the interpreter is missing, or the environment cannot be built.
        """
        # It outlives the request that starts it, so that its later log lines do not belong to that request.
        self._opening = asyncio.create_task(self._open(), context=Context())
        try:
            await asyncio.shield(self._opening)
        except Exception as error:
            raise ChildError("lost", f"could not be started ({type(error).__name__}: {error})") from error

    async def _open(self) -> None:
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        output = asyncio.StreamReader()
        with theirs, os.fdopen(write_end, "wb"), contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            pipe = undo.enter_context(os.fdopen(read_end, "rb", buffering=0))
            given = self._spec.environment()
            environment = {k: v for k, v in given.items() if not re.match(NOT_FOR_CHILDREN, k)}
            # Connected before the process exists, which `stop` can end only through these connections.
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_FRAME_BYTES)
            undo.callback(self._writer.transport.abort)
            self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(output), pipe
            )
            undo.callback(self._pipe.close)
            self._process = await asyncio.create_subprocess_exec(
                *self._build_command(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,  # own pipe: asyncio's Process.wait would wait for the end of its pipes
                stderr=write_end,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            undo.pop_all()
        self.pid = self._process.pid
        self._exit = asyncio.create_task(self._process.wait())
        self._logging = asyncio.create_task(self._keep_log(output))
        self._watching = asyncio.create_task(self._cut_after_exit())

    def _build_command(self, fd: int) -> list[str]:
        """Returns the command line. -P: no import from the working directory; -u: unbuffered output."""
        arguments = (f"--fd={fd}", f"--parent={os.getpid()}", f"--generation={self.generation}")
        return [sys.executable, "-P", "-u", "-m", self._spec.module, *arguments]

    async def read(self) -> Frame:
        """Returns the next frame; may be cancelled.

        Raises:
            ChildError: the process or the connection ended, or the data is not a frame.
        """
        try:
            line = await self._reader.readline()
            if line.endswith(b"\n"):
                return parse_frame(line)
        except FrameError as error:
            raise ChildError("lost", f"broke the protocol: {error}") from None
        except ValueError:
            words = f"broke the protocol: a line has more than {MAX_FRAME_BYTES} bytes"
            raise ChildError("lost", words) from None
        except OSError:  # reset by a child that died before it read all frames
            pass
        raise ChildError("lost", "ended" if self._was_cut else "closed its socket")

    def send(self, line: bytes) -> None:
        """Sends one formatted frame. It does not raise if the child is gone, because `read` reports that."""
        if not self._writer.is_closing():
            self._writer.write(line)

    async def dump(self) -> None:
        """Makes the child write every thread's stack to its log, to diagnose a hang."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)
            await self._has_ended(_LAST_WORDS_S)

    async def stop(self, *, gently: bool) -> None:
        """Ends the process and its group, in bounded time. `gently` first gives it time to end by itself."""
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self.pid is None:
            return
        self._writer.transport.abort()
        ended = await self._has_ended(self._spec.stop_grace_s if gently else _LAST_WORDS_S)
        killed = not ended
        if gently and not ended:
            self._signal_group(signal.SIGTERM)
            ended = await self._has_ended(self._spec.term_grace_s)
        self._signal_group(signal.SIGKILL)  # also after its end, to end its descendants
        ended = ended or await self._has_ended(self._spec.reap_wait_s)
        self._watching.cancel()
        await asyncio.wait({self._logging}, timeout=_LAST_WORDS_S)
        self._logging.cancel()
        self._pipe.close()
        self.ending = Ending(self._exit.result() if ended else None, killed)

    async def reap(self) -> None:
        """Waits without limit for an abandoned process, so that it does not stay a zombie."""
        await self._exit

    async def _has_ended(self, timeout_s: float) -> bool:
        await asyncio.wait({self._exit}, timeout=timeout_s)
        return self._exit.done()

    async def _cut_after_exit(self) -> None:
        """Cuts the socket after the child's exit, if a grandchild keeps the socket open."""
        await asyncio.wait({self._exit})
        await asyncio.sleep(_LAST_WORDS_S)
        self._was_cut = not self._reader.at_eof()
        self._writer.transport.abort()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _keep_log(self, output: asyncio.StreamReader) -> None:
        """Copies stdout and stderr to the agent's log, and keeps the last lines in memory."""
        pending = b""
        try:
            while data := await output.read(_READ_BYTES):
                *complete, pending = (pending + data).split(b"\n")
                for line in complete:
                    self._keep_line(line)
                while len(pending) > _LINE_LIMIT_BYTES:
                    self._keep_line(pending[:_LINE_LIMIT_BYTES])
                    pending = pending[_LINE_LIMIT_BYTES:]
        finally:
            if pending:
                self._keep_line(pending)

    def _keep_line(self, raw: bytes) -> None:
        name = self._spec.name
        line = raw[:_LINE_LIMIT_BYTES].decode(errors="replace").rstrip()
        if not is_map_line(line):
            self._lines.append(line)
        whose = {"child": name, "child_pid": self.pid, "generation": self.generation}
        _log.getChild(name).info("%s[%s]: %s", name, self.pid, line, extra=whose)
