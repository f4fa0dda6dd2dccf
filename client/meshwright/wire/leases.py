"""Leases: reserved devices of a host, their purpose, and their end.

A lease keeps the agent and other lease holders away from devices; it does not stop a process that does not use the
agent.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from meshwright.wire.base import COUNTED_FIRST, MOST_ENTRIES, DeviceRef, DeviceSelection, Line, Reply, RequestPart

MAX_TTL_S = 30 * 86400.0
"""A longer job renews its lease; a lease without renewal must end."""

LEASE_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Of the id that a client makes for a lease."""
LEASE_ID_RULE = "1 to 64 letters, digits, dots, hyphens and underscores, a letter or digit first"

LeaseId = Annotated[StrictStr, Field(pattern=LEASE_ID_PATTERN)]


class LeaseRequest(RequestPart):
    """`PUT /leases/{lease_id}`: reserve devices of this host, or renew the lease."""

    devices: (
        Literal["all"]
        | Annotated[
            tuple[Annotated[StrictInt, Field(ge=0)] | Annotated[StrictStr, Field(min_length=1, max_length=128)], ...],
            Field(min_length=1, max_length=MOST_ENTRIES),
            COUNTED_FIRST,
        ]
        | DeviceSelection
    ) = Field(
        default="all",
        description="local indices or uuids; all: every device of this host; a count: so many, whichever are free",
        examples=["all", [0, 1], {"count": 4}],
    )
    purpose: Annotated[Line, Field(min_length=1, max_length=200)] = Field(
        description='what for, as others shall read it: "slurm job 4711"'
    )
    ttl_s: float = Field(
        default=3600.0, strict=True, gt=0, le=MAX_TTL_S, description="seconds from now until the lease ends by itself"
    )
    preemptible: StrictBool = Field(
        default=False, description="true: a lease that is not preemptible takes the devices over"
    )


class Lease(Reply):
    """A reservation."""

    id: str
    devices: tuple[DeviceRef, ...] = Field(default=(), description="left out where GET /devices marks its devices")
    purpose: str
    preemptible: bool
    owner: str = Field(default="", description="name of the token that asked; empty where no token was needed")
    expires_in_s: float = Field(ge=0, description="seconds left when this was written, whatever the clock does")
    preempted_leases: tuple[str, ...] = Field(default=(), description="leases that it preempted")
    cancelled_runs: tuple[str, ...] = Field(default=(), description="runs that it preempted")


class Leases(Reply):
    """`GET /leases`: oldest first."""

    leases: tuple[Lease, ...]


VerdictState = Literal["ok", "fault", "unchecked"]
"""Of a host in a preflight: it is well · it is at fault · it could not be checked, by no fault of its own."""


class VerdictRequest(RequestPart):
    """`PUT /leases/{lease_id}/verdict`: what the preflight under this lease found on this host."""

    state: VerdictState
    reason: Annotated[Line, Field(max_length=4000)] = Field(
        description="what was found on this host, and what to do; of a host that is well, the result of all hosts"
    )


class Verdict(Reply):
    """`GET /leases/{lease_id}/verdict`."""

    state: VerdictState
    reason: str
