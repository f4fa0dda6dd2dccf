"""A supervisor without a child: its answers are a list, its state is set by hand.

A test compares its members with those of `supervisor.supervisor.Supervisor`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from meshwright.wire.devices import Worker, WorkerState
from meshwright_agent.health.events import History
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.watch import HostWatch
from meshwright_agent.leases import LeaseRegistry
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.process import ChildSpec
from meshwright_agent.supervisor.supervisor import Answer, ReleaseOutcome
from tests.fakes.stored import EPOCH, ManualBoot, ManualClock
from tests.unit.store.opening import build_closed_store

Reply = dict[str, Any] | Exception


@dataclass
class FakeSupervisor:
    """Gives each call the next of `answers` (the last one again and again): a result, or an error to raise.

    A stopped one starts when it is called, unless the answer is an error; an error leaves the state as `state_after`.
    """

    answers: deque[Reply]
    state: WorkerState = "stopped"
    generation: int = 0
    pid: int | None = None
    last_error: str | None = None
    log_tail: tuple[str, ...] = ()
    has_crashed: bool = False
    silent_s: float = 0.0
    idle_s: float = 0.0
    abandoned_pids: tuple[int, ...] = ()
    state_after: WorkerState | None = None
    on_change: Callable[[], None] | None = None
    calls: list[tuple[str, dict[str, Any], float]] = field(default_factory=list)
    resets: int = 0
    spec: ChildSpec = field(default_factory=lambda: ChildSpec("device", "no.module", dict))
    holding_pids: tuple[int, ...] = ()
    releases: list[str] = field(default_factory=list)

    async def call(
        self,
        op: str,
        arguments: dict[str, Any],
        *,
        deadline_s: float,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> Answer:
        self.calls.append((op, arguments, deadline_s))
        await asyncio.sleep(0)
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            self.state = self.state_after or self.state
            self.last_error = str(answer).splitlines()[0]
            raise answer
        if self.state not in ("ready", "busy"):
            self.state, self.generation = "ready", self.generation + 1
        return Answer(answer, self.generation)

    async def release(self, *, reason: str = "released", within_s: float | None = None) -> ReleaseOutcome:
        self.releases.append(reason)
        self.state = "stopped"
        return ReleaseOutcome(killed=False, abandoned_pids=self.abandoned_pids)

    def reset(self) -> None:
        self.resets += 1
        self.state, self.last_error = "stopped", None

    def view(self) -> Worker:
        return Worker(
            state=self.state, generation=self.generation, pid=self.pid, since=EPOCH, last_error=self.last_error
        )


def answering(*answers: Reply, **fields: Any) -> FakeSupervisor:
    """Returns one that answers so."""
    return FakeSupervisor(deque(answers), **fields)


def build_watch(
    probe: FakeSupervisor,
    device: FakeSupervisor,
    *,
    health: HealthRegistry,
    settings: Settings,
    clock: ManualClock,
    stays: bool = False,
    leases: Any = None,
    runs: Any = None,
    preflight: FakeSupervisor | None = None,
) -> HostWatch:
    """Returns the watch of a host without leases and runs, or with these."""
    return HostWatch(
        probe=probe,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
        preflight=preflight or FakeSupervisor(deque()),  # type: ignore[arg-type]
        runs=runs or NoRuns(),
        leases=leases or LeaseRegistry(ManualBoot()),
        health=health,
        history=History(build_closed_store(), clock=clock),
        settings=settings,
        clock=clock,
        spawn=asyncio.create_task,
        stays=stays,
    )


class NoRuns:
    """A queue in which nothing is."""

    async def cancel_all(self, _reason: str, **_which: Any) -> tuple[str, ...]:
        return ()


async def refresh(watch: HostWatch) -> None:
    """Probes once, and waits for JAX's answer where it is asked."""
    if asking := await watch.refresh():
        await asking
