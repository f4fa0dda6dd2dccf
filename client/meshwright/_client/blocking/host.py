"""The host: its devices, its health and their history, its environment and metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime

from meshwright._calls import calls, watching
from meshwright._calls.calls import Readiness
from meshwright._calls.options import EnvironmentStrategy
from meshwright._client.blocking.driving import Driver
from meshwright.errors import AgentConnectionError, ProblemError
from meshwright.wire.devices import Devices, Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Component, Health, HealthEvent, HealthEvents
from meshwright.wire.targets import Targets


class HostCalls(Driver):
    """What is here, whether it is healthy, and what a job on it should start with."""

    def alive(self) -> bool:
        """Returns whether an agent answers its liveness check; asks once, and raises nothing."""
        try:
            return self._ask(calls.alive())
        except (AgentConnectionError, ProblemError):
            return False

    def ready(self) -> Readiness:
        """Returns whether the agent can answer plans, with its one line on why; asks once."""
        return self._ask(calls.ready())

    def health(self) -> Health:
        """Returns the state of each component of the host."""
        return self._ask(calls.health())

    def events(
        self,
        component: str | None = None,
        *,
        after: int | None = None,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> HealthEvents:
        """Returns what happened to the host's health, oldest first.

        Args:
            component: of this one only, such as "device:3".
            after: only what came after the event with this `seq`.
            limit: at most so many; None: the agent's limit.
            since: not what is older; without a zone: UTC.

        Raises:
            InvalidRequestError: a number that is out of range.
        """
        return self._ask(calls.events(component, after, limit, since))

    def follow_events(self, after: int | None = None) -> Iterator[HealthEvent]:
        """Yields what happens to the host's health, as it happens, from the event after `after`; None: from now on.

        Never ends by itself. Connects again when the stream breaks; no event comes twice or is left out.

        Raises:
            AgentConnectionError: the agent is gone for longer than the retries last; go on after the last `seq` later.
        """
        events: deque[HealthEvent] = deque()
        yield from self._iterate(watching.follow_health(self._link, emit=events.append, after=after), events)

    def acknowledge(self, component: str, reason: str) -> Component:
        """Tells the agent that the faults of a component are dealt with; returns how it stands then.

        Args:
            component: its name, as in `health()`.
            reason: what was done about it, for the history.

        Raises:
            NotFoundError: no component has this name.
            ForbiddenError: the token has not the scope `admin`.
        """
        return self._ask(calls.acknowledge(component, reason))

    def devices(self) -> Devices:
        """Returns the host's topology: devices, links, granules, and the facts around them."""
        return self._ask(calls.devices())

    def devices_text(self) -> str:
        """Returns the same as a table and a link matrix for people."""
        return self._ask(calls.devices_text())

    def release(self) -> Release:
        """Makes the agent's worker let go of the devices; returns who still holds one."""
        return self._ask(calls.release())

    def environment(
        self, memory_strategy: EnvironmentStrategy | None = "balanced", memory_fraction: float | None = None
    ) -> Environment:
        """Returns the variables that a job on this host should start with; `memory_fraction` wins."""
        return self._ask(calls.environment(memory_strategy, memory_fraction))

    def targets(self, chip: str | None = None) -> Targets:
        """Returns the chips, hosts and slices that a plan's target may name; of one chip, where it is named.

        Raises:
            UnknownHardwareError: no table knows the chip; near ones stand in the hint.
        """
        return self._ask(calls.targets(chip))

    def metrics(self) -> str:
        """Returns the agent's metrics in Prometheus' text format."""
        return self._ask(calls.metrics())
