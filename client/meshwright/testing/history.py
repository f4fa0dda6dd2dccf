"""The health of a fake agent and its events: set by a test, reported like those of a real agent. Independent of
HTTP."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from meshwright.errors import NotFoundError
from meshwright.wire.devices import Devices
from meshwright.wire.health import Component, EventKind, Health, HealthEvent, HealthEvents, State, find_worst_state

Clock = Callable[[], datetime]

LIMIT: Final = 100


def build_health(devices: Devices, at: datetime) -> Health:
    """Returns a healthy host with these devices."""
    names = ["store", "worker", *(f"device:{device.local_index}" for device in devices.devices)]
    seen = {"state": "healthy", "observed_at": at, "age_s": 0.0}
    return Health(state="healthy", components=tuple(Component.model_validate({"name": n, **seen}) for n in names))


def change_health(health: Health, component: Component) -> Health:
    """Returns the health with this component in place of the one of its name, or beside the others."""
    others = {each.name: each for each in health.components} | {component.name: component}
    return Health(state=find_worst_state(tuple(others.values())), components=tuple(others.values()))


class History:
    """The events of one fake agent, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: list[HealthEvent] = []

    def note(self, kind: EventKind, component: Component, before: State | None = None, **said: Any) -> HealthEvent:
        """Adds an event that sets the given state of a component; returns it."""
        fields = {"reason": component.reason, "action": component.action, "permanence": component.permanence, **said}
        seq = len(self._events) + 1
        event = HealthEvent(
            seq=seq,
            at=self._clock(),
            component=component.name,
            kind=kind,
            state=component.state,
            before=before,
            **fields,
        )
        self._events.append(event)
        return event

    def list(
        self,
        component: str | None = None,
        after: int | None = None,
        limit: int = LIMIT,
        since: datetime | None = None,
    ) -> HealthEvents:
        """Returns the requested events: with `after` the first ones that follow it, otherwise the newest."""
        found = [
            event
            for event in self.follow(after or 0)
            if component in (None, event.component) and (since is None or event.at >= since)
        ]
        chosen = found[-limit:] if after is None else found[:limit]
        return HealthEvents(events=tuple(chosen), last_seq=len(self._events))

    def follow(self, after: int | None) -> tuple[HealthEvent, ...]:
        """Returns the events that a stream begins with: those after `after`; without a number it begins with news."""
        return () if after is None else tuple(event for event in self._events if event.seq > after)


def find_component(health: Health, name: str) -> Component:
    """Returns the component of this name.

    Raises:
        NotFoundError: there is no such component.
    """
    found = next((each for each in health.components if each.name == name), None)
    if found is None:
        there = ", ".join(each.name for each in health.components)
        raise NotFoundError(f"no component is called {name!r}", hint=f"there are {there}")
    return found
