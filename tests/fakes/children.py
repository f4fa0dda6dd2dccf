"""Children without a process, for what no real one can be made to do: one that SIGKILL does not end.

`FakeChild` has the members of `worker.process.Child`; a test compares them with those of `ChildProcess`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from meshwright_agent.worker.process import ChildSpec, Ending
from meshwright_agent.worker.protocol import PROTOCOL_VERSION, Frame, FrameError, Hello, parse_frame


@dataclass(eq=False)
class FakeChild:
    """Says hello when listened to, keeps what is sent to it, and ends as `ending` says."""

    generation: int
    kind: str
    on_frame: Callable[[Frame], None]
    on_lost: Callable[[str], None]
    ending: Ending
    says_hello: bool = True
    sent: list[Frame] = field(default_factory=list)
    stops: list[bool] = field(default_factory=list)
    dump_count: int = 0
    reaped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        return 1000 + self.generation

    @property
    def log_tail(self) -> tuple[str, ...]:
        return (f"log of generation {self.generation}",)

    def listen(self) -> None:
        if self.says_hello:
            self.say(Hello(PROTOCOL_VERSION, self.kind, self.pid, self.generation, {"device_count": 1}))

    def send(self, line: bytes) -> None:
        self.sent.append(parse_frame(line))

    async def dump(self) -> None:
        self.dump_count += 1

    async def stop(self, *, gently: bool) -> Ending:
        self.stops.append(gently)
        return self.ending

    async def reap(self) -> None:
        await self.reaped.wait()

    def say(self, frame: Frame) -> None:
        """Does what the real channel does: a FrameError is the end of the child."""
        try:
            self.on_frame(frame)
        except FrameError as error:
            self.on_lost(f"broke the protocol: {error}")


@dataclass(eq=False)
class FakeSpawn:
    """Makes fake children, all alike, and keeps them."""

    ending: Ending = field(default_factory=lambda: Ending(status=0, killed=False))
    says_hello: bool = True
    children: list[FakeChild] = field(default_factory=list)
    kind: type[FakeChild] = FakeChild

    async def __call__(
        self,
        spec: ChildSpec,
        generation: int,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[str], None],
    ) -> FakeChild:
        child = self.kind(generation, spec.name, on_frame, on_lost, self.ending, self.says_hello)
        self.children.append(child)
        return child
