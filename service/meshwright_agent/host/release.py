"""Release: the devices are given back within a bound, and whoever still holds one is named.

Rule: the answer comes in time also when the driver hangs; then it says that nobody could look. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from meshwright.errors import DeviceBusyError, ProblemError
from meshwright.wire.devices import Holder, Release, Unseen
from meshwright_agent.clock import Clock
from meshwright_agent.runs import RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor

BOUND_S: Final = 2.0
ANSWER_S: Final = 0.3
"""Of the bound, kept for the answer, which a busy host may write late."""
PROBE_S: Final = 0.45
"""Of the bound, kept for asking who still holds a device: a worker that is not gone by then is probed as it ends."""
ANOTHER_PROBE_S: Final = 0.5
"""Of the bound, at least left for asking again who holds a device: a probe starts in some 0.3 s."""
REASON: Final = "the devices were released (POST /devices/release)"

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
"""Starts work that the agent ends when it closes."""
_Held = tuple[tuple[Holder, ...] | None, Unseen | None]
"""Who holds a device; None, and why nobody is named."""


async def release_devices(
    *,
    device: Supervisor,
    probe: Supervisor,
    runs: RunQueue,
    settings: Settings,
    clock: Clock,
    spawn: Spawn,
) -> Release:
    """Returns what became of a release: the worker and its runs are ended, then the probe says who holds a device."""
    started_s = clock.monotonic()
    within_s = BOUND_S - ANSWER_S - PROBE_S
    was_running = device.pid is not None
    outcome, cancelled = await asyncio.gather(
        device.release(reason=REASON, within_s=within_s), runs.cancel_all(REASON, lane="device")
    )

    def left_s() -> float:
        return started_s + BOUND_S - ANSWER_S - clock.monotonic()

    seen, unseen = await _ask_in_time(probe, settings, spawn, left_s())
    while was_running and unseen == "hidden" and left_s() >= ANOTHER_PROBE_S:
        again = await _ask_in_time(probe, settings, spawn, left_s())  # a driver takes a moment to clear a context
        if again[1] == "late":
            break
        seen, unseen = again
    ending = outcome.abandoned_pids
    holding = [pid for pid in ending if pid in device.holding_pids]  # one may have gone while we looked
    held = _name_own(seen, ending, holding, device.spec.module)
    return Release(
        released=not holding,
        took_s=clock.monotonic() - started_s,
        killed=outcome.killed,
        cancelled_runs=cancelled,
        held=held,
        unseen=unseen if held is None else None,
        worker=device.view(),
    )


async def preempt_benches(
    *, device: Supervisor, runs: RunQueue, ids: Collection[str], reason: str, has_devices: bool
) -> tuple[str, ...]:
    """Returns which of these benches were ended, once they have ended and the worker is off the devices. Bounded.

    Args:
        device: the worker.
        runs: the queue.
        ids: the benches that are in the way.
        reason: what they are told.
        has_devices: the worker holds accelerators also between two benches; on CPUs only a bench is in the way. A bench
            that is not among these opens none of the devices in question (JAX does not see them), and goes on.

    Raises:
        DeviceBusyError: the worker does not end, whatever is done to it.
    """
    under_way = [run.id for run in runs.list_live("device") if run.state == "running"]
    is_busy = any(run_id in ids for run_id in under_way)
    if not is_busy and (under_way or not has_devices):
        return await runs.cancel_all(reason, lane="device", only=ids)
    outcome, gone = await asyncio.gather(
        device.release(reason=reason), runs.cancel_all(reason, lane="device", only=ids)
    )
    if has_devices and outcome.abandoned_pids:
        pids = ", ".join(map(str, outcome.abandoned_pids))
        detail = f"the agent's own worker, process {pids}, does not let go of the devices, not even killed"
        raise DeviceBusyError(detail, hint="the driver hangs: look at the kernel log, and drain this host")
    return gone


def _name_own(
    held: tuple[Holder, ...] | None, ending: Collection[int], holding: Collection[int], module: str
) -> tuple[Holder, ...] | None:
    """Returns the holders, with the agent's own processes that do not end, whatever the probe saw of them."""
    seen = tuple(holder for holder in held or () if holder.pid not in ending or holder.pid in holding)
    unseen = set(holding) - {holder.pid for holder in seen}
    own = tuple(Holder(pid=pid, command=f"python -m {module}", own=True) for pid in sorted(unseen))
    return None if held is None and not own else (*seen, *own)


async def _ask_in_time(probe: Supervisor, settings: Settings, spawn: Spawn, bound_s: float) -> _Held:
    """Returns who holds a device, as the probe says; None, and why, if it cannot say so, or not in time."""
    limit_s = max(0.1, bound_s)
    asking: asyncio.Task[_Held] = spawn(_ask_probe(probe, settings, limit_s))
    done, _ = await asyncio.wait({asking}, timeout=limit_s)
    if not done:
        asking.cancel()  # not awaited: ending a probe that hangs takes longer than is left
        return None, "late"
    return asking.result()


async def _ask_probe(probe: Supervisor, settings: Settings, limit_s: float) -> _Held:
    try:
        answer = await probe.call("holders", {"root": str(settings.host_root)}, deadline_s=limit_s)
    except (ProblemError, CallCancelled):
        return None, "late"
    holders = answer.result["holders"]
    return (None, "hidden") if holders is None else (tuple(map(Holder.model_validate, holders)), None)
