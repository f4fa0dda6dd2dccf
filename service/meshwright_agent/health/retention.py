"""The date before which nothing need be kept: the wall clock's, less the days that are kept.

Rule: a clock that leapt ahead is believed when it has stayed there for a day, since what it deletes does not come back
when it is set right; one that leapt while no agent ran, after an hour. A clock that was set back deletes nothing.
Knows nothing of what is kept.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from meshwright_agent.clock import Clock

LEAP: Final = timedelta(minutes=10)
"""Slewed and stepped clocks, and machines that slept for a while, are within it; retention is counted in days."""
BELIEVED_AFTER_S: Final = 86400.0
TAKEN_UP_AFTER_S: Final = 3600.0
"""An agent that was down for long is as likely as a clock that leapt, and what sets a clock after a boot is at it by
then; an agent that is restarted every night must delete as well."""


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
        self._believed_after_s = BELIEVED_AFTER_S

    def take_up(self, noted_s: float) -> None:
        """Takes when something was noted last by an agent before this one; from there on the clock may have leapt."""
        self._believed = min(self._believed, datetime.fromtimestamp(noted_s, UTC))
        self._believed_after_s = TAKEN_UP_AFTER_S

    def find_oldest(self) -> datetime:
        """Returns the date before which things may be deleted. Ask more often than once a day."""
        now, steady_s = self._clock.now(), self._clock.monotonic()
        passed_s = steady_s - self._believed_at_s
        reckoned = self._believed + timedelta(seconds=passed_s)
        if now - reckoned <= LEAP or passed_s >= self._believed_after_s:
            self._believed, self._believed_at_s = now, steady_s
            self._believed_after_s = BELIEVED_AFTER_S
            reckoned = now
        return reckoned - self._keep_for
