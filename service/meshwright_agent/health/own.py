"""The agent's own health: its store, and the disk under it.

Each check reads from the store in its thread, within its time limit; after a failure it also writes, so that the
component recovers with the disk. A store that fails never ends the process.
"""

from __future__ import annotations

import asyncio
from typing import Final

from meshwright.errors import StoreUnavailableError
from meshwright_agent.clock import Clock
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store

STORE: Final = "store"
COMPONENTS: Final = (STORE,)
TICK_S: Final = 1.0
"""How soon after a failure the store is checked."""
MIN_FREE_BYTES: Final = 1 << 28
"""Free space of the state directory's disk below which the store is degraded."""


class OwnHealth:
    """Checks the store every `probe_interval_s`, and soon after a failure.

    Args:
        store: the store.
        board: gets the state.
        settings: how often to check.
        clock: dates the state.
    """

    def __init__(self, store: Store, *, board: HealthBoard, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._board = board
        self._settings = settings
        self._clock = clock
        self._failures = 0
        board.expect(COMPONENTS)

    async def run(self) -> None:
        """Checks for ever."""
        while True:
            await self.check()
            left_s = self._settings.probe_interval_s
            while left_s > 0 and self._store.failure_count == self._failures:
                await asyncio.sleep(min(TICK_S, left_s))
                left_s -= TICK_S

    async def check(self) -> None:
        """Checks once."""
        folder, failed = self._store.path.parent, self._store.failure
        self._failures = self._store.failure_count
        try:
            free_bytes = await self._store.check()
        except StoreUnavailableError as error:
            self._failures = self._store.failure_count
            self._board.report(STORE, "unhealthy", error.detail, at=self._clock.now(), action=error.hint)
            return
        faults, actions = [], []
        if free_bytes < MIN_FREE_BYTES:
            faults.append(
                f"{free_bytes / 2**20:.0f} MiB are free in {folder}; less than the {MIN_FREE_BYTES / 2**20:.0f} MiB "
                "that should be"
            )
            actions.append(f"make room on the disk of {folder}")
        if self._store.set_aside:
            faults.append(self._store.set_aside)
            actions.append("take leases that are lost anew; restart the agent to clear this")
        reason = f"reads and writes; {free_bytes / 2**20:.0f} MiB are free in {folder}"
        if failed:
            reason += f"; it has failed since the check before: {failed}"
        now = self._clock.now()
        if faults:
            self._board.report(STORE, "degraded", "; ".join(faults), at=now, action="; ".join(actions))
        else:
            self._board.report(STORE, "healthy", reason, at=now)
