"""The host in one picture, as who places work sees it: its devices, who has reserved them, how they are.

Rule: equal keys, equal pictures (ages aside); so what is made of one, a topology or a reply, is good until the key
changes. Asks nobody: all of it is in memory. Knows no route and no child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from meshwright.topology.model import Topology
from meshwright.wire.devices import Devices
from meshwright_agent.children.planner import Here
from meshwright_agent.clock import Clock
from meshwright_agent.health.monitor import name_component
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.simulation import SimulatedHost
from meshwright_agent.host.watch import HostWatch
from meshwright_agent.leases import LeaseRegistry


class HostPicture:
    """What `/devices` shows and what plans are made on.

    Args:
        host: what looks at the devices, or stands for them.
        registry: the leases that hold.
        board: how devices are.
        measured: returns what benches found here, as the planner takes it, with its age at a time.
        clock: ages facts.
    """

    def __init__(
        self,
        host: HostWatch | SimulatedHost,
        *,
        registry: LeaseRegistry,
        board: HealthRegistry,
        measured: Callable[[datetime], object],
        clock: Clock,
    ) -> None:
        self._host = host
        self._registry = registry
        self._board = board
        self._measured = measured
        self._clock = clock
        self._version = 0
        self._topology: tuple[object, Topology] | None = None

    def note_change(self) -> None:
        """Takes note that the worker, or the agent itself, has come into another state."""
        self._version += 1

    def key(self) -> object:
        """Returns what tells one state of knowledge from the next: equal keys, equal facts (their ages aside)."""
        return (self._host.key, self._registry.key(), 0 if self._host.is_still else self._version)

    def devices(self) -> Devices:
        """Returns the host's topology with its facts.

        Raises:
            NotReadyError: neither the probe nor the worker has answered yet.
        """
        self._host.require_facts()
        return self._registry.mark(self._host.devices(self._clock.now()))

    def topology(self) -> Topology:
        """Returns what the planner sees.

        Raises:
            NotReadyError, WorkerFailedError: no device is known.
        """
        self._host.require_topology()
        key = self.key()
        if self._topology is None or self._topology[0] != key:
            self._topology = (key, Topology.of(self.devices()))
        return self._topology[1]

    def here(self) -> Here:
        """Returns this host as plans see it; errors as for `topology`."""
        topology, now = self.topology(), self._clock.now()
        if isinstance(self._host, SimulatedHost):
            return Here(topology, notices=self._host.notices)
        states = {place: self._board.state(name_component(d), now) for place, d in enumerate(topology.devices)}
        return Here(topology, states)

    def view(self) -> tuple[Topology, Mapping[int, str]]:
        """Returns the devices and their states; errors as for `topology`."""
        here = self.here()
        return here.topology, here.health

    def tell_here(self, here: Here) -> dict[str, Any]:
        """Returns the same for the planner (`children.planner.parse_here`), with what benches measured here."""
        simulated = self._host.target if isinstance(self._host, SimulatedHost) else None
        known = {"target": simulated} if simulated else {"devices": self.devices().model_dump_json()}
        leased = {i: d.lease.model_dump() for i, d in enumerate(here.topology.devices) if simulated and d.lease}
        notices = [notice.model_dump() for notice in here.notices]
        return {
            **known,
            "leased": leased,
            "health": here.health,
            "notices": notices,
            "measured": self._measured(self._clock.now()),
        }
