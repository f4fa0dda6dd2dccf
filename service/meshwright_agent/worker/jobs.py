"""Jobs: what callers wait for. A job gets exactly one answer, the first; a caller who has left hears nothing.

Knows no process and no state; `supervisor` decides when which job is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import MeshwrightError

OnProgress = Callable[[dict[str, Any]], None]
"""Gets what a handler tells while it works; called on the event loop."""


class CallCancelled(MeshwrightError):  # noqa: N818 — not an error: somebody wanted it
    """The call was given up because somebody asked for it.

    Attributes:
        reason: "released", "cancelled", "closing", or the word of whoever asked.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Answer:
    """What a call returned, and which worker (counted from 1) said it."""

    result: dict[str, Any]
    generation: int


def _build_future() -> asyncio.Future[Answer]:
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may have left
    return future


@dataclass(eq=False)
class Job:
    """A call on its way, or, with `op` None, the wish for a ready child. Made on the event loop.

    Attributes:
        id: the number of the call on the wire, given when it is sent.
        sent_s: when that was, monotonic seconds.
        is_cancelled: it is no longer wanted.
    """

    op: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    deadline_s: float = 0.0
    on_progress: OnProgress | None = None
    id: int = 0
    sent_s: float = 0.0
    is_cancelled: bool = False
    future: asyncio.Future[Answer] = field(default_factory=_build_future)

    def succeed(self, answer: Answer) -> None:
        """Answers, unless answered."""
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, error: MeshwrightError) -> None:
        """Answers with an error, unless answered."""
        if not self.future.done():
            self.future.set_exception(error)
