"""Which XIDs are news where two sources tell of the same: the kernel log and NVML's events.

Rule: an XID of one source takes the place of one of the other, of the same card and number, that came within a few
seconds of it; each takes one, so that none is lost where several come together. Pure; its past is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from meshwright_agent.facts.health import Xid, XidSource

SAME_WITHIN_S: Final = 5.0
"""The log's time is of the record, the event's that of its arrival in the agent: our choice."""
MOST_KEPT: Final = 1024


@dataclass(frozen=True)
class _Seen:
    source: XidSource
    pci_bus_id: str
    code: int
    when: datetime


class XidLedger:
    """Keeps what each source told lately."""

    def __init__(self) -> None:
        self._unmatched: deque[_Seen] = deque(maxlen=MOST_KEPT)

    def take(self, source: XidSource, xids: Iterable[Xid], at: datetime) -> tuple[Xid, ...]:
        """Returns those XIDs that the other source has not told of.

        Args:
            source: who tells now.
            xids: what it tells.
            at: when; each was `age_s` before that.
        """
        return tuple(xid for xid in xids if not self._match(source, xid, at - timedelta(seconds=xid.age_s)))

    def _match(self, source: XidSource, xid: Xid, when: datetime) -> bool:
        for seen in self._unmatched:
            same = seen.source != source and (seen.pci_bus_id, seen.code) == (xid.pci_bus_id, xid.code)
            if same and abs((seen.when - when).total_seconds()) <= SAME_WITHIN_S:
                self._unmatched.remove(seen)
                return True
        self._unmatched.append(_Seen(source, xid.pci_bus_id, xid.code, when))
        return False
