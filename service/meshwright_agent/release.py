"""Release: the devices are given back within a bound, and whoever still holds one is named.

Rule: the answer comes in time also when the driver hangs; then it says that nobody could look. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from meshwright.errors import ProblemError
from meshwright.wire.devices import Holder, Release
from meshwright_agent.children import read_roots
from meshwright_agent.clock import Clock
from meshwright_agent.runs import RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.worker.supervisor import CallCancelled, Supervisor

BOUND_S: Final = 2.0
ANSWER_S: Final = 0.1
"""Of the bound, kept for writing the answer."""
REASON: Final = "the devices were released (POST /devices/release)"

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
"""Starts work that the agent ends when it closes."""


async def release_devices(
    *, device: Supervisor, probe: Supervisor, runs: RunQueue, settings: Settings, clock: Clock, spawn: Spawn
) -> Release:
    """Returns what became of a release: the worker and its runs are ended, then the probe says who holds a device."""
    started_s = clock.monotonic()
    outcome, cancelled = await asyncio.gather(device.release(reason=REASON), runs.cancel_all(REASON, lane="device"))
    held = await _look_for_holders(probe, settings, spawn, started_s + BOUND_S - ANSWER_S - clock.monotonic())
    return Release(
        released=not outcome.abandoned_pids,
        took_s=clock.monotonic() - started_s,
        killed=outcome.killed,
        cancelled_runs=cancelled,
        held=held,
        worker=device.view(),
    )


async def _look_for_holders(
    probe: Supervisor, settings: Settings, spawn: Spawn, bound_s: float
) -> tuple[Holder, ...] | None:
    """Returns who holds a device; None if the probe cannot say so in time, as with a driver that hangs."""
    limit_s = max(0.1, bound_s)
    asking: asyncio.Task[tuple[Holder, ...] | None] = spawn(_ask_for_holders(probe, settings, limit_s))
    done, _ = await asyncio.wait({asking}, timeout=limit_s)
    if not done:
        asking.cancel()  # not awaited: ending a probe that hangs takes longer than is left
        return None
    return asking.result()


async def _ask_for_holders(probe: Supervisor, settings: Settings, limit_s: float) -> tuple[Holder, ...] | None:
    try:
        answer = await probe.call("holders", read_roots(settings), deadline_s=limit_s)
    except (ProblemError, CallCancelled):
        return None
    holders = answer.result["holders"]
    return None if holders is None else tuple(Holder.model_validate(holder) for holder in holders)
