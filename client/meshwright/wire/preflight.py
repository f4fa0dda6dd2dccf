"""Preflight: one host's part in the check of many hosts, and what the hosts found together."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

from pydantic import Field, StrictInt, StrictStr, model_validator

from meshwright.errors import InvalidRequestError
from meshwright.wire.base import COUNTED_FIRST, MOST_ENTRIES, Indices, Line, Reply, RequestPart
from meshwright.wire.leases import LeaseId

DEFAULT_PORT: Final = 8476
"""Of the coordinator; the port that JAX uses for it on TPUs and in Slurm's examples of JAX."""
DEFAULT_TIMEOUT_S: Final = 90.0

_BEFORE_MEASURING: Final = ("start", "connect", "meet", "reach", "open", "opened")
PREFLIGHT_PHASES: Final = (*_BEFORE_MEASURING, "devices", "pairs", "again", "confirm", "all")
"""In their order: the process starts · it connects to the first host · the processes meet · hosts reach their partners
by TCP · a host opens its devices · and waits until all have · each host measures its own · pairs of hosts exchange ·
suspects measure their own again · and exchange again · collectives over all."""
OWN_PHASES: Final = frozenset({"start", "open", "devices", "again"})
"""In these a process waits for its own host only."""


def order_phase(phase: str) -> int:
    """Returns the place of a phase in their order; 0 of an unknown one, which a newer agent has."""
    return PREFLIGHT_PHASES.index(phase) if phase in PREFLIGHT_PHASES else 0


Figure = Literal["matmul", "memory_bandwidth", "all_reduce", "network"]


class PreflightRequest(RequestPart):
    """`POST /preflight`: start this host's process of the JAX job that checks many hosts."""

    lease: LeaseId = Field(description="the caller's lease of all devices of this host")
    hosts: Annotated[tuple[Line, ...], Field(min_length=1, max_length=MOST_ENTRIES), COUNTED_FIRST] = Field(
        description="names of all hosts, in the order of their processes"
    )
    process_id: Annotated[StrictInt, Field(ge=0)] = Field(description="this host's place in `hosts`, from 0")
    coordinator: Annotated[Line, Field(pattern=r":\d{1,5}$", max_length=300)] = Field(
        description="where the process of the first host listens, as the others reach it", examples=["10.0.0.1:8476"]
    )
    timeout_s: Annotated[float, Field(strict=True, ge=5, le=3600)] = Field(
        default=DEFAULT_TIMEOUT_S, description="time limit of the whole check"
    )
    axes: dict[Annotated[StrictStr, Field(max_length=64)], Annotated[StrictInt, Field(ge=1)]] | None = Field(
        default=None, description="mesh of a plan over all devices, whose collectives are measured too"
    )
    order: Indices | None = Field(
        default=None, description="of the mesh's devices, row-major: host × devices of a host + local place"
    )

    @model_validator(mode="after")
    def _check_place(self) -> PreflightRequest:
        if self.process_id >= len(self.hosts):
            detail = f"process_id is {self.process_id}, and {len(self.hosts)} hosts are named"
            raise InvalidRequestError.of("process_id", detail, f"use 0 to {len(self.hosts) - 1}")
        size, order = math.prod((self.axes or {}).values()), self.order or (0,)
        if (self.axes is None) != (self.order is None) or len(order) != size or sorted(order) != list(range(size)):
            given = self.order or ()
            detail = f"order has {len(given)} devices, {len(set(given))} different ones, and axes are {self.axes}"
            raise InvalidRequestError.of("order", detail, "name each device once, as many as the axes have")
        name, _, port = self.coordinator.rpartition(":")
        if name.strip("[]") in {"", "0.0.0.0", "::"} or not 0 < int(port) < 65536:
            detail = f"coordinator is {self.coordinator!r}; it is one address of the first host and a port up to 65535"
            raise InvalidRequestError.of("coordinator", detail, "use 10.0.0.1:8476")
        return self


class PreflightDevice(Reply):
    """What one device of the host did."""

    local_index: int
    matmul_flops_per_s: float
    memory_bandwidth_bytes_per_s: float


class SlowFigure(Reply):
    """A figure below its peers', measured twice."""

    host: int = Field(description="its place in `hosts`")
    figure: Figure
    device: int | None = Field(default=None, description="local index; null: the figure is the host's")
    value: float = Field(description="FLOP/s of a matmul, else bytes/s")
    peers: float = Field(description="median of its peers")


class WrongContent(Reply):
    """A result that was not what it must be, and the device that produced it."""

    host: int | None = Field(description="its place in `hosts`; null: not known")
    device: int | None = Field(default=None, description="local index; null: one of the host's")
    figure: Figure
    wrong_elements: int


CollectiveCase = Literal["all_reduce", "all_gather", "all_to_all", "permute"]


class CollectiveRate(Reply):
    """One collective over the devices of all hosts; over an axis, of the groups that this host is in."""

    case: CollectiveCase
    axis: str | None = Field(default=None, description="of the plan; null: all devices")
    busbw_bytes_per_s: float = Field(description="bus bandwidth as in nccl-tests")


class PreflightResult(Reply):
    """The result of a run of kind preflight. `slow` and `wrong` are of all hosts, and equal on each of them."""

    devices: tuple[PreflightDevice, ...] = ()
    all_reduce_bytes_per_s: float | None = Field(default=None, description="bus bandwidth over the host's devices")
    network_bytes_per_s: tuple[float | None, ...] = Field(
        default=(), description="with its partner of each round, sent and received at once; null: it rested"
    )
    slow: tuple[SlowFigure, ...] = ()
    wrong: tuple[WrongContent, ...] = ()
    unreachable: tuple[int, ...] = Field(
        default=(), description="hosts that this one could not connect to; then nothing was measured"
    )
    collectives: tuple[CollectiveRate, ...] = Field(default=(), description="over all devices of all hosts")
