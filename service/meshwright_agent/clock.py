"""Time as an argument: a wall clock for display and a steady clock for deadlines. Tests pass their own clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """The source of time for the agent."""

    def now(self) -> datetime:
        """Returns the wall clock's time, UTC."""

    def monotonic(self) -> float:
        """Returns seconds that never go back."""


@dataclass(frozen=True)
class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Returns the wall clock's time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Returns CLOCK_MONOTONIC in seconds."""
        return time.monotonic()


@dataclass(frozen=True)
class BootClock:
    """CLOCK_BOOTTIME, which is equal in all processes of a boot and counts during sleep: clock_gettime(2).

    Attributes:
        boot_id: the id of this boot; empty if the kernel does not report it.
    """

    boot_id: str

    def since_boot_s(self) -> float:
        """Returns CLOCK_BOOTTIME in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_boot_clock(root: Path) -> BootClock:
    """Returns the clock of this boot, with the boot id from /proc: random(4)."""
    try:
        boot_id = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return BootClock(boot_id)
