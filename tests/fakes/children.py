"""Children without a process, for what no real one can be made to do: one that SIGKILL does not end.

`FakeChild` has the members of `supervisor.process.Child`; a test compares them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from meshwright_agent.supervisor.process import ChildError, ChildSpec, Ending
from meshwright_agent.supervisor.protocol import PROTOCOL_VERSION, Frame, Hello, parse_frame


class FakeChild:
    """Says hello when opened, keeps what is sent to it, and ends as told."""

    def __init__(self, spec: ChildSpec, generation: int, ending: Ending, *, says_hello: bool = True) -> None:
        self.generation = generation
        self.pid: int | None = 1000 + generation
        self.ending: Ending | None = None
        self.sent: list[Frame] = []
        self.reaped = asyncio.Event()
        self._kind = spec.name
        self._end = ending
        self._says_hello = says_hello
        self._said: asyncio.Queue[Frame | ChildError] = asyncio.Queue()

    @property
    def log_tail(self) -> tuple[str, ...]:
        return (f"log of generation {self.generation}",)

    async def open(self) -> None:
        if self._says_hello:
            self.say(Hello(PROTOCOL_VERSION, self._kind, 1000 + self.generation, self.generation))

    async def read(self) -> Frame:
        said = await self._said.get()
        if isinstance(said, ChildError):
            raise said
        return said

    def send(self, line: bytes) -> None:
        self.sent.append(parse_frame(line))

    async def dump(self) -> None:
        """A process would write its stacks."""

    async def stop(self, *, gently: bool) -> None:
        self.lose("closed its socket")
        await asyncio.sleep(0)
        self.ending = self._end

    async def reap(self) -> None:
        await self.reaped.wait()

    def say(self, frame: Frame) -> None:
        """Lets the agent read this frame."""
        self._said.put_nowait(frame)

    def lose(self, words: str) -> None:
        """Lets the agent read that the child is gone."""
        self._said.put_nowait(ChildError("lost", words))


@dataclass(eq=False)
class FakeSpawn:
    """Makes fake children, all alike, and keeps them."""

    ending: Ending = field(default_factory=lambda: Ending(status=0, killed=False))
    says_hello: bool = True
    children: list[FakeChild] = field(default_factory=list)
    kind: type[FakeChild] = FakeChild

    def __call__(self, spec: ChildSpec, generation: int) -> FakeChild:
        self.children.append(self.kind(spec, generation, self.ending, says_hello=self.says_hello))
        return self.children[-1]
