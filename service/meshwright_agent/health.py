"""The health board: the last observation of each component, and the one rule that turns it into a state.

Rule: never looked is `initializing`; looked too long ago is `unknown`; otherwise what was seen. Nothing is healthy
because nobody complained. Knows nothing of where observations come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from meshwright.wire.health import Component, Health, State

WORST_FIRST: Final[tuple[State, ...]] = ("unhealthy", "unknown", "degraded", "initializing", "healthy")


@dataclass(frozen=True)
class Observation:
    """What a check saw, and when."""

    state: State
    reason: str
    action: str
    observed_at: datetime


class HealthBoard:
    """Components by name; written by the agent's checks, read by `/health`, `/metrics` and plans."""

    def __init__(self, *, stale_after_s: float) -> None:
        self._stale_after_s = stale_after_s
        self._observations: dict[str, Observation | None] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Lists components that will be checked: `initializing` until they are."""
        for name in names:
            self._observations.setdefault(name, None)

    def report(self, name: str, state: State, reason: str, *, at: datetime, action: str = "") -> None:
        """Keeps what a check saw."""
        self._observations[name] = Observation(state, reason, action, at)

    def forget(self, name: str) -> None:
        """Takes a component off the board: what it was about is no more."""
        self._observations.pop(name, None)

    def names(self) -> tuple[str, ...]:
        """Returns all components, in the order in which they were first known."""
        return tuple(self._observations)

    def state(self, name: str, now: datetime) -> State:
        """Returns the state of one component; `unknown` for one that nobody checks."""
        seen = self._observations.get(name)
        if seen is None:
            return "initializing" if name in self._observations else "unknown"
        return "unknown" if self._is_stale(seen, now) else seen.state

    def _is_stale(self, seen: Observation, now: datetime) -> bool:
        return (now - seen.observed_at).total_seconds() > self._stale_after_s

    def view(self, now: datetime) -> Health:
        """Returns every component as it stands at `now`, and the worst of their states."""
        components = tuple(self._component(name, seen, now) for name, seen in self._observations.items())
        states = {component.state for component in components}
        worst = next((state for state in WORST_FIRST if state in states), "initializing")
        return Health(state=worst, components=components)

    def _component(self, name: str, seen: Observation | None, now: datetime) -> Component:
        if seen is None:
            return Component(name=name, state="initializing", reason="not checked yet")
        age_s = max(0.0, (now - seen.observed_at).total_seconds())
        if self._is_stale(seen, now):
            reason = f"last seen {seen.state} {age_s:.0f} s ago ({seen.reason}); too long"
            return Component(
                name=name,
                state="unknown",
                reason=reason,
                action=seen.action,
                observed_at=seen.observed_at,
                age_s=age_s,
            )
        return Component(
            name=name,
            state=seen.state,
            reason=seen.reason,
            action=seen.action,
            observed_at=seen.observed_at,
            age_s=age_s,
        )
