"""Runs: all long operations. One state machine for benches, compiles and preflights."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from meshwright.wire.base import Reply
from meshwright.wire.problem import Problem

RunState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
RunKind = Literal["bench", "plan", "batch_size", "preflight"]

FINAL_STATES: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled"})


class Progress(Reply):
    """How far a run is."""

    done: int
    total: int
    message: str = ""


class Run(Reply):
    """`GET /runs/{id}`."""

    id: str
    kind: RunKind
    state: RunState
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    progress: Progress | None = None
    request: dict[str, Any] = Field(description="what was asked, defaults filled in")
    result: dict[str, Any] | None = Field(
        default=None,
        description="for a bench: BenchResult; a plan: Plans; a batch_size: BatchSize; a preflight: PreflightResult",
    )
    error: Problem | None = None


class RunList(Reply):
    """`GET /runs`: newest first."""

    runs: tuple[Run, ...]


class RunEvent(Reply):
    """One event of `GET /runs/{id}/events`: SSE's `id` is `seq`, its `event` is `type`, its `data` is this."""

    seq: int
    at: datetime
    type: Literal["state", "progress", "record"]
    run_id: str
    state: RunState
    progress: Progress | None = None
    record: dict[str, Any] | None = Field(default=None, description="one bench record, as soon as it is measured")
