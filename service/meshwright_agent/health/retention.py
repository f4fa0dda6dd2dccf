"""The date before which nothing need be kept: the wall clock's, less the days that are kept.

Rule: a clock that leapt ahead is believed when it has stayed there for a day, since what it deletes does not come back
when it is set right. A clock that was set back deletes nothing. Knows nothing of what is kept.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from meshwright_agent.clock import Clock

LEAP: Final = timedelta(minutes=10)
"""Slewed and stepped clocks, and machines that slept for a while, are within it; retention is counted in days."""
BELIEVED_AFTER_S: Final = 86400.0


class Retention:
    """Counts the days that something is kept.

    Args:
        clock: its wall clock dates what is kept; its steady one tells leaps.
        days: how long something is kept.
    """

    def __init__(self, clock: Clock, days: float) -> None:
        self._clock = clock
        self._keep_for = timedelta(days=days)
        self._believed, self._believed_at_s = clock.now(), clock.monotonic()

    def find_oldest(self) -> datetime:
        """Returns the date before which things may be deleted. Ask more often than once a day."""
        now, steady_s = self._clock.now(), self._clock.monotonic()
        passed_s = steady_s - self._believed_at_s
        reckoned = self._believed + timedelta(seconds=passed_s)
        if now - reckoned <= LEAP or passed_s >= BELIEVED_AFTER_S:
            self._believed, self._believed_at_s = now, steady_s
            reckoned = now
        return reckoned - self._keep_for
