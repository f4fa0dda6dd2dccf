"""The ears: whether NVML's XID events are listened to, when not and why, and what came of it.

Rule: an open NVML handle blocks a reset, so nothing is open from a release on, nor while a card waits for a reset; what
is not listened to is said, not passed over. A listener that hangs is ended and never waited for. Knows no component.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from meshwright.errors import ProblemError
from meshwright_agent.clock import Clock
from meshwright_agent.facts.health import Xid
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.health.memory import Fault
from meshwright_agent.settings import Settings
from meshwright_agent.worker.supervisor import CallCancelled, ReleaseOutcome, Supervisor

log = logging.getLogger(__name__)

WAIT_S: Final = 10.0
"""One call; then the next. A driver that hangs is noticed that much later than one that is asked."""
TICK_S: Final = 1.0
"""How often it is looked whether to go on listening."""
RETRY_S: Final = 60.0
"""After NVML said an error, or its driver hung."""
AFTER_RELEASE_S: Final = 600.0
"""How long a release leaves the cards closed: for a reset, or for MIG to be changed; our choice."""

_XIDS: Final = TypeAdapter(tuple[Xid, ...])

Tell = Callable[[tuple[Xid, ...]], None]
"""Hears of XIDs as they come."""


@dataclass(frozen=True)
class Hearing:
    """How it stands with NVML's events.

    Attributes:
        reason: why they are not listened to; empty while they are.
        is_starting: they will be in a moment, and nothing is known against it.
    """

    is_wanted: bool
    reason: str = ""
    is_starting: bool = False

    @property
    def is_listening(self) -> bool:
        """True while an XID would be heard at once."""
        return self.is_wanted and not self.reason


class XidEars:
    """Listens through a child of its own.

    Args:
        listener: that child's supervisor.
        settings: say whether, and how long a driver may take.
        clock: measures pauses.
        tell: hears of XIDs.
        list_faults: what stands against components now.
    """

    def __init__(
        self,
        listener: Supervisor,
        *,
        settings: Settings,
        clock: Clock,
        tell: Tell,
        list_faults: Callable[[], Iterable[Fault]],
    ) -> None:
        self.listener = listener
        self._settings = settings
        self._clock = clock
        self._tell = tell
        self._list_faults = list_faults
        self._facts: HostFacts | None = None
        self._released_s: float | None = None
        self._failed_s: float | None = None
        self._failure = ""
        self._open_generation: int | None = None

    # what is known

    def note_look(self, facts: HostFacts) -> None:
        """Takes what a look at the host found."""
        self._facts = facts

    @property
    def hearing(self) -> Hearing:
        """How it stands now."""
        if not self._is_wanted():
            return Hearing(is_wanted=False)
        reason = self._explain_pause()
        if reason or self._is_open():
            return Hearing(is_wanted=True, reason=reason)
        return Hearing(
            is_wanted=True, reason=self._failure or "the listener is starting", is_starting=not self._failure
        )

    def _is_open(self) -> bool:
        return self.listener.state in {"ready", "busy"} and self.listener.generation == self._open_generation

    def _is_wanted(self) -> bool:
        facts, choice = self._facts, self._settings.xid_events
        if choice == "never" or facts is None or not facts.gpus:
            return False
        return choice == "always" or facts.kernel_log is None or facts.kernel_log.error is not None

    def _explain_pause(self) -> str:
        """Returns why the cards are not to be open now; empty if nothing speaks against it."""
        if waiting := find_waiting(self._facts, self._list_faults()):
            return f"{waiting} waits for a reset, which an open NVML would block"
        if self.listener.abandoned_pids:
            return "a listener hangs in the driver, and no other is started"
        if self._left_s(self._released_s, AFTER_RELEASE_S) > 0:
            return f"the devices were released; again in {self._left_s(self._released_s, AFTER_RELEASE_S):.0f} s"
        if self._left_s(self._failed_s, RETRY_S) > 0:
            return self._failure
        return ""

    def _left_s(self, since_s: float | None, pause_s: float) -> float:
        return 0.0 if since_s is None else since_s + pause_s - self._clock.monotonic()

    # what is done

    async def run(self) -> None:
        """Listens for ever, as far as it may."""
        while True:
            if not await self.step():
                await asyncio.sleep(TICK_S)

    async def step(self) -> bool:
        """Listens once, or sees to it that nothing is open; returns whether it listened."""
        if not self._is_wanted() or self._explain_pause():
            await self._close("NVML's events are not wanted now")
            return False
        listening = asyncio.ensure_future(self._listen())
        try:
            while not (await asyncio.wait({listening}, timeout=TICK_S))[0]:
                if not self._is_wanted() or self._explain_pause():
                    await self._close("NVML's events are not wanted any more")
        except asyncio.CancelledError:
            listening.cancel()
            raise
        return listening.result()

    async def _listen(self) -> bool:
        limit_s = self._settings.probe_timeout_s
        try:
            if not self._is_open():
                if self.listener.state == "failed":
                    self.listener.reset()  # the pause is ours, and nothing that hangs piles up
                opened = await self.listener.call("listen", {}, deadline_s=limit_s)
                self._open_generation = opened.generation
                log.info("NVML's XID events are listened to, of %s", ", ".join(opened.result["cards"]))
            answer = await self.listener.call("wait", {"limit_s": WAIT_S}, deadline_s=WAIT_S + limit_s)
        except CallCancelled:
            return False
        except ProblemError as error:
            self._failed_s, self._failure = self._clock.monotonic(), str(error).splitlines()[0]
            log.warning("NVML's XID events are not listened to for %.0f s: %s", RETRY_S, self._failure)
            await self._close("NVML's events failed")
            return False
        self._failed_s, self._failure = None, ""
        self._hear(answer.result)
        return True

    def _hear(self, result: dict[str, Any]) -> None:
        xids = _XIDS.validate_python(result["xids"])
        if xids:
            self._tell(xids)

    async def _close(self, reason: str) -> None:
        self._open_generation = None
        if self.listener.state in {"starting", "ready", "busy"}:
            await self.listener.release(reason=reason)

    async def pause(self, *, within_s: float | None = None) -> ReleaseOutcome:
        """Lets the cards go for `AFTER_RELEASE_S`: an operator released the devices; answers as a supervisor does."""
        self._released_s, self._open_generation = self._clock.monotonic(), None
        return await self.listener.release(
            reason="the devices were released (POST /devices/release)", within_s=within_s
        )

    async def close(self) -> None:
        """Ends the listener for good."""
        with contextlib.suppress(CallCancelled):
            await self.listener.close()


def find_waiting(facts: HostFacts | None, faults: Iterable[Fault]) -> str:
    """Returns what waits for a reset: a card whose driver asks for one, or a device that an XID made unhealthy."""
    for gpu in facts.gpus if facts else ():
        if gpu.health and (gpu.health.error or gpu.health.recovery):
            return f"device:{gpu.key}"
    ill = (fault.component for fault in faults if fault.code.startswith("xid_") and fault.state == "unhealthy")
    return next(ill, "")
