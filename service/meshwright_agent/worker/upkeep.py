"""Workers that stay for months: one that holds more memory than a resting worker should is ended.

Rule: only between two calls, and as if it had been idle: no call is lost, no crash is counted, and the next call or
look starts another. So a leak of JAX, a driver or ours costs a start now and then, never the host. Knows no operation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from meshwright.compiling.limits import read_memory_bytes
from meshwright_agent.worker.supervisor import Supervisor

_PROC: Final = Path("/proc")
"""Ours, not the setting's, which may be another namespace's: these are our own children."""

log = logging.getLogger(__name__)


async def tend_workers(workers: Sequence[Supervisor], *, most_bytes: int, interval_s: float) -> None:
    """Looks at the workers every `interval_s`, for ever, and ends those that rest with more than `most_bytes`."""
    while True:
        await asyncio.sleep(interval_s)
        for worker in workers:
            await retire_large(worker, most_bytes)


async def retire_large(worker: Supervisor, most_bytes: int, *, proc: Path = _PROC) -> bool:
    """Ends a worker that rests and holds more than `most_bytes` of its own; returns whether it did."""
    if worker.state != "ready" or worker.pid is None:
        return False
    try:
        held_bytes = read_memory_bytes(proc / str(worker.pid) / "statm")
    except (OSError, ValueError):  # it has gone since: then there is nothing to end
        return False
    if held_bytes <= most_bytes:
        return False
    log.warning(
        "%s[%d] rests and holds %d bytes; a resting worker may hold %d, so it is ended",
        worker.spec.name,
        worker.pid,
        held_bytes,
        most_bytes,
    )
    await worker.release(reason="it held too much memory at rest")
    return True
