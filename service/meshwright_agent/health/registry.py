"""The registry of health: the last observation of each component, its standing faults, and the rule that joins both.

Rule: never looked is `initializing`; looked too long ago is `unknown`; otherwise what was seen; and a fault that stands
makes it no better than the fault. Nothing is healthy because nobody complained. Each change of a state is told once,
through restarts of the agent: what an earlier life told holds until a look says otherwise. Knows nothing of where
observations come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

from meshwright.errors import NotFoundError
from meshwright.wire.health import WORST_FIRST, Component, Health, Permanence, State, find_worst_state
from meshwright_agent.health.events import Fault, HealthMemory, Standing, make_sendable


@dataclass(frozen=True)
class Observation:
    """What a check saw, and when."""

    state: State
    reason: str
    action: str
    observed_at: datetime
    permanence: Permanence | None = None


OnChange = Callable[[Component, State, datetime], None]
"""(the component as it is now, the state that it had, when): called when a state has changed."""


class HealthRegistry:
    """Components by name; written by the agent's checks, read by `/health`, `/metrics` and plans.

    Args:
        stale_after_s: an observation that is older is `unknown`.
        on_change: hears of each change of a state, with the words that go with it.
        memory: keeps what was told; None: it ends with this registry.
    """

    def __init__(
        self, *, stale_after_s: float, on_change: OnChange | None = None, memory: HealthMemory | None = None
    ) -> None:
        self._stale_after_s = stale_after_s
        self._on_change = on_change
        self._observations: dict[str, Observation | None] = {}
        self._seen: set[str] = set()  # what a check of this life has looked at; one that says `initializing` has not
        self._memory = HealthMemory() if memory is None else memory

    def expect(self, names: Iterable[str]) -> None:
        """Lists components that will be checked: `initializing` until they are."""
        for name in names:
            self._observations.setdefault(name, None)

    def report(
        self,
        name: str,
        state: State,
        reason: str,
        *,
        at: datetime,
        action: str = "",
        permanence: Permanence | None = None,
    ) -> None:
        """Keeps what a check saw."""
        self.expect((name,))
        self._observations[name] = Observation(state, reason, action, at, permanence)
        if state != "initializing":
            self._seen.add(name)
        self._settle(name, at)

    def recall_faults(self, at: datetime) -> None:
        """Shows the faults that an earlier life of the agent knew."""
        for name in self._memory.faults:
            self.expect((name,))
            self._settle(name, at)

    def add_fault(self, fault: Fault, at: datetime) -> None:
        """Lets a fault stand, counted with an older one of its code."""
        self._memory.add_fault(fault)
        self.expect((fault.component,))
        self._settle(fault.component, at)

    def faults(self, name: str) -> Mapping[str, Fault]:
        """Returns the faults that stand against a component, by code."""
        return self._memory.faults.get(name, {})

    def clear_faults(self, name: str, at: datetime) -> None:
        """Takes the faults of a component off."""
        if self._memory.faults.pop(name, None):
            self._settle(name, at, is_cleared=True)

    def list_faulty(self) -> tuple[str, ...]:
        """Returns the components that have a standing fault."""
        return tuple(self._memory.faults)

    def forget(self, name: str) -> None:
        """Takes a component out of the registry: what it was about is no more."""
        self._observations.pop(name, None)
        self._seen.discard(name)
        self._memory.faults.pop(name, None)
        self._memory.states.pop(name, None)

    def forget_unlisted(self) -> None:
        """Forgets the states of components that are not in the registry: they are gone from this host."""
        for name in self._memory.states.keys() - self._observations.keys():
            del self._memory.states[name]

    def names(self) -> tuple[str, ...]:
        """Returns all components, in the order in which they were first known."""
        return tuple(self._observations)

    def state(self, name: str, now: datetime) -> State:
        """Returns the state of one component; `unknown` for one that nobody checks."""
        if name not in self._observations:
            return "unknown"
        seen = self._observations[name]
        state: State = (
            "initializing" if seen is None else "unknown" if self.is_stale(seen.observed_at, now) else seen.state
        )
        return min((state, *(fault.state for fault in self.faults(name).values())), key=WORST_FIRST.index)

    def is_stale(self, seen_at: datetime, now: datetime) -> bool:
        """What was seen long ago; or in a future that the clock has been set back from, so that nobody knows when."""
        return abs((now - seen_at).total_seconds()) > self._stale_after_s

    def settle(self, now: datetime) -> None:
        """Tells what has changed because time went by: observations that nobody has renewed."""
        for name in self.names():
            self._settle(name, now)

    def _settle(self, name: str, now: datetime, *, is_cleared: bool = False) -> None:
        """Tells the state if it is another than before.

        Before the first look of this life only faults are known: what they make worse is told, and that they were
        cleared; not that nobody has looked yet.
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
        """Returns every component as it stands at `now`, and the worst of their states (`find_worst_state`)."""
        self.settle(now)
        components = tuple(self.component(name, now) for name in self.names())
        return Health(state=find_worst_state(components), components=components)

    def component(self, name: str, now: datetime) -> Component:
        """Returns one component that is in the registry, as it stands at `now`."""
        seen = self._observations[name]
        state, faults = self.state(name, now), tuple(self.faults(name).values())
        words = self._describe(seen, now)
        told = [words] if not faults or words.state not in ("healthy", "initializing") else []
        lines = [*map(_describe_fault, faults), *(each.reason for each in told)]
        actions = dict.fromkeys(filter(None, (*(fault.action for fault in faults), *(each.action for each in told))))
        return Component(
            name=name,
            state=state,
            reason=make_sendable("; ".join(lines)),
            action=make_sendable("; ".join(actions)),
            observed_at=seen.observed_at if seen else None,
            age_s=max(0.0, (now - seen.observed_at).total_seconds()) if seen else None,
            since=self._find_since(name, state, now),
            permanence="permanent" if faults else words.permanence,
        )

    def _find_since(self, name: str, state: State, now: datetime) -> datetime | None:
        """Returns when it came into this state; None: nobody has looked yet, or the clock was set back from then."""
        standing = self._memory.states.get(name)
        return None if standing is None or standing.state != state or standing.since > now else standing.since

    def _describe(self, seen: Observation | None, now: datetime) -> Observation:
        if seen is None:
            return Observation("initializing", "not checked yet", "", now)
        if not self.is_stale(seen.observed_at, now):
            return seen
        age_s = (now - seen.observed_at).total_seconds()
        when = f"{age_s:.0f} s ago" if age_s >= 0 else "at a time that the clock was set back from"
        reason = f"last seen {seen.state} {when} ({seen.reason})" + ("; too long" if age_s >= 0 else "")
        return Observation("unknown", reason, seen.action, seen.observed_at)


def build_unknown_component(name: str, names: Iterable[str]) -> NotFoundError:
    """Returns the error for a name that no component has, with the nearest that one has."""
    known = sorted(names)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? GET /health lists all" if near else "GET /health lists the components"
    message = f"no component has the name {name!r}; there are {len(known)}"
    return NotFoundError.of("component", message, hint)


def _describe_fault(fault: Fault) -> str:
    times = f", {fault.count} times" if fault.count > 1 else ""
    return f"{fault.reason} (at {fault.at:%Y-%m-%d %H:%M:%S} UTC{times})"
