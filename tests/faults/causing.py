"""How faults are caused: a disk without room, files without a right to grow, a clock that jumps.

Rule: each is the real thing, made by the kernel; of the agent, its clock alone is replaced (`tests.fakes.altered`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.agents import RunningAgent

WATCHFUL: Final = {"MESHWRIGHT_PROBE_INTERVAL_S": "0.5"}
"""An agent that looks at its store, its driver and its worker twice a second."""

HOLD: Final = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""

TRACE: Final = """
import ctypes, sys
ptrace, seize = ctypes.CDLL(None).ptrace, 0x4206
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
print(ptrace(seize, int(sys.argv[1]), None, None), flush=True)
sys.stdin.read()
"""
"""PTRACE_SEIZE of <linux/ptrace.h>: the process runs on."""


@contextlib.contextmanager
def mount_small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    """Makes `folder` a disk of its own with so much room, for the length of the block; skips who may not mount."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root; the limit on file sizes stands in for it")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def fill_disk(folder: Path) -> Iterator[None]:
    """Leaves no room on the disk of `folder` for the length of the block."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(folder).f_bavail == 0
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def forbid_growth(agent: RunningAgent) -> Iterator[None]:
    """Refuses the agent every write (EFBIG, and SIGXFSZ) for the length of the block: no file may have a byte."""
    before = resource.prlimit(agent.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def hold_database(path: Path) -> Iterator[None]:
    """Locks a database (BEGIN EXCLUSIVE) from another process for the length of the block."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield
        finally:
            other.communicate(timeout=30)


@contextlib.contextmanager
def keep_unreaped(pid: int) -> Iterator[None]:
    """Keeps a process that is killed from ending for its parent, for the length of the block; skips who may not trace.

    A traced process that dies is a zombie until its tracer has waited for it: ptrace(2). To its parent that is the same
    as one that the kernel holds in a driver's call.
    """
    command = [sys.executable, "-c", TRACE, str(pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != "0\n":
            tracer.communicate(timeout=30)
            pytest.skip("tracing another process needs a right that is not here; a fake child stands in for it")
        try:
            yield
        finally:
            tracer.communicate(timeout=30)


def serve_and_leave(state_dir: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Returns how an agent ended that is expected to refuse its start."""
    command = [sys.executable, "-m", "meshwright_agent", "serve", "--port", "0", "--state-dir", str(state_dir), *flags]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
