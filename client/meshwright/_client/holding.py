"""A lease that is held for a block: what its holder sees, and the task or the thread that keeps it meanwhile.

Rule: a lease is held until the agent reports its end, or until it expires without a successful renewal. A restart of
the agent, or a short connection loss, does not end a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Final

from meshwright import wire
from meshwright._client.replies import build_deadline, count_left
from meshwright.errors import MeshwrightError, NotFoundError

DEFAULT_TTL_S: Final = 3600.0
HOLD_TTL_S: Final = 600.0
"""The lease of a crashed holder ends within this time."""
RENEWALS: Final = 3
"""A lease is renewed so often within its time."""
RENEW_TIMEOUT_S: Final = 10.0
"""How long one renewal may take."""
CHECK_S: Final = 2.0
"""Between two questions whether the lease still holds, and how long one of them may take; also between two tries."""
JOIN_S: Final = RENEW_TIMEOUT_S + 1.0
"""How long the end of a block waits for a renewal in progress."""


class Held:
    """A lease that is being held; `Client.hold` gives it, and keeps it renewed.

    Attributes:
        lease: the lease as of its last renewal.
    """

    def __init__(self, lease: wire.leases.Lease, on_lost: Callable[[MeshwrightError], object] | None = None) -> None:
        self.lease = lease
        self.end_s: float | None = build_deadline(lease.expires_in_s)
        """When the granted time is over, on the monotonic clock."""
        self.failure: MeshwrightError | None = None
        """The error of the last renewal."""
        self._lock = threading.Lock()
        self._lost: MeshwrightError | None = None
        self._on_lost = on_lost
        self._is_told = False
        self._is_over = False

    @property
    def lost(self) -> MeshwrightError | None:
        """Why the lease is lost: NotFoundError where it ended, otherwise the error of the last renewal."""
        self._is_told = self.is_lost or self._is_told
        return self._lost

    def check(self) -> None:
        """Does nothing while the lease is held.

        Raises:
            NotFoundError: it was taken over, ended, or not renewed in time.
            MeshwrightError: no renewal came through before its end; says why.
        """
        if self.lost is not None:
            raise self.lost

    def lose(self, why: MeshwrightError, *, at_end: bool = False) -> bool:
        """Records that the lease is lost and calls `on_lost`; returns whether that is news.

        A loss after the block counts only where it was found when the lease was given back: `at_end`.
        """
        with self._lock:
            if self._lost is not None or (self._is_over and not at_end):
                return False
            self._lost = why
        if self._on_lost is not None:
            self._is_told = True
            self._on_lost(why)
        return True

    @property
    def is_lost(self) -> bool:
        """True once the lease is lost, also where its time is over and nothing renewed it: the process was stopped."""
        if not count_left(self.end_s):
            text = "it was not renewed in time: the process was stopped, or its event loop was blocked"
            self.lose(self.failure or NotFoundError(text, hint="take a new lease, with a longer ttl_s"))
        return self._lost is not None

    def finish(self) -> None:
        """Records that the block has ended, so that a later loss does not count."""
        self._is_over = not self.is_lost

    @property
    def unsaid(self) -> str:
        """The unreported reason of a lost lease; "" if there is none."""
        if self._lost is None or self._is_told:
            return ""
        lost = f"the lease {self.lease.id} ({self.lease.purpose}) was lost before its block ended"
        return f"{lost}, so others may have used the devices meanwhile: {self._lost}"


class _EndedError(Exception):
    """The block has ended: stop renewing."""


@contextlib.asynccontextmanager
async def keep_in_task(
    held: Held, keep: Callable[[Callable[[float], Awaitable[None]]], Awaitable[None]]
) -> AsyncGenerator[None, None]:
    """Runs `keep(pause)` in a task until the block ends; its error is reported as one of a callback of the loop."""

    async def run() -> None:
        try:
            await keep(asyncio.sleep)
        except Exception as error:
            said = {"message": f"on_lost of the lease {held.lease.id} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(said)

    task = asyncio.create_task(run(), name=f"meshwright-{held.lease.id}")
    try:
        yield
    finally:
        task.cancel()
        held.finish()
        await asyncio.wait([task])


@contextlib.contextmanager
def keep_in_thread(held: Held, keep: Callable[[Callable[[float], None]], None]) -> Generator[None, None, None]:
    """Runs `keep(pause)` in a thread until the block ends."""
    ended = threading.Event()

    def pause(delay_s: float) -> None:
        if ended.wait(delay_s):
            raise _EndedError

    def run() -> None:
        with contextlib.suppress(_EndedError):
            keep(pause)

    thread = threading.Thread(target=run, name=f"meshwright-{held.lease.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        held.finish()
        thread.join(JOIN_S)
