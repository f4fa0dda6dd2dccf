"""One run that has not ended: its newest state, its work, and the events that the store does not have yet.

Rule: nothing here waits or writes. Knows neither the store nor the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from meshwright.wire.bench import BenchRecord
from meshwright.wire.runs import Progress, Run, RunEvent
from meshwright_agent.clock import Clock
from meshwright_agent.telemetry.tracing import TRACING

Work = asyncio.Task[tuple[dict[str, Any], int | None]]
"""The execution of a run: its result as JSON, and the generation of the worker that did it."""

Emit = Callable[[dict[str, Any]], None]
"""Takes {"done", "total", "message"} or {"record": {…}}, on the event loop; never raises, never waits."""

Execute = Callable[[Run, Emit], Coroutine[Any, Any, tuple[dict[str, Any], int | None]]]
"""Does a run: returns its result as JSON and the generation of the worker that did it, None where none was needed."""


def build_run_id(previous: str, now: datetime, entropy: str) -> str:
    """Returns "run-" and hex: 12 digits of milliseconds since 1970, always above `previous`, then `entropy`.

    Ids of one queue sort as they were made, also when the wall clock is set back.
    """
    milliseconds = int(now.timestamp() * 1000)
    if previous:
        milliseconds = max(milliseconds, int(previous[4:16], 16) + 1)
    return f"run-{milliseconds:012x}{entropy}"


class LiveRun:
    """A run between its submission and its end.

    Attributes:
        run: its newest state, told to whoever asks.
        execute: how it is done.
        share: what it has in common with submissions that may be given it instead of a run of their own; None: nothing.
        context: of its submission: what is logged and traced of its work names the request that asked for it.
        work: its execution, None while it waits.
        stop_reason: why it was asked to stop, None if it was not.
        fault: the first update that was neither progress nor a record: a bug, which fails the run.
        news: set when there is something to write, or the work has ended.
        ended: set when the final state is written and told.
    """

    def __init__(self, run: Run, execute: Execute, clock: Clock, *, share: str | None = None) -> None:
        self.run = run
        self.execute = execute
        self.share = share
        self.context = copy_context()
        self.work: Work | None = None
        self.stop_reason: str | None = None
        self.fault: ValidationError | None = None
        self.news = asyncio.Event()
        self.ended = asyncio.Event()
        self._clock = clock
        self._seq = 0
        self._pending: list[RunEvent] = []
        self.note_state(run)

    def begin(self, work: Work) -> None:
        """Takes the run's work."""
        self.work = work
        work.add_done_callback(lambda _: self.news.set())

    async def do(self) -> tuple[dict[str, Any], int | None]:
        """Returns what `execute` does, as a span of its own; to be run in `context`."""
        with TRACING.span(f"run {self.run.kind}", meshwright__run_id=self.run.id):
            return await self.execute(self.run, self.emit)

    def stop(self, reason: str) -> None:
        """Asks the work to end; the first reason counts."""
        self.stop_reason = self.stop_reason or reason
        if self.work is not None:
            self.work.cancel()

    def emit(self, update: dict[str, Any]) -> None:
        """Notes {"done", "total", "message"} or {"record": {…}}; never raises, never waits."""
        try:
            self._note_update(update)
        except ValidationError as error:
            self.fault = self.fault or error
        self.news.set()

    def note_state(self, run: Run) -> None:
        """Adds the event of a new state."""
        self._append("state", state=run.state)

    def take_events(self) -> list[RunEvent]:
        """Returns the events that the store does not have yet, and forgets them."""
        events, self._pending = self._pending, []
        return events

    def put_back(self, events: list[RunEvent]) -> None:
        """Takes back events that could not be stored."""
        self._pending = events + self._pending

    def _note_update(self, update: dict[str, Any]) -> None:
        if isinstance(update, dict) and "record" in update:
            record = BenchRecord.model_validate(update["record"]).model_dump(mode="json")
            self._append("record", record=record)
        else:
            self._note_progress(Progress.model_validate(update))

    def _note_progress(self, progress: Progress) -> None:
        """Only the newest progress matters: with a fast worker and a slow disk, memory does not grow."""
        self.run = self.run.model_copy(update={"progress": progress})
        if self._pending and self._pending[-1].type == "progress":
            self._seq = self._pending.pop().seq - 1
        self._append("progress", progress=progress)

    def _append(self, kind: str, **fields: Any) -> None:
        self._seq += 1
        known = {"seq": self._seq, "at": self._clock.now(), "type": kind}
        event = known | {"run_id": self.run.id, "state": self.run.state} | fields
        self._pending.append(RunEvent.model_validate(event))
