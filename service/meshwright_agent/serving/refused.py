"""Connections that ended before a request of theirs reached the application: what no route and no gate can count.

Rule: each counts once, by why it ended, also where nobody could be told; the log has a few of them, so that no stranger
fills it. A body that is slow or broken is no such end: its route answers it. Knows nothing of Prometheus.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final, Literal, TypeAlias, get_args

from meshwright_agent.access.audit import LineLimit

log = logging.getLogger(__name__)

RefusalReason = Literal[
    "handshake",  # TLS was not agreed on: no TLS, a certificate that one side does not take, or too slow
    "headers_too_large",  # answered 431
    "no_room",  # closed as soon as it came: too many to be told so
    "not_http",  # answered 400
    "pipelined",  # too many requests behind one that has no answer yet
    "silent",  # nothing was sent in the time that headers have
    "slow_headers",  # answered 408
    "too_many_connections",  # answered 503
]
REASONS: Final[tuple[RefusalReason, ...]] = get_args(RefusalReason)
RefusedConnections: TypeAlias = "Counter[RefusalReason]"


class RefusalLines:
    """Lines of the log about such ends: at most 10 a minute for each reason, of all peers together."""

    def __init__(self) -> None:
        self._limit = LineLimit()
        self._untold: RefusedConnections = Counter()

    def tell(self, reason: RefusalReason, peer: str, why: str = "") -> None:
        """Writes a line, or leaves it out and lets the next one say how many were."""
        if not self._limit.allows(reason):
            self._untold[reason] += 1
            return
        untold = self._untold.pop(reason, 0)
        more = f"; {untold} more since the line before" if untold else ""
        log.info("no request of %s: %s%s%s", peer, reason, f" ({why})" if why else "", more)
