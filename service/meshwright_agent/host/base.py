"""The host as routes, plans, leases and benches use it, whether it is real (`HostWatch`) or simulated.

Methods that are not coroutines read memory only and do not call a child.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.errors import UnavailableError
from meshwright.planning.request import Inventory
from meshwright.topology.model import Topology
from meshwright.wire.devices import Devices, Release
from meshwright_agent.clock import Clock
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.snapshot import HostSnapshot
from meshwright_agent.leases import LeaseRegistry
from meshwright_agent.supervisor.supervisor import Supervisor


class AgentHost(ABC):
    """One host.

    Args:
        known: fields of the snapshot that never change.

    Attributes:
        readiness: the text of `/readyz` once the devices are known.
    """

    readiness = "ready"

    def __init__(
        self, device: Supervisor, *, leases: LeaseRegistry, health: HealthRegistry, clock: Clock, **known: Any
    ) -> None:
        self._device = device
        self._leases = leases
        self._health = health
        self._clock = clock
        self._snapshot = HostSnapshot(device.view(), **known)
        self._topology: tuple[object, Topology] | None = None

    @property
    def snapshot(self) -> HostSnapshot:
        """The current snapshot. Each state of the worker has a new one."""
        worker = self._device.view()
        if worker != self._snapshot.worker:
            self.update(worker=worker, log=self._device.log_tail)
        return self._snapshot

    def update(self, **changes: Any) -> None:
        """Replaces the snapshot by a copy with these fields changed."""
        self._snapshot = replace(self._snapshot, **changes)

    def devices(self) -> Devices:
        """Returns the content of `/devices`: the host's topology with its leases.

        Raises:
            UnavailableError: neither the probe nor the worker has answered yet.
        """
        snapshot = self.snapshot
        if snapshot.facts is None:
            snapshot.require_topology()
        return self._leases.mark(snapshot.devices(self._clock.now()))

    def topology(self) -> Topology:
        """Returns the planner's topology, built once for each snapshot and set of active leases.

        Raises:
            UnavailableError: the devices are not known.
        """
        self.snapshot.require_topology()
        key = (self.snapshot, self._leases.key())
        if self._topology is None or self._topology[0] != key:
            self._topology = (key, Topology.of(self.devices()))
        return self._topology[1]

    def here(self) -> Inventory:
        """Returns this host as plans see it. Raises as `topology`."""
        topology, now = self.topology(), self._clock.now()
        return Inventory(
            topology, health={i: self._health.state(d.component, now) for i, d in enumerate(topology.devices)}
        )

    def dump_here(self, here: Inventory) -> dict[str, Any]:
        """Returns this host as JSON values for `children.planner.parse_here`."""
        return {"devices": self.devices().model_dump_json(), "health": here.health, "notices": []}

    def recall(self) -> None:  # noqa: B027 -- most hosts have nothing to recall
        """Restores the devices and faults that the previous agent knew."""

    @abstractmethod
    async def run(self) -> None:
        """Observes the host until it is cancelled."""

    def require_hardware(self, asked: str) -> None:  # noqa: B027 -- most hosts have it
        """Raises InvalidRequestError unless this host has the hardware that the request needs."""

    @abstractmethod
    async def probe(self) -> bool:
        """Probes the host, in bounded time. Returns whether the probe answered."""

    async def require_probe(self) -> None:
        """Probes who uses the devices. CPU devices do not have holders.

        Raises:
            UnavailableError: the probe did not answer.
        """
        if self.devices().platform != "cpu" and not await self.probe():
            detail = "the driver did not answer, so the processes that use the devices are not known"
            hint = "only idle devices are opened: see GET /health for the driver; try again"
            raise UnavailableError(detail, hint=hint, retry_after_s=5.0)

    async def wait_for_probe(self) -> None:
        """Waits for the next answer of the probe; for ever where there is none."""
        await asyncio.Event().wait()

    async def list_jax_devices(self) -> None:  # noqa: B027
        """Reads JAX's devices from the device worker, which it starts if necessary. The snapshot records a failure."""

    def report_progress(self, value: Mapping[str, Any]) -> None:  # noqa: B027
        """Reports the devices that a bench has measured."""

    @abstractmethod
    async def release(self) -> Release:
        """Releases the devices in bounded time: ends the worker and its work, then reports the remaining holders."""

    @abstractmethod
    async def preempt(self, ids: Sequence[str], reason: str) -> tuple[str, ...]:
        """Ends these benches for a lease, and a worker on accelerators. Returns the ended benches.

        Raises:
            DeviceBusyError: the worker does not end.
        """

    @abstractmethod
    def acknowledge(self, component: str) -> None:
        """Clears the faults of a component after an operator's acknowledgement."""
