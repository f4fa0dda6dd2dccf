"""Health: what the agent knows of each part, and how long ago it looked. Never healthy before a check ran."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from meshwright.wire.base import SCHEMA_VERSION, Reply

State = Literal["initializing", "healthy", "degraded", "unhealthy", "unknown"]
"""`initializing`: not checked yet. `unknown`: the last check is too old, or its source does not answer."""


class Component(Reply):
    """The health of one part: `agent.store`, `worker`, `driver`, `device:0`, …"""

    name: str
    state: State
    reason: str = Field(default="", description="one line: what was seen")
    action: str = Field(default="", description="what an operator should do; empty where nothing is to be done")
    observed_at: datetime | None = Field(default=None, description="when it was last checked; null: never")
    age_s: float | None = None


class Health(Reply):
    """`GET /health`."""

    schema_version: str = SCHEMA_VERSION
    state: State = Field(description="the worst state of all components")
    components: tuple[Component, ...]
