"""Turns: whose request is next at a child that does one at a time. Round robin between callers, in order within one.

Rule: a caller waits for one request of each other caller at most, whatever these have sent, and may have a bounded
number waiting. Knows no request and no child; a caller is the name that access gave it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from meshwright.errors import QueueFullError

WAITING_MAX: Final = 32
"""Requests that may wait, each with its body in memory."""
EACH_MAX: Final = 8
"""Of one caller: some of a client's threads, and never all that may wait."""
RETRY_AFTER_S: Final = 1.0


class Turns:
    """Who is served, and who waits."""

    def __init__(self, *, most: int = WAITING_MAX, most_each: int = EACH_MAX) -> None:
        self._most = most
        self._most_each = most_each
        self._served: str | None = None
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._order: deque[str] = deque()

    @contextlib.asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Waits for a turn and has it for as long as the block lasts.

        Raises:
            QueueFullError: too many of this caller's requests wait, or of all.
        """
        if self._served is None:
            self._served = caller
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, caller: str) -> None:
        self._require_room(caller)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        if caller not in self._order and caller != self._served:
            self._order.append(caller)  # whoever is being served comes after those who wait, when that is done
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            else:
                self._leave(caller, turn)
            raise

    def _require_room(self, caller: str) -> None:
        own, count = len(self._waiting.get(caller, ())), sum(map(len, self._waiting.values()))
        if own >= self._most_each or count >= self._most:
            raise QueueFullError(
                f"{own} requests of {caller} wait for the planner, and {count} of all callers; this agent lets "
                f"{self._most_each} of one caller wait, and {self._most} of all",
                hint="try again after Retry-After",
                retry_after_s=RETRY_AFTER_S,
            )

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        if turn not in self._waiting.get(caller, ()):
            return  # it was passed over: the turn came between the cancel and this
        self._waiting[caller].remove(turn)
        if not self._waiting[caller]:
            del self._waiting[caller]
            if caller in self._order:
                self._order.remove(caller)

    def _pass_on(self) -> None:
        """Gives the turn to the caller who has waited longest since their last, or to nobody."""
        if self._served in self._waiting:
            self._order.append(self._served)
        self._served = None
        while self._order and self._served is None:
            caller = self._order.popleft()
            turn = self._next(caller)
            if turn is not None:
                self._served = caller
                turn.set_result(None)

    def _next(self, caller: str) -> asyncio.Future[None] | None:
        """Takes out a caller's first request that has not been given up."""
        turns = self._waiting[caller]
        while turns and turns[0].done():
            turns.popleft()
        found = turns.popleft() if turns else None
        if not turns:
            del self._waiting[caller]
        return found
