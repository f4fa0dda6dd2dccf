"""Health: the state of each component, the age of its check, and its past events.

A component is never healthy before its first check.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, StrictStr

from meshwright.wire.base import Line, Reply, RequestPart

State = Literal["initializing", "healthy", "degraded", "unhealthy", "unknown"]
"""`initializing`: not checked yet. `unknown`: the last check is too old, or its source does not answer."""

WORST_FIRST: Final[tuple[State, ...]] = ("unhealthy", "unknown", "degraded", "initializing", "healthy")

HOST_WORST_FIRST: Final[tuple[State, ...]] = ("unhealthy", "unknown", "initializing", "degraded", "healthy")
"""Of many components: one that was not checked yet may be worse than one that works with a finding."""

HARDWARE: Final = frozenset({"device", "driver", "inventory", "link", "memory", "nic", "thermal"})
"""The kinds of components (the text before the colon) that may take a node out of service: hardware, and its driver.

A fault of any other component, such as the agent's store, disk or worker, says nothing about the hardware.
"""

Permanence = Literal["transient", "permanent"]
"""`transient`: expected to pass by itself. `permanent`: stays until a reboot, a repair, or an acknowledgement."""

EventKind = Literal["state", "fault", "acknowledged"]
"""`state`: a component changed its state. `fault`: the driver or kernel reported one. `acknowledged`: an operator
cleared faults."""


class Component(Reply):
    """The health of one part: `store`, `worker`, `driver`, `device:0`, …"""

    name: str
    state: State
    reason: str = Field(default="", description="one line: what was seen")
    action: str = Field(default="", description="what an operator should do; empty where nothing is to be done")
    observed_at: datetime | None = Field(default=None, description="when it was last checked; null: never")
    age_s: float | None = None
    since: datetime | None = Field(default=None, description="when it came into this state; null: not known")
    permanence: Permanence | None = Field(default=None, description="of what is wrong; null: nothing is, or not known")


class Health(Reply):
    """`GET /health`."""

    state: State = Field(description="the worst state of all components but those that are left alone on purpose")
    components: tuple[Component, ...]


def find_worst_state(components: Sequence[Component]) -> State:
    """Returns the worst state (`HOST_WORST_FIRST`); not better than `initializing` before a device was looked at.

    A component that is left alone on purpose (it was checked and says `initializing`, with the reason) does not count.
    """
    states = {part.state for part in components if part.state != "initializing" or part.observed_at is None}
    if not any(part.name.startswith("device:") and part.state != "initializing" for part in components):
        states.add("initializing")
    return next(state for state in HOST_WORST_FIRST if state in states)


def select_hardware(health: Health) -> Health:
    """Returns the health of the devices and their driver alone: the components of `HARDWARE`."""
    components = tuple(part for part in health.components if part.name.partition(":")[0] in HARDWARE)
    return Health(state=find_worst_state(components), components=components)


class HealthEvent(Reply):
    """Something that happened to a component. Of `GET /events/stream`, SSE's `id` is `seq`, its `event` is `kind`."""

    seq: int = Field(description="counts up through the agent's life and its restarts")
    at: datetime
    component: str
    kind: EventKind
    state: State = Field(description="the component's state after it")
    before: State | None = Field(default=None, description="the state before, where it changed")
    code: str | None = Field(default=None, description='what was reported, where it has a name: "xid_79"')
    reason: str = ""
    action: str = ""


class HealthEvents(Reply):
    """`GET /events`: oldest first."""

    events: tuple[HealthEvent, ...]
    last_seq: int = Field(description="of the newest event there is; after a full page continue from its last event")


class Acknowledgement(RequestPart):
    """`POST /health/acknowledge`: acknowledges the faults of a component."""

    component: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    reason: Annotated[Line, Field(min_length=1, max_length=500)] = Field(
        description="what was done about it; kept in the history"
    )
