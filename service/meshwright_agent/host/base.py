"""The host as routes, plans, leases and benches use it, whether it is real (`HostWatch`) or simulated.

Everything that is read is in memory: no method that is not a coroutine asks a child.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.planning.request import Inventory
from meshwright.topology.model import Topology
from meshwright.wire.devices import Devices, Release
from meshwright_agent.clock import Clock
from meshwright_agent.health.monitor import name_component
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.snapshot import HostSnapshot
from meshwright_agent.leases import LeaseRegistry
from meshwright_agent.supervisor.supervisor import Supervisor


class Host(ABC):
    """One host.

    Args:
        device: the device worker.
        leases: the leases that hold.
        health: the state of each component.
        clock: dates what is shown.
        known: fields of the snapshot that never change.

    Attributes:
        readiness: what `/readyz` says once the devices are known.
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
        """What is known now: another one for each state of the worker."""
        worker = self._device.view()
        if worker != self._snapshot.worker:
            self.update(worker=worker, log=self._device.log_tail)
        return self._snapshot

    def update(self, **changes: Any) -> None:
        """Replaces the snapshot by one with these fields."""
        self._snapshot = replace(self._snapshot, **changes)

    def devices(self) -> Devices:
        """Returns what `/devices` shows: the host's topology with its leases.

        Raises:
            NotReadyError, WorkerFailedError: neither the probe nor the worker has answered yet.
        """
        snapshot = self.snapshot
        snapshot.require_facts()
        return self._leases.mark(snapshot.devices(self._clock.now()))

    def topology(self) -> Topology:
        """Returns what the planner sees, made once for a snapshot and the leases that hold.

        Raises:
            NotReadyError, WorkerFailedError: no device is known.
        """
        self.snapshot.require_topology()
        key = (self.snapshot, self._leases.key())
        if self._topology is None or self._topology[0] != key:
            self._topology = (key, Topology.of(self.devices()))
        return self._topology[1]

    def here(self) -> Inventory:
        """Returns this host as plans see it; raises as `topology` does."""
        topology, now = self.topology(), self._clock.now()
        return Inventory(
            topology, health={i: self._health.state(name_component(d), now) for i, d in enumerate(topology.devices)}
        )

    def dump_here(self, here: Inventory) -> dict[str, Any]:
        """Returns the same as JSON values, as `children.planner.parse_here` takes them."""
        return {"devices": self.devices().model_dump_json(), "health": here.health, "notices": []}

    def recall(self) -> None:  # noqa: B027 -- most have nothing to recall
        """Takes what an earlier life of the agent knew of devices and their faults."""

    @abstractmethod
    async def run(self) -> None:
        """Observes the host until it is cancelled."""

    @abstractmethod
    def require_hardware(self, asked: str) -> None:
        """Raises InvalidRequestError where only hardware can do what was asked, and none is here."""

    @abstractmethod
    async def probe(self) -> bool:
        """Asks the probe for facts, in bounded time; returns whether it answered."""

    @abstractmethod
    async def wait_for_probe(self) -> None:
        """Waits until the probe has answered the next time."""

    @abstractmethod
    async def list_jax_devices(self) -> None:
        """Asks the device worker for JAX's devices, starting it if need be; a failure stands in the snapshot."""

    @abstractmethod
    def report_progress(self, value: Mapping[str, Any]) -> None:
        """Reports the devices that a bench has measured."""

    @abstractmethod
    async def release(self) -> Release:
        """Gives the devices back: ends the worker and what it does, then says who still holds one. Bounded."""

    @abstractmethod
    async def preempt(self, ids: Sequence[str], reason: str) -> tuple[str, ...]:
        """Ends these benches for a lease, and the worker where it has accelerators; returns those that were ended.

        Raises:
            DeviceBusyError: the worker does not end.
        """

    @abstractmethod
    def acknowledge(self, component: str) -> None:
        """Clears what stands against a component by an operator's word."""
