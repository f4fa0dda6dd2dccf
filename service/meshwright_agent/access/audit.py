"""The audit: one line for every operation that touches a device or changes state. Logger `meshwright.audit`.

Rule: who, what, on which devices, with which outcome, under which request id; never a token, a header or more of a
body. Values are quoted as in JSON where they hold anything but plain characters, so that a caller cannot write lines of
its own. What the agent opens unasked has its lines as well.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from meshwright.wire.devices import Worker

log = logging.getLogger("meshwright.audit")
log.setLevel(logging.INFO)  # of its own: MESHWRIGHT_LOG_LEVEL=warning does not silence it

LONGEST: Final = 512
REFUSALS_PER_MINUTE: Final = 10
MAX_KEYS: Final = 4096
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/@{}\[\]+-]+")


def record(**fields: str | int) -> None:
    """Writes one line of `key=value`; the fields also stand as `audit` in the log record, for logs in JSON."""
    text = " ".join(f"{name}={quote(value)}" for name, value in fields.items())
    log.info("%s", text, extra={"audit": fields})


def quote(value: str | int) -> str:
    """Returns a value as it stands in the line: bare, or as a JSON string."""
    text = str(value)
    if len(text) > LONGEST:
        text = text[:LONGEST] + "…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class LineLimit:
    """Allows ten lines a minute about each key (a peer, a reason), so that refused peers cannot fill the log."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._minute = 0
        self._lines: Counter[str] = Counter()

    def allows(self, key: str) -> bool:
        """Counts one line about the key; returns whether to write it."""
        minute = int(self._monotonic_s() // 60)
        if minute != self._minute:
            self._minute = minute
            self._lines.clear()
        if key not in self._lines and len(self._lines) >= MAX_KEYS:
            return False
        self._lines[key] += 1
        return self._lines[key] <= REFUSALS_PER_MINUTE


class Openings:
    """A line when the agent's own worker may have devices open, asked for or not, and one when it has gone."""

    def __init__(self) -> None:
        self._open: dict[str, str | int] = {}

    def note(self, worker: Worker) -> None:
        """Takes the worker's state after each change."""
        if worker.state in {"ready", "busy"} and not self._open:
            self._open = {"generation": worker.generation, "pid": worker.pid or 0}
            record(caller="agent", did="worker_started", **self._open)
        elif worker.state in {"stopped", "backoff", "failed"} and self._open:
            record(caller="agent", did="worker_ended", **self._open)
            self._open = {}
