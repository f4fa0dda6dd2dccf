"""A supervisor without a child: its answers are a list, its state is set by hand.

A test compares its members with those of `supervisor.supervisor.Supervisor`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from meshwright.wire.devices import Worker, WorkerState
from meshwright_agent.host.watch import HostWatch
from meshwright_agent.supervisor.supervisor import Answer, ReleaseOutcome
from tests.fakes.stored import EPOCH

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
    abandoned_pids: tuple[int, ...] = ()
    state_after: WorkerState | None = None
    calls: list[tuple[str, dict[str, Any], float]] = field(default_factory=list)
    resets: int = 0
    since: datetime = EPOCH
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
        return ReleaseOutcome(0.0, killed=False)

    def reset(self) -> None:
        self.resets += 1
        self.state, self.last_error = "stopped", None

    def view(self) -> Worker:
        return Worker(
            state=self.state, generation=self.generation, pid=self.pid, since=self.since, last_error=self.last_error
        )


def answering(*answers: Reply, **fields: Any) -> FakeSupervisor:
    """Returns one that answers so."""
    return FakeSupervisor(deque(answers), **fields)


async def look_and_ask(watch: HostWatch) -> None:
    """Looks once, and waits for JAX's answer where it is asked."""
    if asking := await watch.look():
        await asking
