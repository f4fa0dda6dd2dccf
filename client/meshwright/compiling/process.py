"""A compile in a child process: started, bounded in time and memory, and ended.

The job goes in on stdin as JSON. Progress and the answer come back on stdout, one JSON object a line; the child points
what libraries print at stderr, which is a file that parent and child share. Its last lines say how a child ended. Knows
no jax; the child's side is `worker`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from meshwright.environment import XLA_FLAGS
from meshwright.errors import InvalidRequestError, ProblemError
from meshwright.topology.identity import read_text
from meshwright.wire.runs import Progress
from meshwright.wire.verification import Verification

FUNCTIONS: Final[Mapping[Literal["verify", "fit"], str]] = {
    "verify": "meshwright.compiling.report:verify_job",
    "fit": "meshwright.compiling.fit:fit_batch",
}
"""What a child runs for a CompileJob: one compile, or a search for the largest batch."""
LIMIT_S: Final = 600.0
LOG_LINES: Final = 200
"""Lines of the child's output that are reported."""
HOST_RATIO: Final = 0.75
"""Share of the host's memory: the rest is for the agent and the host's jobs."""

_POLL_S: Final = 0.1
"""Between two checks: a process that touches fresh memory at 2 GB/s is stopped 200 MB late."""
_END_S: Final = 2.0
"""For a child to end by itself after its last frame, since its status says more than our SIGKILL; and for a killed one
to end: one that the kernel holds longer, in a driver, is left behind."""
_READ_BYTES: Final = 1 << 16
_LOG_BYTES: Final = 1 << 20
_LOG_MAX_BYTES: Final = 1 << 26
"""The maximum output: beyond it the file starts again."""
_LINE_CHARS: Final = 4096
_CGROUP_LIMITS: Final = ("memory.max", "memory.limit_in_bytes")
"""Of this process's cgroup and of those around it: version 2, version 1 (2⁶³ means no limit)."""
_MAP_LINE: Final = re.compile(r"\b[0-9a-f]{8,16}-[0-9a-f]{8,16} [r-][w-][x-][ps-] ")

OnProgress = Callable[[Progress], object]

# ---- the environment of the child -----------------------------------------------------------------------------------

COMPILE_ENVIRONMENT: Final[Mapping[str, str]] = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "1",
    "TPU_STDERR_LOG_LEVEL": "1",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "JAX_DISABLE_JIT": "false",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}
"""The variables of every child: JAX opens no device in it, and XLA describes hardware that is not present.

- ALLOW_MULTIPLE_LIBTPU_LOAD: beside a trainer, or another compile, that has libtpu loaded and its lock file taken.
- TPU_SKIP_MDS_QUERY and the three after it: otherwise libtpu queries Google's metadata server about this host.
- TPU_LOG_DIR: libtpu leaves two files per process in /tmp/tpu_logs, permanently. TPU_STDERR_LOG_LEVEL=1: its warnings
  go to stderr instead; "Involuntary full rematerialization" is one. Likewise TF_CPP_MIN_LOG_LEVEL for jaxlib and CUDA.
- JAX_ENABLE_COMPILATION_CACHE: answers are cached by their key; a program from JAX's cache has no compiler log.

Autotuning is turned off in the compiler's options (`compilers`). Source: libtpu 0.0.42.1 and 0.0.50.1, tested."""

_KEPT: Final = frozenset({"TPU_LIBRARY_PATH"})

NOT_FOR_CHILDREN: Final = (
    r"MESHWRIGHT_.*TOKEN|OTEL_EXPORTER_OTLP_.*HEADERS"  # secrets, which a crashing child may print
    r"|NOTIFY_SOCKET|WATCHDOG_|LISTEN_(FDS|PID|FDNAMES)"  # systemd's, for the agent
)
"""Pattern of the variables that no child gets, neither a compile's nor another one of the agent."""

_DROPPED: Final = re.compile(
    r"TPU_|MEGASCALE_"  # which slice, worker and chips this host is
    r"|JAX_NUM_CPU_DEVICES|JAX_PLATFORM_NAME"  # the target has both
    r"|" + NOT_FOR_CHILDREN
)

_HOST_DEVICES: Final = re.compile(r"--xla_force_host_platform_device_count=\S*\s*")
"""XLA's older option for the number of CPU devices. JAX rejects it beside its own."""


def build_compile_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a compile process: `base` without variables of this host, and without secrets.

    Flags of XLA and libtpu (`XLA_FLAGS`, `LIBTPU_INIT_ARGS`) stay as they are, but for the number of CPU devices.
    """
    kept = {name: value for name, value in base.items() if name in _KEPT or not _DROPPED.match(name)}
    flags = {XLA_FLAGS: _HOST_DEVICES.sub("", kept[XLA_FLAGS])} if XLA_FLAGS in kept else {}
    return {**kept, **flags, **COMPILE_ENVIRONMENT}


# ---- memory ---------------------------------------------------------------------------------------------------------


def read_default_limit_bytes(root: Path = Path("/")) -> int | None:
    """Returns 3/4 of the host's memory, or of the cgroup's limit where that is less; None where neither is known."""
    host = re.search(r"^MemTotal: +(\d+)", read_text(root / "proc/meminfo"), re.MULTILINE)
    sizes = [int(host[1]) * 1024 if host else 0]
    groups = re.findall(r"^\d+:(.*?):/(.*)$", read_text(root / "proc/self/cgroup"), re.MULTILINE)
    folders = [root / "sys/fs/cgroup" / controllers / path for controllers, path in groups]
    files = (place / name for folder in folders for place in (folder, *folder.parents) for name in _CGROUP_LIMITS)
    sizes += [int(text) for file in files if (text := read_text(file)).isdigit()]
    return int(HOST_RATIO * min(filter(None, sizes), default=0)) or None


def _read_memory_bytes(pid: int) -> int:
    """Returns a process's own resident memory, without pages of files, which the kernel may drop; 0 where not known.

    Source: Linux, Documentation/filesystems/proc.rst, "statm": size, resident, shared, in pages.
    """
    pages = read_text(Path(f"/proc/{pid}/statm")).split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") if pages else 0


# ---- the child ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """A child that gave no answer: how it ended, its last lines, and the limit that it reached."""

    reason: str
    log: tuple[str, ...]
    limit: Literal["time", "memory"] | None = None


def build_aborted(ended: Ended, target: str | None) -> Verification:
    """Returns the report of a compile that ended without a report."""
    return Verification(status="aborted", reason=ended.reason, log=ended.log, target=target)


def run_child(
    function: str,
    job: Mapping[str, Any],
    *,
    paths: Sequence[str] = (),
    limit_s: float = LIMIT_S,
    memory_limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
    environ: Mapping[str, str] | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | Ended:
    """Returns the answer of a function that runs in a child process, or the way the child ended without an answer.

    The child also ends with the calling thread.

    Args:
        function: "module:name"; receives the job and a `worker.Tell`, returns a pydantic model.
        job: JSON.
        paths: the child's sys.path; empty: Python's own.
        limit_s: seconds after which the child is killed.
        memory_limit_bytes: resident memory above which it is killed; None: no limit. Linux only.
        on_progress: called with each progress; when it raises, the child is killed.
        environ: the environment to derive the child's from; None: this process's.
        is_stopped: called ten times a second; once it returns true, the child is killed.

    Raises:
        InvalidRequestError: the function rejects the job.
        ProblemError: the function failed by a bug of ours; its traceback is in the error's `log`.
        OSError: the system cannot start a process, or has no space for temporary files.
    """
    env = build_compile_environment(os.environ if environ is None else environ)
    text = json.dumps({"function": function, "job": job, "paths": paths}).encode()
    with tempfile.TemporaryFile() as output, _start(env, text, output) as child, selectors.DefaultSelector() as reads:
        deadline = time.monotonic() + limit_s
        assert child.stdout is not None
        reads.register(child.stdout, selectors.EVENT_READ)
        rest = b""
        while True:
            if is_stopped():
                return Ended("the compile was stopped", _read_log(output))
            if time.monotonic() > deadline:
                reason = f"the compiler did not end within {limit_s:g} s and was killed; give it more time"
                return Ended(reason, _read_log(output), "time")
            if memory_limit_bytes is not None and _read_memory_bytes(child.pid) > memory_limit_bytes:
                reason = f"the compiler used more than {memory_limit_bytes:,} bytes of the host's memory and was ended"
                return Ended(reason, _read_log(output), "memory")
            if os.fstat(output.fileno()).st_size > _LOG_MAX_BYTES:
                os.ftruncate(output.fileno(), 0)
            has_ended = child.poll() is not None
            if reads.select(0 if has_ended else _POLL_S):
                data = os.read(child.stdout.fileno(), _READ_BYTES)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    try:
                        frame = json.loads(line)
                        kind = frame["type"]
                    except (ValueError, TypeError, KeyError):
                        log = (*_read_log(output), line.decode(errors="replace")[:_LINE_CHARS])
                        return Ended("code of the compile writes to descriptors that it did not open", log)
                    if kind != "progress":
                        _wait(child)
                        return _read_last(frame, output)
                    if on_progress:
                        on_progress(Progress.model_validate(frame["value"]))
                has_ended = not data
            if has_ended:
                _wait(child)
                return Ended(describe_status(child.poll()), _read_log(output))


def _wait(child: subprocess.Popen[bytes]) -> None:
    """Gives the child the time to end by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_END_S)


def _read_last(frame: Mapping[str, Any], output: IO[bytes]) -> dict[str, Any]:
    match frame:
        case {"type": "answer", "value": value}:
            return dict(value)
        case {"type": "refused", "message": message, "hint": hint}:
            raise InvalidRequestError(message, hint=hint)
    raise ProblemError(
        f"the compile failed, and not by the compiler: {frame['message']}", log=_read_log(output), code="internal"
    )


@contextlib.contextmanager
def _start(env: Mapping[str, str], text: bytes, output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the worker, and kills it and all that it started when the block ends."""
    fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)  # so that it can be truncated while the child writes
    with tempfile.TemporaryFile() as stdin:  # a pipe would block until the child reads
        stdin.write(text)
        stdin.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", "meshwright.compiling.worker", str(os.getpid())],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=output,
            env=dict(env),
            start_new_session=True,  # its group is killed; Ctrl-C comes to us alone
        )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        _wait(child)
        if child.stdout:
            child.stdout.close()


def _read_log(output: IO[bytes]) -> tuple[str, ...]:
    """Returns the last lines of stdout and stderr together, without those of /proc/self/maps."""
    size = os.fstat(output.fileno()).st_size
    lines = os.pread(output.fileno(), _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace").splitlines()
    return tuple(line[:_LINE_CHARS].rstrip() for line in lines if not is_map_line(line))[-LOG_LINES:]


def is_map_line(line: str) -> bool:
    """Returns whether a line is of /proc/self/maps; libtpu's crash handler writes hundreds of them after the stack."""
    return _MAP_LINE.search(line) is not None


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
