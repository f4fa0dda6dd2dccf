"""Tenure: one generation of a child, from spawn to burial. Who it is, why it is ended, how that went.

Rule: a tenure begins once and is finished once, and remembers the first reason for its end. Knows no caller
and no state; `supervisor` says when to begin and when to finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from meshwright_agent.worker.faults import Fault, Obituary
from meshwright_agent.worker.jobs import Job
from meshwright_agent.worker.process import Child, ChildSpec, Ending, Spawn
from meshwright_agent.worker.protocol import PROTOCOL_VERSION, Frame, FrameError, Hello

_WORTH_A_DUMP: Final = ("start_timeout", "call_timeout")


@dataclass(eq=False)
class Tenure:
    """One process.

    Attributes:
        generation: its number, counted from 1.
        since_s: when it was started, monotonic seconds.
        child: the process, once there is one.
        hello: what it told about itself, once it has.
        end: why it is ended: a fault, or the word of who asked.
        ending: how it ended, once it has.
        teardown: the task that ends it, once it runs.
    """

    spec: ChildSpec
    generation: int
    since_s: float
    child: Child | None = None
    hello: dict[str, Any] | None = None
    end: Fault | str = ""
    ending: Ending | None = None
    spawning: asyncio.Task[None] | None = None
    teardown: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None without a process."""
        return self.child.pid if self.child else None

    @property
    def log(self) -> tuple[str, ...]:
        """Its last lines of output."""
        return self.child.log_tail if self.child else ()

    @property
    def abandoned_pid(self) -> int | None:
        """The pid, if even SIGKILL did not end the process."""
        return self.pid if self.ending and self.ending.status is None else None

    @property
    def has_crashed(self) -> bool:
        """True if it ended, or would not end, other than somebody had asked."""
        return isinstance(self.end, Fault) or self.abandoned_pid is not None

    async def begin(self, spawn: Spawn, on_frame: Callable[[Frame], None], on_lost: Callable[[str], None]) -> None:
        """Starts the process and listens to it; failing to is told to `on_lost`."""
        try:
            self.child = await spawn(self.spec, self.generation, on_frame, on_lost)
        except Exception as error:  # no memory, no interpreter, or an environment that cannot be built
            on_lost(f"could not be started ({type(error).__name__}: {error})")
        else:
            self.child.listen()

    def greet(self, hello: Hello) -> None:
        """Takes the child's hello.

        Raises:
            FrameError: it is not the child that was started, or speaks another protocol.
        """
        said = (hello.protocol, hello.kind, hello.generation, hello.pid)
        expected = (PROTOCOL_VERSION, self.spec.name, self.generation, self.pid)
        if said != expected:
            raise FrameError(f"its hello says protocol, kind, generation, pid {said}; expected {expected}")
        self.hello = hello.about

    async def finish(self, *, gently: bool) -> None:
        """Ends the process, also one that is only just being started; of one that hangs, asks where first."""
        if self.spawning is not None:
            await asyncio.wait({self.spawning})
        if self.child is None:
            return
        if isinstance(self.end, Fault) and self.end.kind in _WORTH_A_DUMP:
            await self.child.dump()
        self.ending = await self.child.stop(gently=gently)

    def build_obituary(self, job: Job | None, now_s: float) -> Obituary:
        """Returns what is known of it; `job` is what it was working on."""
        return Obituary(
            who=f"the {self.spec.name} worker (generation {self.generation}, pid {self.pid})",
            ending=self.ending.describe() if self.ending else "never ran",
            op=job.op if job else None,
            worked_s=now_s - (job.sent_s if job else self.since_s),
            limit_s=job.deadline_s if job else self.spec.start_timeout_s,
            log=self.log,
            status=self.ending.status if self.ending else None,
        )
