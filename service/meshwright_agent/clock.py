"""Time as an argument: a wall clock for what people read, a steady one for deadlines. Tests bring their own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """What the agent asks the time of."""

    def now(self) -> datetime:
        """Returns the wall clock's time, UTC."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never go back."""
        ...


@dataclass(frozen=True)
class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Returns the wall clock's time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Returns CLOCK_MONOTONIC in seconds."""
        return time.monotonic()


class BootClock(Protocol):
    """Time since the machine started: goes on while the machine sleeps, and is not moved with the wall clock."""

    @property
    def boot_id(self) -> str:
        """What tells this start of the machine from every other; empty where the kernel does not say."""
        ...

    def since_boot_s(self) -> float:
        """Returns seconds since the machine started."""
        ...


@dataclass(frozen=True)
class SystemBootClock:
    """CLOCK_BOOTTIME, which counts alike in all processes of a start: clock_gettime(2)."""

    boot_id: str

    def since_boot_s(self) -> float:
        """Returns CLOCK_BOOTTIME in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_boot_clock(proc: Path) -> SystemBootClock:
    """Returns the clock of this start of the machine, whose id stands below `proc`: random(4)."""
    try:
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return SystemBootClock(boot_id)
