"""The kernel log: XID lines of NVIDIA's driver, from the record after the one that was seen last. Runs in the probe.

Rule: reading never waits and is bounded in bytes and in XIDs; what is no XID line is dropped while reading. A log that
cannot be read is an error that is told, not a log without XIDs. Knows no meaning of a number.

Source: the format of /dev/kmsg: Documentation/ABI/testing/dev-kmsg (kernel.org); forms of the line: NVIDIA, XID Errors
(docs.nvidia.com/deploy/xid-errors) and lines in github.com/NVIDIA/gpu-operator/issues/1146.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from meshwright_agent.facts.health import KernelLog, Xid
from meshwright_agent.facts.sysfs import parse_pci_address

_CHUNK: Final = 8192
"""/dev/kmsg gives a record a read, of at most 8 KiB, and refuses (EINVAL) a buffer that is smaller."""
MOST_BYTES: Final = 1 << 26
"""Of a log; kernels keep 0.25 to 16 MiB."""
MOST_XIDS: Final = 256
"""A look; the next one goes on where this one stopped."""
_MOST_TEXT: Final = 200

_RECORD: Final = re.compile(rb"\d+,(\d{1,19}),(\d{1,19}),[^;]*;(.*)", re.DOTALL)
_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?[^)]*\): (\d{1,4})\b,?\s*(.*)"
)
_PROCESS: Final = re.compile(r"pid='?(?:(\d{1,10})|[^,']*)'?,\s*(?:name=([^,]*),?\s*)?")


def read_kernel_log(path: Path, *, after: int | None = None, now_s: float | None = None) -> KernelLog:
    """Returns the XIDs in the kernel log.

    Args:
        path: /dev/kmsg, or a file in its format.
        after: the number of the record that was seen last; None: all that the log still has. A log whose newest record
            is older than that was started anew, and is read from its beginning.
        now_s: seconds since boot (CLOCK_MONOTONIC, as the records have them); None: now.
    """
    now_s = time.monotonic() if now_s is None else now_s
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return KernelLog(error=f"{path}: {error.strerror}")
    try:
        return _collect(path, _read_lines(descriptor), after, now_s)
    except OSError as error:
        return KernelLog(error=f"{path}: {error.strerror}")
    finally:
        os.close(descriptor)


def _read_lines(descriptor: int) -> Iterator[bytes]:
    """Yields whole lines. A record that was overwritten while reading (EPIPE) is gone; the next one follows."""
    rest, total = b"", 0
    while total < MOST_BYTES:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue
        if not chunk:
            return
        total += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-_CHUNK:]
        yield from lines


def _collect(path: Path, lines: Iterator[bytes], after: int | None, now_s: float) -> KernelLog:
    newest, count, is_foreign = None, 0, False
    recent: list[Xid] = []
    older: list[Xid] = []
    for line in lines:
        record = _RECORD.match(line)
        if record is None:
            is_foreign = is_foreign or (not line.startswith((b" ", b"\0")) and line != b"")
            continue
        count, newest = count + 1, int(record[1])
        if b"NVRM: Xid" not in line:
            continue
        xid = parse_xid(record[3].decode(errors="replace"))
        if xid is not None:
            dated = replace(xid, sequence=newest, age_s=max(0.0, now_s - int(record[2]) / 1e6))
            (older if after is not None and newest <= after else recent).append(dated)
    if count == 0 and is_foreign:
        return KernelLog(error=f"{path}: no line is in the format of /dev/kmsg")
    if after is not None and newest is not None and newest < after:
        recent = older + recent
    kept = recent[:MOST_XIDS]
    return KernelLog(tuple(kept), kept[-1].sequence if len(recent) > len(kept) else newest)


def parse_xid(message: str) -> Xid | None:
    """Returns the XID that a line tells; None for any other line.

    Known are "(0000:03:00)", "(PCI:0000:03:00)" and "(PCI:0000:03:00 GPU-I:05)" before the number, and after it the
    text alone, `pid=1896, …` or `pid='<unknown>', name=<unknown>, …`.
    """
    found = _XID.search(message)
    if found is None:
        return None
    text = found[3].strip()
    process = _PROCESS.match(text)
    pid = int(process[1]) if process and process[1] else None
    name = (process[2] or "").strip() if process else ""
    return Xid(
        code=int(found[2]),
        pci_bus_id=f"{parse_pci_address(found[1])}.0",
        sequence=0,
        text=(text[process.end() :] if process else text)[:_MOST_TEXT],
        pid=pid,
        process=name[:32] if name and not name.startswith("<") else None,
    )
