"""The kernel log: XIDs and SXIDs of NVIDIA's drivers, and card failures without an XID. Runs in the probe.

Rule: reading starts after the last record that was read. It never waits, and is limited in bytes and in equal lines of
interest; other lines are dropped. Only a line that begins as the driver's counts: any user may crash a program with a
name like one, whose first 15 characters the kernel writes before the process. An unreadable log is reported as an
error, not as a log without XIDs. Records that were overwritten before they were read are counted. This module does not
interpret the numbers.

Source: the format of /dev/kmsg: Documentation/ABI/testing/dev-kmsg (kernel.org); forms of an XID's line: NVIDIA, XID
Errors (docs.nvidia.com/deploy/xid-errors) and lines in github.com/NVIDIA/gpu-operator/issues/1146; of an SXID's:
NVIDIA, Fabric Manager User Guide, and lines in github.com/leptonai/gpud, components/accelerator/nvidia/sxid/README.md;
of lines without an XID: github.com/NVIDIA/NVSentinel/issues/155, Bumblebee-Project/Bumblebee/issues/554 and
illinois-scicomp/machine-shop-maintenance/issues/76.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from meshwright_agent.facts.model import CardFailure, KernelLog, SXid, Xid
from meshwright_agent.facts.sysfs import parse_pci_address

_CHUNK: Final = 8192
"""/dev/kmsg returns one record per read, of at most 8 KiB, and rejects (EINVAL) a smaller buffer."""
MAX_BYTES: Final = 1 << 26
"""Maximum number of bytes read from a log. Kernels keep 0.25 to 16 MiB."""
MAX_EQUAL: Final = 256
"""Maximum number of lines per probe with one code and severity of one device. A flood does not delay other lines."""
_MOST_TEXT: Final = 200

_RECORD: Final = re.compile(rb"\d+,(\d{1,19}),(\d{1,19}),[^;]*;(.*)", re.DOTALL)
_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?[^)]*\): (\d{1,4})\b,?\s*(.*)"
)
_SXID: Final = re.compile(
    r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\): "
    r"(\d{1,6}), (Fatal|Non-fatal)(?:, |$)(?:Link (\d{1,4})\b\s*)?(.*)"
)
"""The line with the severity. The lines after it, "Severity 1 Engine instance …" and "Data {…}", are its details."""
_FAILURES: Final[Mapping[str, Literal["fallen_off_the_bus", "init_failed"]]] = {
    "fallen off the bus": "fallen_off_the_bus",
    "RmInitAdapter failed": "init_failed",
}
_FAILED: Final = re.compile(
    r"NVRM: (?:RmInitAdapter failed"
    r"|(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}))"
)
_MARKS: Final = (b"NVRM: Xid", b": SXid ", *(words.encode() for words in _FAILURES))
_PROCESS: Final = re.compile(r"pid='?(?:(\d{1,10})|[^,']*)'?,\s*(?:name=([^,]*),?\s*)?")


def read_kernel_log(path: Path, *, after: int | None = None, now_s: float | None = None) -> KernelLog:
    """Returns the XIDs in the kernel log.

    Args:
        path: /dev/kmsg, or a file in its format.
        after: the number of the last record read in this boot; None: all records in the log.
        now_s: seconds since boot (CLOCK_MONOTONIC, as in the records); None: now.
    """
    now_s = time.monotonic() if now_s is None else now_s
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            return _collect(path, _read_lines(descriptor), after, now_s)
        finally:
            os.close(descriptor)
    except OSError as error:
        return KernelLog(error=f"{path}: {error.strerror}")


def _read_lines(descriptor: int) -> Iterator[bytes]:
    """Yields whole lines. Skips a record that was overwritten while reading (EPIPE)."""
    rest, total = b"", 0
    while total < MAX_BYTES:
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
    newest, lost_count = None, 0
    recent: list[Xid | SXid | CardFailure] = []
    equal: Counter[tuple[object, ...]] = Counter()
    for line in lines:
        record = _RECORD.match(line)
        if record is None:
            continue
        previous, newest = newest, int(record[1])
        if after is not None:
            lost_count += max(0, newest - max(after, previous or 0) - 1)
        if (after is not None and newest <= after) or not any(mark in line for mark in _MARKS):
            continue
        message = record[3].decode(errors="replace")
        found = parse_xid(message) or parse_sxid(message) or parse_failure(message)
        if found is None:
            continue
        kind = (type(found), found.code, found.pci_bus_id, "Fatal" in message)
        equal[kind] += 1
        if equal[kind] <= MAX_EQUAL:
            recent.append(replace(found, age_s=max(0.0, now_s - int(record[2]) / 1e6)))
    if newest is None:  # /dev/kmsg is read from its oldest record at each open
        return KernelLog(error=f"{path}: no line is in the format of /dev/kmsg")
    return KernelLog(
        xids=tuple(each for each in recent if isinstance(each, Xid)),
        sxids=tuple(each for each in recent if isinstance(each, SXid)),
        last_sequence=newest,
        lost_count=lost_count,
        failures=tuple(each for each in recent if isinstance(each, CardFailure)),
    )


def parse_xid(message: str) -> Xid | None:
    """Returns the XID that a line reports; None for any other line.

    Known forms are "(0000:03:00)", "(PCI:0000:03:00)" and "(PCI:0000:03:00 GPU-I:05)" before the number. After it comes
    the text, with or without `pid=1896, …` or `pid='<unknown>', name=<unknown>, …`.
    """
    found = _XID.match(message)
    if found is None:
        return None
    text = found[3].strip()
    process = _PROCESS.match(text)
    pid = int(process[1]) if process and process[1] else None
    name = (process[2] or "").strip() if process else ""
    return Xid(
        code=int(found[2]),
        pci_bus_id=f"{parse_pci_address(found[1])}.0",
        text=(text[process.end() :] if process else text)[:_MOST_TEXT],
        pid=pid,
        process=name[:32] if name and not name.startswith("<") else None,
    )


def parse_sxid(message: str) -> SXid | None:
    """Returns the SXID that a line reports, with its severity; None for any other line, including detail lines.

    The known form is "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", with or without
    link.
    """
    found = _SXID.match(message)
    if found is None:
        return None
    return SXid(
        code=int(found[2]),
        pci_bus_id=parse_pci_address(found[1] if "." in found[1] else f"{found[1]}.0"),
        is_fatal=found[3] == "Fatal",
        text=found[5].strip()[:_MOST_TEXT],
        link=int(found[4]) if found[4] else None,
    )


def parse_failure(message: str) -> CardFailure | None:
    """Returns the failure of a card that a line reports without an XID; None for any other line.

    Known forms are "NVRM: GPU 0000:81:00.0: RmInitAdapter failed! (0x25:0x40:1470)", of older drivers without the
    address, "NVRM: GPU at 0000:01:00.0 has fallen off the bus.", and one record of three lines, in which the kernel
    writes the line ends as "\\x0a": "NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this
    system has", "NVRM: fallen off the bus and is not responding to commands."
    """
    code = next((code for words, code in _FAILURES.items() if words in message), None)
    found = _FAILED.match(message)
    if code is None or found is None:
        return None
    text = " ".join(message.replace(r"\x0a", " ").replace("NVRM: ", "").split())
    return CardFailure(code, f"{parse_pci_address(found[1])}.0" if found[1] else None, text=text[:_MOST_TEXT])
