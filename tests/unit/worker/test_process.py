"""A real child without a supervisor: what is heard of it, and when."""

from __future__ import annotations

import asyncio
import time

from meshwright_agent.worker.process import ChildSpec, spawn_child
from meshwright_agent.worker.protocol import Frame, Hello
from tests.process.supervised import DEADLINE_S, MODULE, build_environment


def test_nothing_is_heard_of_a_child_before_it_is_listened_to() -> None:
    async def scenario() -> None:
        frames: list[Frame] = []
        spec = ChildSpec("faulty", MODULE, lambda: build_environment(MESHWRIGHT_FAULT="speak"))
        child = await spawn_child(spec, 1, frames.append, lambda _words: None)
        end = time.monotonic() + DEADLINE_S
        for _ in iter(lambda: not child.log_tail and time.monotonic() < end, False):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert frames == []
        child.listen()
        for _ in iter(lambda: not frames and time.monotonic() < end, False):
            await asyncio.sleep(0.005)
        assert [type(frame) for frame in frames] == [Hello]
        assert (await child.stop(gently=True)).describe() == "exited with status 0"

    asyncio.run(scenario())
