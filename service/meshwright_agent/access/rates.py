"""How often one caller may ask for what is expensive: a token bucket each (as many at once as in a minute).

Rule: memory is bounded whatever the number of callers; a forgotten caller begins with a full bucket.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_CALLERS: Final = 4096


class Rates:
    """Buckets by caller; the one that was used longest ago is forgotten first."""

    def __init__(self, per_minute: int, monotonic_s: Callable[[], float], *, most: int = MOST_CALLERS) -> None:
        self.per_minute = per_minute
        self._monotonic_s = monotonic_s
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, caller: str) -> float:
        """Takes one from the caller's bucket.

        Returns:
            0, or how many seconds until there is one to be had; none is taken then.
        """
        if self.per_minute == 0:
            return 0.0
        now_s = self._monotonic_s()
        per_s = self.per_minute / 60
        left, at_s = self._buckets.pop(caller, (float(self.per_minute), now_s))
        left = min(float(self.per_minute), left + (now_s - at_s) * per_s)
        is_allowed = left >= 1
        self._buckets[caller] = (left - 1 if is_allowed else left, now_s)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1 - left) / per_s
