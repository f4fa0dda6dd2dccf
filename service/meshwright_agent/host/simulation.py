"""Simulation: a target in place of this host, for developers of schedulers without such hardware.

Rule: all facts are declared. Replies show this in each fact's basis, in a warning on `/devices` and on every plan, and
on /health, /readyz and /metrics. Nothing is checked, so that nothing is healthy. Nothing is measured. Children do not
inspect devices. This module does not depend on HTTP.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import meshwright_agent
from meshwright.errors import InvalidRequestError
from meshwright.planning.request import Inventory
from meshwright.topology.targets import build_target
from meshwright.wire.base import Notice
from meshwright.wire.devices import Cpu, Devices, Host, Release, Software, Worker
from meshwright_agent.clock import Clock
from meshwright_agent.health.events import Finding
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.health.xid import DRIVER
from meshwright_agent.host.base import AgentHost
from meshwright_agent.leases import LeaseRegistry
from meshwright_agent.supervisor.supervisor import Supervisor

SIMULATED: Final = "simulated"
"""The code of the warning."""


class SimulatedHost(AgentHost):
    """Answers for a target. `device`, the worker shown in replies, is never started.

    Args:
        target: the simulated target, already validated by the settings.
        interval_s: interval of the reports on the component `driver`, so that it does not become stale. Its state is
            always unknown.
    """

    def __init__(
        self,
        target: str,
        device: Supervisor,
        *,
        leases: LeaseRegistry,
        health: HealthRegistry,
        interval_s: float,
        clock: Clock,
    ) -> None:
        declared = build_simulated(target, device.view(), clock.now())
        super().__init__(device, leases=leases, health=health, clock=clock, declared=declared)
        self._target = target
        self._interval_s = interval_s
        self._notices = declared.warnings
        self.readiness = f"ready: simulated {target}, no device is here"
        health.expect((DRIVER,))

    async def run(self) -> None:
        """Reports until cancelled that nothing was checked."""
        while True:
            await self.probe()
            await asyncio.sleep(self._interval_s)

    async def probe(self) -> bool:
        """Reports that nothing was checked."""
        reason = f"simulated: {self._target} is declared by --simulate; no device is here and none was checked"
        action = "leave out --simulate (MESHWRIGHT_SIMULATE) to have this host looked at"
        self._health.report(DRIVER, Finding("unknown", reason, action), at=self._clock.now())
        return True

    def require_hardware(self, asked: str) -> None:
        """Rejects requests that need hardware.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(
            f"{asked} was asked of a host that simulates {self._target}; it has no device, and only devices can do it",
            hint="ask an agent on real hardware; GET /readyz says which agents simulate",
        )

    def here(self) -> Inventory:
        """Returns the target. Every plan on it has a warning about the simulation. Its devices do not have states."""
        return Inventory(self.topology(), notices=self._notices)

    def dump_here(self, here: Inventory) -> dict[str, Any]:
        """Returns the target's name, which is shorter than its devices, and its leases."""
        leased = {i: d.lease.model_dump() for i, d in enumerate(here.topology.devices) if d.lease}
        notices = [notice.model_dump() for notice in here.notices]
        return {"target": self._target, "leased": leased, "health": {}, "notices": notices}

    async def release(self) -> Release:
        """Returns a release without holders, so that a scheduler under test continues."""
        return Release(released=True, worker_killed=False)

    async def preempt(self, ids: Sequence[str], reason: str) -> tuple[str, ...]:
        """Returns an empty tuple, because benches do not run."""
        return ()

    def acknowledge(self, component: str) -> None:
        """Clears the faults of a component."""
        self._health.clear_faults(component, self._clock.now())


def build_simulated(target: str, worker: Worker, at: datetime) -> Devices:
    """Returns the target as `/devices` shows it. Its facts do not age."""
    topology = build_target(target)
    declared: dict[str, Any] = {"basis": "declared", "observed_at": at, "age_s": 0.0}
    message = f"this agent simulates {target}: its devices are declared, none is here, and none was checked"
    hint = "for tests of schedulers; ask a real host's agent before a job"
    return Devices(
        host=Host(name=platform.node() or "localhost", **declared),
        cpu=Cpu(),
        numa_nodes=(),
        software=Software(agent=meshwright_agent.__version__, **declared),
        platform=topology.platform,
        worker=worker,
        granules=topology.granules,
        devices=topology.devices,
        links=topology.links,
        warnings=(Notice(code=SIMULATED, message=message, hint=hint),),
    )
