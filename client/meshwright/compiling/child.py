"""A compile in a child process of its own: started, heard, bounded in time and memory, and ended for certain.

Rule: whatever the compiler does, there is an answer, and nothing of it is left running. The job goes in on stdin as one
line of JSON; progress and the answer come back as lines on a descriptor of their own, since libtpu writes to stdout;
what the child prints is kept for the report of its death. Knows no jax; the child's side is `serving`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from meshwright.compiling.compilers import explain_missing, read_versions
from meshwright.compiling.crash_log import is_map_line
from meshwright.compiling.environment import build_compile_environment
from meshwright.compiling.limits import MEMORY_EXIT_STATUS, describe_limit
from meshwright.errors import InternalError, InvalidRequestError
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.compiling import CompileJob
from meshwright.wire.runs import Progress
from meshwright.wire.verification import Verification

LIMIT_S: Final = 600.0
LOG_LINES: Final = 200
"""Lines of the child's output that are kept."""

_LINE_MAX_BYTES: Final = 4096
_READ_BYTES: Final = 1 << 16
_LOOK_S: Final = 0.2
"""How often the process itself is looked at: one that it started may hold its pipes open after its death."""
_LAST_WORDS_S: Final = 2.0
"""For a child that has closed its descriptor to end by itself: its own status says more than our SIGKILL."""
_REAP_S: Final = 2.0
"""For a killed child to end; one that the kernel holds longer, in a driver, is left behind."""
_BAD_ALLOC: Final = "bad_alloc"
"""What C++ says on stderr when it aborts because the kernel gave it no memory."""

_LAST: Final = ("answer", "refused", "bug")
"""What a child says last."""
_NOISE: Final = "noise"
"""What a line is that is no frame."""
_NOISE_REASON: Final = (
    "the answer's descriptor got a line that is none of ours: code in the compiling process writes to descriptors that "
    "it did not open; leave them alone"
)

OnProgress = Callable[[Progress], object]


@dataclass(frozen=True)
class Ended:
    """A child that gave no answer: how it ended, in words, its last lines, and which limit it reached, if one."""

    reason: str
    log: tuple[str, ...]
    limit: Literal["time", "memory"] | None = None


def compile_in_child(
    job: CompileJob,
    *,
    operation: Literal["verify", "fit"] = "verify",
    limit_s: float = LIMIT_S,
    memory_limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Verification | CompiledBatch:
    """Returns what XLA's compiler says of a job: a Verification, or for "fit" the largest batch.

    An abort, a kill and a limit that was reached are a Verification too, with the status "aborted"; without a compiler
    it is one with the status "not_compiled" that says how to have it.

    Args:
        job: what to compile, complete.
        operation: "verify" compiles it once; "fit" looks for the largest batch.
        limit_s: seconds after which the child is killed.
        memory_limit_bytes: of the child; None: no limit.
        on_progress: called with each progress.

    Raises:
        InternalError: the child failed by a bug of ours; its traceback is the error's `log`.
        OSError: the system starts no process.
    """
    if missing := explain_missing(read_versions(job.target.platform), job.target.platform):
        return Verification(status="not_compiled", reason=missing, target=job.target.name)
    message = {"operation": operation, "job": job.model_dump(mode="json")}
    found = run_child(
        "meshwright.compiling",
        message,
        limit_s=limit_s,
        memory_limit_bytes=memory_limit_bytes,
        on_progress=on_progress,
    )
    if isinstance(found, Ended):
        return build_aborted(found, job.target.name)
    return CompiledBatch.model_validate(found) if "batch_per_device" in found else Verification.model_validate(found)


def build_aborted(ended: Ended, target: str | None) -> Verification:
    """Returns the report of a compile that gave none."""
    return Verification(status="aborted", reason=ended.reason, log=ended.log, target=target)


def run_child(
    module: str,
    message: Mapping[str, Any],
    *,
    limit_s: float = LIMIT_S,
    memory_limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
    environ: Mapping[str, str] | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | Ended:
    """Returns what `python -m module` answers to a message, or how it ended without an answer.

    Args:
        module: its main calls `serving.serve`.
        message: JSON.
        limit_s: seconds after which it is killed.
        memory_limit_bytes: what it may use; None: no limit.
        on_progress: called with each progress; when it raises, the child is killed.
        environ: the environment to derive the child's from; None: this process's.
        is_stopped: asked a few times a second; once it is true, the child is killed.

    Raises:
        InvalidRequestError: the child says that the message asks for what cannot be.
        InternalError: the child failed by a bug of ours.
        OSError: the system starts no process.
    """
    base = os.environ if environ is None else environ
    text = json.dumps({**message, "memory_limit_bytes": memory_limit_bytes})
    with _Child(module, build_compile_environment(base)) as child:
        child.send(text)
        frame = child.hear(time.monotonic() + limit_s, on_progress or (lambda progress: None), is_stopped)
        if frame is None:
            return child.end(limit_s, memory_limit_bytes)
        if frame["type"] == _NOISE:
            return Ended(_NOISE_REASON, (*child.read_log(), frame["line"]))
        return _read_frame(frame, child)


def _read_frame(frame: dict[str, Any], child: _Child) -> dict[str, Any]:
    match frame:
        case {"type": "answer", "value": dict(value)}:
            return value
        case {"type": "refused", "message": str(message), "hint": str(hint)}:
            raise InvalidRequestError(message, hint=hint)
    lines = tuple(str(line) for line in frame.get("log", ()))
    message = frame.get("message", "it answered nothing that can be read")
    raise InternalError(f"the compile failed, and not by the compiler: {message}", log=lines or child.read_log())


class _Child:
    """The process, its log, and the descriptor that its frames come on."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._frames, frames_in = os.pipe()
        self._output, output_in = os.pipe()
        command = [sys.executable, "-P", "-u", "-m", module, f"--fd={frames_in}", f"--parent={os.getpid()}"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output_in,
                stderr=output_in,
                env=dict(environment),
                pass_fds=(frames_in,),
                start_new_session=True,  # its group is killed with all that it started; Ctrl-C comes to us alone
            )
        except BaseException:
            os.close(self._frames)
            os.close(self._output)
            raise
        finally:
            os.close(frames_in)
            os.close(output_in)
        os.set_blocking(self._output, False)
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._output_rest = self._frames_rest = b""
        self._is_silent = self._is_closed = self._is_late = self._is_stopped = False

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        os.close(self._frames)
        os.close(self._output)

    def send(self, text: str) -> None:
        """Sends the one line of the job. stdin stays open: its end tells the child that we are gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a child that has died already says so by its status
            self._process.stdin.write(f"{text}\n".encode())
            self._process.stdin.flush()

    def hear(self, deadline: float, on_progress: OnProgress, is_stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """Returns the last frame; None where the child ends, is stopped, or the time is over, without one."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._frames, selectors.EVENT_READ, self._take_frames)
            selector.register(self._output, selectors.EVENT_READ, self._take_output)
            while (left_s := deadline - time.monotonic()) > 0:
                if is_stopped():
                    self._is_stopped = True
                    return None
                ready = selector.select(min(left_s, _LOOK_S))
                for key, _ in ready:
                    for frame in key.data():
                        if frame["type"] != "progress":
                            return dict(frame)
                        on_progress(_read_progress(frame))
                if self._is_silent and self._output in selector.get_map():
                    selector.unregister(self._output)
                if self._is_closed or (not ready and self._process.poll() is not None):
                    return None
        self._is_late = True
        return None

    def end(self, limit_s: float, memory_limit_bytes: int | None) -> Ended:
        """Ends the process, and returns how it ended."""
        if not (self._is_late or self._is_stopped):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS_S)
        status = self._process.poll()
        self._kill()
        log = self.read_log()
        if self._is_stopped:
            return Ended("the compile was stopped", log)
        if self._is_late:
            words = f"the compiler did not end within {limit_s:g} s and was killed; give it more time"
            return Ended(words, log, "time")
        is_refused = status is not None and status < 0 and any(_BAD_ALLOC in line for line in log)
        if status == MEMORY_EXIT_STATUS or is_refused:
            return Ended(describe_limit(memory_limit_bytes), log, "memory")
        return Ended(describe_status(status), log)

    def read_log(self) -> tuple[str, ...]:
        """Returns the last lines of stdout and stderr together."""
        while self._take_output_once():
            pass
        return (*self._lines, *([_decode(self._output_rest)] if self._output_rest else ()))

    def _take_frames(self) -> list[dict[str, Any]]:
        data = os.read(self._frames, _READ_BYTES)
        self._is_closed = not data
        *lines, self._frames_rest = (self._frames_rest + data).split(b"\n")
        return [_parse_frame(line) for line in lines]

    def _take_output(self) -> list[dict[str, Any]]:
        self._take_output_once()
        return []

    def _take_output_once(self) -> bool:
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return False
        self._is_silent = not data
        *lines, self._output_rest = (self._output_rest + data).split(b"\n")
        self._lines.extend(text for line in lines if not is_map_line(text := _decode(line)))
        self._output_rest = self._output_rest[-_LINE_MAX_BYTES:]
        return bool(data)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # also when it has ended: what it started goes with it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)


def _parse_frame(line: bytes) -> dict[str, Any]:
    """Returns what the child says; what a line is that is no frame, too."""
    try:
        frame = json.loads(line)
        if frame["type"] == "progress":
            _read_progress(frame)
        elif frame["type"] not in _LAST:
            raise ValueError(frame["type"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"type": _NOISE, "line": _decode(line)}
    return dict(frame)


def _read_progress(frame: Mapping[str, Any]) -> Progress:
    return Progress(done=frame["done"], total=frame["total"], message=frame["message"])


def describe_status(status: int | None) -> str:
    """Returns how a compiler that gave no answer ended: "the compiler aborted (SIGABRT)"."""
    if status is None:
        return "the compiler closed its connection, did not end, and was killed"
    if status >= 0:
        return f"the compiler ended with status {status} before it answered"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if name == "SIGKILL":
        return "the compiler was killed (SIGKILL), most likely since the host had no memory left"
    return f"the compiler {'aborted' if name == 'SIGABRT' else 'crashed'} ({name})"


def _decode(line: bytes) -> str:
    return line[:_LINE_MAX_BYTES].decode(errors="replace").rstrip()
