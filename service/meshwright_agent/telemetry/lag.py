"""Event loop lag: how late the loop gets to what is due. What every answer waits for, besides its own work.

Rule: one timer, always running; it measures and judges nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

from meshwright_agent.telemetry.durations import Durations

PERIOD_S: Final = 0.5


async def watch_lag(lags: Durations, *, period_s: float = PERIOD_S) -> None:
    """Notes for ever, each `period_s`, by how many seconds a timer came late.

    Up to 1 ms of it is the resolution of epoll_wait(2), to which asyncio rounds up.
    """
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + period_s
        await asyncio.sleep(period_s)
        lags.observe((), loop.time() - due_s)
