"""What XLA's C++ says on stderr while it compiles: caught, given back, and read.

Rule: nothing is lost and nothing is kept from anybody. A process of its own stands between fd 2 and the real stderr: it
passes each byte on at once, and hands over a bounded copy in the end. Knows no jax.

Rejected: a temporary file that is written to stderr afterwards, and a thread that reads a pipe. Of a compiler that
aborts, its last words, the most wanted of all, would stay in the file or the pipe; and a compiler that holds the
interpreter's lock while it fills the pipe would wait for that thread for ever.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from meshwright.wire.base import Notice

KEPT_BYTES: Final = 2**20
"""Of one compile, the last; the compiler's words on a program are tens of lines."""

_END_S: Final = 10.0
"""What the copier gets to end. It ends at once, unless a process that was started meanwhile still has our fd 2."""

_COPIER: Final = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept, limit = bytearray(), int(sys.argv[1])
while chunk := os.read(0, 65536):
    kept += chunk
    del kept[:-limit]
    try:
        while chunk:
            chunk = chunk[os.write(2, chunk):]
    except OSError:
        pass
try:
    while kept:
        del kept[:os.write(1, kept)]
except OSError:
    pass
"""
"""Ends when nobody writes any more: signals to the group of processes that it is in must not come first."""

_NAME: Final = r"%?([\w.\-]+)"
_TRIAL: Final = "fake_parameter"
"""How the partitioner calls operands of modules on which it only tries what a gather or scatter would cost."""
_REMAT: Final = re.compile(r"Involuntary full rematerialization")
_SHARDINGS: Final = re.compile(r"from (?:sharding )?(\{.*\}) to (?:sharding )?(\{.*?\}) (?:efficiently|without)")
_OPERATION: Final = re.compile(rf"{_NAME} = (?:\([^=]*?\)|\S+) [\w\-]+\(")
_OP_NAME: Final = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_SOURCE: Final = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')
_MEMORY: Final = re.compile(r"Can't reduce memory use below (\S+) \((\d+) bytes\) by rematerialization(.*)")
_ONLY: Final = re.compile(r"only reduced to (\S+) \((\d+) bytes\)")


@contextmanager
def hush_stderr() -> Iterator[None]:
    """Lets nothing that is written to fd 2 within the block be seen, by C++ either. For one thread of a process."""
    sys.stderr.flush()
    real, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        os.close(real)


@contextmanager
def capture_stderr() -> Iterator[list[str]]:
    """Yields a list that has the lines written to fd 2 within the block once it has ended, by C++ too.

    Each byte also goes to the real stderr, at once. For one thread of a process at a time.

    Raises:
        OSError: no process can be started, or this one has no fd 2.
    """
    lines: list[str] = []
    real = os.dup(2)
    command = (sys.executable, "-I", "-S", "-c", _COPIER, str(KEPT_BYTES))
    copier = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    sys.stderr.flush()
    if copier.stdin is not None:  # from here on fd 2 is the only end of the copier's pipe
        os.dup2(copier.stdin.fileno(), 2)
        copier.stdin.close()
    copier.stdin = None
    try:
        yield lines
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)  # closes the pipe's last end, which ends the copier
        os.close(real)
        with copier:
            try:
                lines += copier.communicate(timeout=_END_S)[0].decode(errors="replace").splitlines()
            except subprocess.TimeoutExpired:
                copier.kill()


def read_diagnostics(lines: Sequence[str]) -> tuple[Notice, ...]:
    """Returns what a compiler's lines warn of, each once, with how often it was said; other lines are left alone.

    `involuntary_rematerialization`: a tensor is gathered whole on every device to be sharded anew.
    `memory_not_reduced`: the GPU compiler would have liked the program smaller, and compiled it all the same.
    """
    told: dict[str, tuple[Notice, int]] = {}
    for line in lines:
        for notice in _read_line(line):
            first, count = told.get(notice.message, (notice, 0))
            told[notice.message] = (first, count + 1)
    return tuple(_count(notice, count) for notice, count in told.values())


def _read_line(line: str) -> Iterator[Notice]:
    for reader in _READERS:
        if notice := reader(line):
            yield notice


def _count(notice: Notice, count: int) -> Notice:
    return notice if count == 1 else notice.model_copy(update={"message": f"{notice.message} ({count} times)"})


def _read_remat(line: str) -> Notice | None:
    if not _REMAT.search(line):
        return None
    operation, shardings = _OPERATION.search(line), _SHARDINGS.search(line)
    if operation and operation.group(1).lstrip("%").startswith(_TRIAL):
        return None
    moved = f" from {shardings.group(1)} to {shardings.group(2)}" if shardings else ""
    return Notice(
        code="involuntary_rematerialization",
        message=f"{operation.group(1) if operation else 'a tensor'}{_find_place(line)} is gathered whole on every "
        f"device to be sharded anew{moved}",
        hint="constrain it on the way (jax.lax.with_sharding_constraint) to a sharding that keeps one of its axes, "
        "or keep the sharded dimension whole in a reshape",
    )


def _find_place(line: str) -> str:
    name, source = _OP_NAME.search(line), _SOURCE.search(line)
    parts = [name.group(1)] if name and name.group(1) else []
    if source and source.group(1):
        parts.append(f"{source.group(1)}:{source.group(2)}" if source.group(2) else source.group(1))
    return f" ({', '.join(parts)})" if parts else ""


def _read_memory(line: str) -> Notice | None:
    found = _MEMORY.search(line)
    if found is None:
        return None
    reached = _ONLY.search(found.group(3))
    needs = f"; the least it came to is {int(reached.group(2)):,} bytes" if reached else ""
    return Notice(
        code="memory_not_reduced",
        message=f"the compiler wanted the program within {int(found.group(2)):,} bytes and could not make it so small"
        f"{needs}",
        hint="compare peak_memory_bytes with capacity_bytes: the GPU compiler compiles what does not fit all the same",
    )


_READERS: Final[Sequence[Callable[[str], Notice | None]]] = (_read_remat, _read_memory)
