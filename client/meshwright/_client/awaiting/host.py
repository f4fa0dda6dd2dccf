"""The host: its devices, its health and their history, its environment and metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from datetime import datetime

from meshwright._calls import calls, watching
from meshwright._calls.calls import Readiness
from meshwright._calls.options import EnvironmentStrategy
from meshwright._client.awaiting.driving import AsyncDriver
from meshwright.errors import AgentConnectionError, ProblemError
from meshwright.wire.devices import Devices, Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Component, Health, HealthEvent, HealthEvents
from meshwright.wire.targets import Targets


class AsyncHostCalls(AsyncDriver):
    """The host's devices, its health, and the environment of its jobs."""

    async def alive(self) -> bool:
        """Returns whether an agent answers its liveness check; requests once, and raises nothing."""
        try:
            return await self._ask(calls.alive())
        except (AgentConnectionError, ProblemError):
            return False

    async def ready(self) -> Readiness:
        """Returns whether the agent can answer plans, with one line on why; requests once."""
        return await self._ask(calls.ready())

    async def health(self) -> Health:
        """Returns the state of each component of the host."""
        return await self._ask(calls.health())

    async def events(
        self,
        component: str | None = None,
        *,
        after: int | None = None,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> HealthEvents:
        """Returns the events of the host's health, oldest first.

        Args:
            component: only events of this component, such as "device:3".
            after: only events after the event with this `seq`.
            limit: the maximum number of events; None: the agent's limit.
            since: only events from this time on; without a zone: UTC.

        Raises:
            InvalidRequestError: a number is out of range.
        """
        return await self._ask(calls.events(component, after, limit, since))

    async def follow_events(self, after: int | None = None) -> AsyncIterator[HealthEvent]:
        """Yields events of the host's health as they happen, from the event after `after`; None: from now on.

        Never ends by itself. Connects again when the stream breaks. No event is repeated or lost.

        Raises:
            AgentConnectionError: the agent is unreachable for longer than the retries last. Continue later after the
                last `seq`.
        """
        events: deque[HealthEvent] = deque()
        async for event in self._iterate(watching.follow_health(self._link, emit=events.append, after=after), events):
            yield event

    async def acknowledge(self, component: str, reason: str) -> Component:
        """Reports to the agent that the faults of a component are resolved; returns the new state of the component.

        Args:
            component: its name, as in `health()`.
            reason: the action taken, for the history.

        Raises:
            NotFoundError: there is no component with this name.
            ForbiddenError: the token does not have the scope `admin`.
        """
        return await self._ask(calls.acknowledge(component, reason))

    async def devices(self) -> Devices:
        """Returns the host's topology: devices, links, granules, and the facts around them."""
        return await self._ask(calls.devices())

    async def devices_text(self) -> str:
        """Returns the same as a table and a link matrix for people."""
        return await self._ask(calls.devices_text())

    async def release(self) -> Release:
        """Makes the agent's worker release the devices; returns the processes that still use one."""
        return await self._ask(calls.release())

    async def environment(
        self, memory_strategy: EnvironmentStrategy | None = "balanced", memory_fraction: float | None = None
    ) -> Environment:
        """Returns the variables that a job on this host should start with; `memory_fraction` wins."""
        return await self._ask(calls.environment(memory_strategy, memory_fraction))

    async def targets(self, chip: str | None = None) -> Targets:
        """Returns the chips, hosts and slices that a plan's target may name; those of one chip, where it is given.

        Raises:
            UnknownHardwareError: the chip is in no table. The hint names similar chips.
        """
        return await self._ask(calls.targets(chip))

    async def metrics(self) -> str:
        """Returns the agent's metrics in Prometheus' text format."""
        return await self._ask(calls.metrics())
