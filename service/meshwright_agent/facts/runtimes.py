"""What the jobs on a host's TPUs told of them, port by port, as plain values. Part of `facts.model.HostFacts`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

PortFault = Literal["unanswered", "late", "refused", "garbled", "empty"]
"""Nobody listens there · no answer in time · gRPC's error, such as a metric that it does not have · an answer that is
none · an answer without a device."""
Unasked = Literal["no_package", "elsewhere"]
"""grpcio is not installed · the job has a network namespace of its own, so that our localhost is not its."""


@dataclass(frozen=True)
class TpuRuntime:
    """What libtpu tells of one of its devices.

    Attributes:
        device_id: as libtpu counts, from 0.
        used_bytes, total_bytes: of its HBM.
        duty_ratio: of the last sample, how long its TensorCore was busy; that of its chip, which may have two devices.
        port: of the process that told.
    """

    device_id: int
    used_bytes: int | None = None
    total_bytes: int | None = None
    duty_ratio: float | None = None
    port: int | None = None


@dataclass(frozen=True)
class TpuPort:
    """What came of asking one port. `fault`: None: it told of devices; `text`: what gRPC or the reader says of it."""

    port: int
    fault: PortFault | None = None
    text: str = ""


@dataclass(frozen=True)
class TpuRuntimes:
    """What jobs told of their TPUs.

    Attributes:
        devices: by device, then by port.
        unavailable: why nothing was told; None: something was.
        unasked: why no port was asked; None: each was.
        ports: each that was asked, in the order in which they are named.
    """

    devices: tuple[TpuRuntime, ...] = ()
    unavailable: str | None = None
    unasked: Unasked | None = None
    ports: tuple[TpuPort, ...] = ()

    def select(self, counts: Collection[int]) -> tuple[TpuRuntime, ...]:
        """Returns as many devices as there may be: those of all ports, else of the first that has them; else none.

        Each process of a host tells of its own devices, or of all that the host has ("node aggregation" in
        tpu_metric_service.proto): then the answers of several ports are not to be added.
        """
        by_port = [tuple(one for one in self.devices if one.port == asked.port) for asked in self.ports]
        return next((told for told in (self.devices, *by_port) if told and len(told) in counts), ())
