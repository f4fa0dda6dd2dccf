"""Time as an argument: a wall clock for what people read, a steady one for deadlines. Tests bring their own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
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
