"""Health that a card tells when nothing is wrong with it, as fields of a fake NVML's entry, and a kernel log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WELL: dict[str, Any] = {
    "temperature": 41,
    "thresholds": {"slowdown": 87, "off": 92},
    "clocks": 0x1,  # idle
    "power": [700_000, 700_000],
    "ecc": [0, 0],
    "remapped": [0, 0, 0, 0],
    "pcie": [16, 16, 5, 5],
    "performance_state": 0,
    "recovery": 0,
    "link_errors": {"replay": 0, "recovery": 0, "crc": 0},
}
"""An H100's thresholds: `nvidia-smi -q -d TEMPERATURE` of such cards, from memory; the rest is invented."""


def write_record(path: Path, sequence: int, message: str, *, at_s: float = 1.0) -> None:
    """Appends a record as /dev/kmsg gives it."""
    with path.open("a") as log:
        log.write(f"4,{sequence},{int(at_s * 1e6)},-;{message}\n SUBSYSTEM=pci\n")


def xid(address: str, code: int, text: str = "pid='<unknown>', name=<unknown>, something happened") -> str:
    """Returns the line of an XID on the card at "0000:1b:00"."""
    return f"NVRM: Xid (PCI:{address}): {code}, {text}"
