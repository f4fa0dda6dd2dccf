"""The health registry: the last observation of each component, its active faults, and the rule that joins both.

Rule: a component without a check is `initializing`. After an outdated check it is `unknown`. Otherwise it has the
observed state. An active fault makes the state at least as bad as the fault. The absence of complaints does not make a
component healthy. Each state change is reported once, also across restarts: an earlier report holds until a check
contradicts it. This module does not depend on the sources of observations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches

from meshwright.errors import NotFoundError
from meshwright.wire.health import WORST_FIRST, Component, Health, State, find_worst_state
from meshwright_agent.health.events import Fault, Finding, HealthMemory, Standing, make_sendable

OnChange = Callable[[Component, State, datetime], None]
"""(the component as it is now, its previous state, the time): called when a state has changed."""


class HealthRegistry:
    """Components by name; written by the agent's checks, read by `/health`, `/metrics` and plans.

    Args:
        stale_after_s: older observations are `unknown`.
        on_change: called for each state change, with its reason.
        memory: stores the reported states; None: they end with this registry.
    """

    def __init__(
        self, *, stale_after_s: float, on_change: OnChange | None = None, memory: HealthMemory | None = None
    ) -> None:
        self._stale_after_s = stale_after_s
        self._on_change = on_change
        self._observations: dict[str, tuple[Finding, datetime] | None] = {}
        self._seen: set[str] = set()  # checked since the start, unless `initializing`
        self._memory = HealthMemory() if memory is None else memory

    def expect(self, names: Iterable[str]) -> None:
        """Adds components that will be checked. They are `initializing` until their first check."""
        for name in names:
            self._observations.setdefault(name, None)

    def report(self, name: str, finding: Finding, *, at: datetime) -> None:
        """Stores the result of a check."""
        self.expect((name,))
        self._observations[name] = finding, at
        if finding.state != "initializing":
            self._seen.add(name)
        self._settle(name, at)

    def recall_faults(self, at: datetime) -> None:
        """Restores the faults of the previous agent."""
        for name in self._memory.faults:
            self.expect((name,))
            self._settle(name, at)

    def add_fault(self, fault: Fault, at: datetime) -> None:
        """Adds an active fault and counts it with an older one of its code."""
        self._memory.add_fault(fault)
        self.expect((fault.component,))
        self._settle(fault.component, at)

    def faults(self, name: str) -> Mapping[str, Fault]:
        """Returns the active faults of a component, by code."""
        return self._memory.faults.get(name, {})

    def clear_faults(self, name: str, at: datetime) -> None:
        """Clears the faults of a component."""
        if self._memory.faults.pop(name, None):
            self._settle(name, at, is_cleared=True)

    def list_faulty(self) -> tuple[str, ...]:
        """Returns the components with an active fault."""
        return tuple(self._memory.faults)

    def forget(self, name: str) -> None:
        """Removes a component that no longer exists."""
        self._observations.pop(name, None)
        self._seen.discard(name)
        self._memory.faults.pop(name, None)
        self._memory.states.pop(name, None)

    def forget_unlisted(self) -> None:
        """Forgets the states of components that are not in the registry, because they have left this host."""
        for name in self._memory.states.keys() - self._observations.keys():
            del self._memory.states[name]

    def names(self) -> tuple[str, ...]:
        """Returns the names of all components, in order of their first appearance."""
        return tuple(self._observations)

    def state(self, name: str, now: datetime) -> State:
        """Returns the state of one component; `unknown` for a component without checks."""
        if name not in self._observations:
            return "unknown"
        state = self._describe(name, now).state
        return min((state, *(fault.state for fault in self.faults(name).values())), key=WORST_FIRST.index)

    def settle(self, now: datetime) -> None:
        """Reports state changes by age: observations that were not renewed."""
        for name in self.names():
            self._settle(name, now)

    def _settle(self, name: str, now: datetime, *, is_cleared: bool = False) -> None:
        """Reports the state if it has changed.

        Before the first check since the start only faults are known. Then only states that faults make worse, and
        cleared faults, are reported. A missing check is not reported.
        """
        standing = self._memory.states.get(name)
        state: State = self.state(name, now)
        before: State = "initializing" if standing is None else standing.state
        is_known = is_cleared or name in self._seen
        is_worse = state != "initializing" and WORST_FIRST.index(state) < WORST_FIRST.index(before)
        if state == before or not (is_known or is_worse):
            return
        self._memory.states[name] = Standing(state, now)
        if self._on_change is not None:
            self._on_change(self.component(name, now), before, now)

    def view(self, now: datetime) -> Health:
        """Returns every component at the time `now`, and the worst of their states (`find_worst_state`)."""
        self.settle(now)
        components = tuple(self.component(name, now) for name in self.names())
        return Health(state=find_worst_state(components), components=components)

    def component(self, name: str, now: datetime) -> Component:
        """Returns one component of the registry at the time `now`."""
        seen = self._observations[name]
        state, faults = self.state(name, now), tuple(self.faults(name).values())
        words = self._describe(name, now)
        shown = [words] if not faults or words.state not in ("healthy", "initializing") else []
        lines = [*map(_describe_fault, faults), *(each.reason for each in shown)]
        actions = dict.fromkeys(filter(None, (*(fault.action for fault in faults), *(each.action for each in shown))))
        return Component(
            name=name,
            state=state,
            reason=make_sendable("; ".join(lines)),
            action=make_sendable("; ".join(actions)),
            observed_at=seen[1] if seen else None,
            age_s=max(0.0, (now - seen[1]).total_seconds()) if seen else None,
            since=self._find_since(name, state, now),
            permanence="permanent" if faults else words.permanence,
        )

    def _find_since(self, name: str, state: State, now: datetime) -> datetime | None:
        """Returns the start of a component's state; None before the first check, or if the clock was set back."""
        standing = self._memory.states.get(name)
        return None if standing is None or standing.state != state or standing.since > now else standing.since

    def _describe(self, name: str, now: datetime) -> Finding:
        """Returns the last observation; unknown if it is too old, or dated in the future: the clock was set back."""
        seen = self._observations[name]
        if seen is None:
            return Finding("initializing", "not checked yet")
        finding, age_s = seen[0], (now - seen[1]).total_seconds()
        if abs(age_s) <= self._stale_after_s:
            return finding
        when = f"{age_s:.0f} s ago" if age_s >= 0 else "at a time that the clock was set back from"
        reason = f"last seen {finding.state} {when} ({finding.reason})" + ("; too long" if age_s >= 0 else "")
        return Finding("unknown", reason, finding.action)


def build_unknown_component(name: str, names: Iterable[str]) -> NotFoundError:
    """Returns the error for an unknown component name, with the nearest known name."""
    known = sorted(names)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? GET /health lists all" if near else "GET /health lists the components"
    message = f"no component has the name {name!r}; there are {len(known)}"
    return NotFoundError.of("component", message, hint)


def _describe_fault(fault: Fault) -> str:
    times = f", {fault.count} times" if fault.count > 1 else ""
    return f"{fault.reason} (at {fault.at:%Y-%m-%d %H:%M:%S} UTC{times})"
