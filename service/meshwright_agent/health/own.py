"""The agent's own health: its store, and the disk under it.

Rule: whatever may block is done in the store's thread, within its time limit. Every third look writes into the store,
sooner where a proof would grow stale, and at once where anything has failed since; each look reads. Knows nothing of
devices.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from meshwright.errors import MeshwrightError
from meshwright_agent.clock import Clock
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.settings import Settings
from meshwright_agent.store.database import Store
from meshwright_agent.store.leases import TABLE as LEASES
from meshwright_agent.store.unreadable import tell_unreadable

STORE: Final = "store"
DISK: Final = "disk"
COMPONENTS: Final = (STORE, DISK)
PROOF_LOOKS: Final = 3
"""Looks for which one write into the store is proof: a write at each, every 30 s, is 38 MB a day on a flash disk."""
MIN_FREE_BYTES: Final = 1 << 28
"""Free space of the state directory's disk below which it is degraded."""


class OwnHealth:
    """Looks at itself every `probe_interval_s`.

    Args:
        store: returns the store, once it is open.
        board: gets what is seen.
        settings: where the state directory is, how often to look.
        clock: dates what is seen.
        on_writable: what waits for a store that writes; its failure is the store's.
    """

    def __init__(
        self,
        *,
        store: Callable[[], Store],
        board: HealthBoard,
        settings: Settings,
        clock: Clock,
        on_writable: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._board = board
        self._settings = settings
        self._clock = clock
        self._on_writable = on_writable
        self._proof_looks = max(1, min(PROOF_LOOKS, math.ceil(settings.stale_after_s / settings.probe_interval_s) - 1))
        self._looks_left = 0
        self._failures = 0
        board.expect(COMPONENTS)

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._settings.probe_interval_s)

    async def look(self) -> None:
        """Looks once."""
        failure = await self._look_at_store()
        await self._look_at_disk(failure)

    async def _look_at_store(self) -> str:
        """Returns why nothing could be written; "" if it could."""
        now = self._clock.now()
        try:
            store = self._store()
            await self._check(store)
            await self._on_writable()
        except (MeshwrightError, OSError) as error:
            self._looks_left = 0
            now = self._clock.now()  # a disk that does not answer takes its time to fail
            action = f"look at {self._settings.state_dir}"
            self._board.report(STORE, "unhealthy", str(error), at=now, action=action)
            return str(error)
        self._report_store(store, now)
        return ""

    async def _check(self, store: Store) -> None:
        """Looks whether the store reads, and now and then whether it writes."""
        failures = store.failure_count
        writes = self._looks_left == 0 or failures != self._failures
        await store.check(writes=writes)
        self._looks_left = (self._proof_looks if writes else self._looks_left) - 1
        self._failures = failures

    def _report_store(self, store: Store, now: datetime) -> None:
        faults, actions = [], []
        if store.set_aside is not None:
            faults.append(f"the file of before was damaged and set aside as {store.set_aside}")
            actions.append("look at that file; restart the agent to clear this")
        if rows := store.unreadable:
            faults.append(f"rows that cannot be read are passed over: {tell_unreadable(rows)}")
            actions.append(
                "look in the log at what is wrong with each; they stay in the file, and go when they are replaced or "
                f"pruned; to begin anew, stop the agent and move {store.path} away"
            )
        if LEASES in store.unreadable:
            actions.insert(0, "take those leases anew: their devices are not reserved any more")
        if not faults:
            self._board.report(STORE, "healthy", "writes and reads", at=now)
            return
        reason = f"writes and reads, but {'; '.join(faults)}"
        self._board.report(STORE, "degraded", reason, at=now, action="; ".join(actions))

    async def _look_at_disk(self, failure: str) -> None:
        folder = self._settings.state_dir
        try:
            free = await self._store().measure_free_bytes()
        except (MeshwrightError, OSError) as error:
            now = self._clock.now()
            self._board.report(DISK, "unhealthy", str(error), at=now, action=f"look at the disk of {folder}")
            return
        now, free_text = self._clock.now(), f"{free / 2**20:.0f} MiB are free in {folder}"
        action = f"make room on the disk of {folder}"
        if "full" in failure or free == 0:
            self._board.report(
                DISK, "unhealthy", f"{free_text}; {failure or 'nothing can be written'}", at=now, action=action
            )
        elif free < MIN_FREE_BYTES:
            reason = f"{free_text}; less than the {MIN_FREE_BYTES / 2**20:.0f} MiB that should be"
            self._board.report(DISK, "degraded", reason, at=now, action=action)
        else:
            self._board.report(DISK, "healthy", free_text, at=now)
