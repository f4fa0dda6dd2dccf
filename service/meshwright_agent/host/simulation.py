"""Simulation: a target in the place of this host, for those who build schedulers and have no such hardware.

Rule: all of it is declared, and says so wherever it is shown: in each fact's basis, in a warning on `/devices` and on
every plan, on /health, /readyz and /metrics. Nothing is checked, so nothing is healthy; nothing is measured. No
child looks at a device. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import meshwright_agent
from meshwright.errors import InvalidRequestError
from meshwright.topology.targets import build_target
from meshwright.wire.base import Notice
from meshwright.wire.devices import Cpu, Devices, Host, Software, Worker
from meshwright_agent.clock import Clock
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.health.xid import DRIVER

SIMULATED: Final = "simulated"
"""The code of the warning."""


class SimulatedHost:
    """Answers for a target. The device worker that `view` shows is never started.

    Args:
        target: what to stand for; the settings have checked that it is one.
        board: gets the component `driver`, which is never more than unknown.
        interval_s: how often it is said again, so that it does not grow stale.
        clock: dates it.
        view: the device worker, as replies show it.
    """

    is_still: Final = True
    knows_topology: Final = True
    failure: Final = ""
    waits_for: Final = ""

    def __init__(
        self, target: str, *, board: HealthRegistry, interval_s: float, clock: Clock, view: Callable[[], Worker]
    ) -> None:
        self.target = target
        self.readiness = f"ready: simulated {target}, no device is here"
        self.notices = (build_notice(target),)
        self._board = board
        self._interval_s = interval_s
        self._clock = clock
        self._view = view
        board.expect((DRIVER,))

    @property
    def key(self) -> object:
        """The target: nothing else can change."""
        return self.target

    async def run(self) -> None:
        """Says on the board for ever that nothing was checked."""
        while True:
            self.report()
            await asyncio.sleep(self._interval_s)

    def report(self) -> None:
        """Says it once."""
        reason = f"simulated: {self.target} is declared by --simulate; no device is here and none was checked"
        action = "leave out --simulate (MESHWRIGHT_SIMULATE) to have this host looked at"
        self._board.report(DRIVER, "unknown", reason, at=self._clock.now(), action=action)

    def require_facts(self) -> None:
        """Passes: what is declared is known."""

    def require_topology(self) -> None:
        """Passes: what is declared is known."""

    def require_hardware(self, asked: str) -> None:
        """Refuses what only hardware can do.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(
            f"{asked} was asked of a host that simulates {self.target}; it has no device, and only devices can do it",
            hint="ask an agent on real hardware; GET /readyz says which agents simulate",
        )

    def devices(self, now: datetime) -> Devices:
        """Returns the target as `/devices` shows it; always the same one, as nothing of it ages."""
        return self._devices

    @cached_property
    def _devices(self) -> Devices:
        topology = build_target(self.target)
        said: dict[str, Any] = {"basis": "declared", "observed_at": self._clock.now(), "age_s": 0.0}
        return Devices(
            host=Host(name=platform.node() or "localhost", **said),
            cpu=Cpu(**said),
            numa_nodes=(),
            software=Software(agent=meshwright_agent.__version__, python=platform.python_version(), **said),
            platform=topology.platform,
            worker=self._view(),
            granules=topology.granules,
            devices=topology.devices,
            links=topology.links,
            warnings=self.notices,
        )


def build_notice(target: str) -> Notice:
    """Returns the warning that stands on `/devices` and on every plan on what is simulated."""
    message = f"this agent simulates {target}: its devices are declared, none is here, and none was checked"
    return Notice(code=SIMULATED, message=message, hint="for tests of schedulers; ask a real host's agent before a job")
