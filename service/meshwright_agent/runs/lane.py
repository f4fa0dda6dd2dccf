"""Lanes of the queue of runs: which kinds of run wait for the same worker.

Rule: one run at a time in a lane, in the order of submission; lanes do not wait for each other. Knows neither the store
nor how a run is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from meshwright.wire.runs import RunKind
from meshwright_agent.runs.live_run import LiveRun

LaneName = Literal["device", "compiler"]

LANE_OF: Final[Mapping[RunKind, LaneName]] = {"bench": "device", "plan": "compiler", "batch_size": "compiler"}
"""A bench has the devices, a compile has none: they go beside each other."""

USUAL_RUN_S: Final = 20.0
"""What a run is taken to need as long as none has succeeded: the time limit of the quick suite."""


class Lane:
    """Runs that wait for one worker, and the one that it does.

    Attributes:
        waiting: those that wait, oldest first.
        current: the one that is done, None if none is.
        work_here: set when there may be something to do.
    """

    def __init__(self) -> None:
        self.waiting: deque[LiveRun] = deque()
        self.current: LiveRun | None = None
        self.work_here = asyncio.Event()
        self._last_took_s = USUAL_RUN_S

    def add(self, live: LiveRun) -> None:
        """Lets a run wait."""
        self.waiting.append(live)
        self.work_here.set()

    def remove(self, live: LiveRun) -> bool:
        """Takes a run out that waits; False: it does not wait."""
        if live not in self.waiting:
            return False
        self.waiting.remove(live)
        return True

    def note_took(self, seconds: float) -> None:
        """Takes how long a run took that succeeded, and that a worker did."""
        self._last_took_s = seconds

    def estimate_wait_s(self, now: datetime) -> float:
        """Returns the last run's time less the present one's so far, at least 1: a place may be free then."""
        started_at = self.current.run.started_at if self.current else None
        had_s = (now - started_at).total_seconds() if started_at else 0.0
        return max(1.0, self._last_took_s - had_s)
