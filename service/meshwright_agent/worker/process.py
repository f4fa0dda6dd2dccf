"""A child as the operating system sees it: spawn, frames in and out, its log, and how to end it for certain.

Rule: whatever a child does, ending it takes bounded time: close the socket → SIGTERM → SIGKILL to the process
group; one that the kernel will not let go even then (state D: a driver that hangs) is abandoned, and said so.
All of this runs in the agent. Knows nothing of calls and states; tells `on_frame` and `on_lost`, and is told
to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from meshwright.compiling.crash_log import is_map_line
from meshwright_agent.worker.protocol import Frame, FrameBuffer, FrameError, parse_frame

LOG_LINES: Final = 200
"""Lines of output that are kept for the crash report."""

_LINE_LIMIT_BYTES: Final = 4096
_LAST_WORDS_S: Final = 0.2
"""How long a child that closed its socket may take to end by itself (its own exit status says more than our
SIGKILL), and its last output and frames to arrive (they are in the kernel's buffers, unless a grandchild
holds the
other end)."""

_NOT_FOR_CHILDREN: Final = frozenset(
    {
        *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"),
        *("MESHWRIGHT_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
    }
)
"""systemd's notification belongs to the agent (sd_notify(3), sd_watchdog_enabled(3)); what opens other doors stays with
who needs it: a child that crashes may print its environment."""

_log = logging.getLogger("meshwright.worker")


@dataclass(frozen=True)
class ChildSpec:
    """What to run, and how long to wait for what. All times in seconds.

    Attributes:
        name: the child's kind; it must say the same in its hello.
        module: run as `python -m module`.
        environment: makes the complete environment, at each spawn.
        start_timeout_s: spawn to hello.
        idle_release_s: ready without work for so long, it is stopped; None is never, 0 at once.
        cancel_grace_s: cancel to kill.
        stop_grace_s: closing the socket to SIGTERM.
        term_grace_s: SIGTERM to SIGKILL.
        reap_wait_s: SIGKILL to abandoning the process.
        backoff_initial_s, backoff_max_s: the pause after a crash; doubled with each.
        crash_budget, crash_window_s: so many crashes within the window, and it stays down.
        has_devices: while one that could not be ended may hold them, no other is started.
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
        status: exit status, negative for a signal; None: it never ended and was abandoned.
        killed: it did not go by itself: SIGTERM or SIGKILL was needed.
    """

    status: int | None
    killed: bool

    def describe(self) -> str:
        """Returns the ending in words: "was killed by SIGSEGV", "exited with status 3"."""
        if self.status is None:
            return "could not be killed: the kernel holds it, most likely in a driver call"
        if self.status >= 0:
            return f"exited with status {self.status}"
        try:
            return f"was killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"was killed by signal {-self.status}"


class Child(Protocol):
    """What the supervisor needs of a process; the tests bring one that cannot be killed."""

    @property
    def pid(self) -> int:
        """Its process id, also that of its group and session."""

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last lines of its output."""

    def listen(self) -> None:
        """Lets frames, and the end, be reported from now on; nothing is before."""

    def send(self, line: bytes) -> None:
        """Sends one formatted frame."""

    async def dump(self) -> None:
        """Makes it write its stacks to its log."""

    async def stop(self, *, gently: bool) -> Ending:
        """Ends it."""

    async def reap(self) -> None:
        """Waits, without limit, for one that was abandoned."""


class Spawn(Protocol):
    """Starts a child; `spawn_child` is the real one."""

    async def __call__(
        self,
        spec: ChildSpec,
        generation: int,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[str], None],
    ) -> Child:
        """Returns the process. After `listen`, frames go to `on_frame`, and the end of the process or of the
        connection to `on_lost`, once; a FrameError (also one that `on_frame` raises) is such an end."""


async def spawn_child(
    spec: ChildSpec, generation: int, on_frame: Callable[[Frame], None], on_lost: Callable[[str], None]
) -> ChildProcess:
    """Starts `python -m spec.module` in a session of its own, with a socketpair and its output on a pipe.

    Raises:
        OSError: the system will not start it.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    try:
        environment = {k: v for k, v in spec.environment().items() if k not in _NOT_FOR_CHILDREN}
        process = await asyncio.create_subprocess_exec(
            *build_command(spec.module, fd=theirs.fileno(), parent=os.getpid(), generation=generation),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            env=environment,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        os.close(read_end)
        raise
    finally:
        theirs.close()
        os.close(write_end)
    channel, log = _Channel(on_frame, on_lost), _LogPipe(spec.name, process.pid, generation)
    ours.setblocking(False)
    await loop.create_unix_connection(lambda: channel, sock=ours)
    await loop.connect_read_pipe(lambda: log, os.fdopen(read_end, "rb", buffering=0))
    return ChildProcess(spec, process, channel, log)


def build_command(module: str, *, fd: int, parent: int, generation: int) -> list[str]:
    """Returns the command line. -P: no import from the working directory; -u: output is not held back."""
    return [
        sys.executable,
        "-P",
        "-u",
        "-m",
        module,
        f"--fd={fd}",
        f"--parent={parent}",
        f"--generation={generation}",
    ]


class _Channel(asyncio.Protocol):
    """The agent's end of the socketpair: cuts and parses frames, reports the first thing that goes wrong."""

    def __init__(self, on_frame: Callable[[Frame], None], on_lost: Callable[[str], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.pause_reading()

    def listen(self) -> None:
        """Lets frames come."""
        if self._transport is not None and not self.ended.is_set():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            for line in self._buffer.feed(data):
                if not self.ended.is_set():
                    self._on_frame(parse_frame(line))
        except FrameError as error:
            self.lose(f"broke the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose("closed its socket")

    def send(self, line: bytes) -> None:
        if self._transport is not None and not self.ended.is_set():
            self._transport.write(line)

    def lose(self, reason: str) -> None:
        """Tells `on_lost`, unless the channel was closed by us or is lost already."""
        if not self.ended.is_set():
            self.close()
            self._on_lost(reason)

    def close(self) -> None:
        """Closes our end; nothing is reported any more."""
        self.ended.set()
        if self._transport is not None:
            self._transport.abort()


class _LogPipe(asyncio.Protocol):
    """stdout and stderr: into the agent's log, the last lines into memory."""

    def __init__(self, name: str, pid: int, generation: int) -> None:
        self._name = f"{name}[{pid}]"
        self._whose = {"child": name, "child_pid": pid, "generation": generation}
        self._log = logging.getLogger(f"{_log.name}.{name}")
        self._pending = b""
        self._transport: asyncio.BaseTransport | None = None
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *complete, self._pending = (self._pending + data).split(b"\n")
        for line in complete:
            self._keep(line)
        while len(self._pending) > _LINE_LIMIT_BYTES:
            self._keep(self._pending[:_LINE_LIMIT_BYTES])
            self._pending = self._pending[_LINE_LIMIT_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pending:
            self._keep(self._pending)
        self.ended.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _keep(self, raw: bytes) -> None:
        line = raw[:_LINE_LIMIT_BYTES].decode(errors="replace").rstrip()
        if not is_map_line(line):
            self.lines.append(line)
        self._log.info("%s: %s", self._name, line, extra=self._whose)


class ChildProcess:
    """A real child. Made by `spawn_child`."""

    def __init__(self, spec: ChildSpec, process: asyncio.subprocess.Process, channel: _Channel, log: _LogPipe) -> None:
        self._spec = spec
        self._process = process
        self._channel = channel
        self._log = log
        self._exit = asyncio.create_task(process.wait())
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Its process id, also that of its group and session."""
        return self._process.pid

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last `LOG_LINES` lines of stdout and stderr together."""
        return tuple(self._log.lines)

    def listen(self) -> None:
        """Lets frames and the end of the process be reported; nothing is before."""
        self._channel.listen()
        self._watch = asyncio.create_task(self._report_exit())

    def send(self, line: bytes) -> None:
        """Sends one formatted frame; into the void when the child is gone, `on_lost` says so."""
        self._channel.send(line)

    async def dump(self) -> None:
        """Makes the child write every thread's stack to its log, so that a hang can be explained."""
        self._signal(signal.SIGUSR1)
        await self._has_ended(_LAST_WORDS_S)

    async def stop(self, *, gently: bool) -> Ending:
        """Ends the process and its group, in bounded time; gently: with time to go by itself first."""
        self._channel.close()
        ended = await self._has_ended(self._spec.stop_grace_s if gently else _LAST_WORDS_S)
        killed = not ended
        if gently and not ended:
            self._signal_group(signal.SIGTERM)
            ended = await self._has_ended(self._spec.term_grace_s)
        self._signal_group(signal.SIGKILL)  # also when it has ended: what it started goes with it
        ended = ended or await self._has_ended(self._spec.reap_wait_s)
        await self._hear_last_words()
        return Ending(self._exit.result() if ended else None, killed)

    async def reap(self) -> None:
        """Waits for a process that was abandoned, so that it does not stay a zombie."""
        await self._exit

    async def _has_ended(self, timeout_s: float) -> bool:
        await asyncio.wait({self._exit}, timeout=timeout_s)
        return self._exit.done()

    async def _hear_last_words(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._log.ended.wait(), _LAST_WORDS_S)
        self._log.close()

    async def _report_exit(self) -> None:
        """The socket's end usually comes first; this is for a grandchild that keeps the socket open."""
        await asyncio.wait({self._exit})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._channel.ended.wait(), _LAST_WORDS_S)
        self._channel.lose("ended")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
