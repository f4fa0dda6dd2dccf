"""The same question to a Fleet and to an AsyncFleet of fake agents, so that a test is written once for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal

from meshwright import AsyncFleet, Fleet
from meshwright.testing import FakeAgent, build_devices

Kind = Literal["sync", "async"]


def build_fakes(*names: str, what: str = "cpu:4") -> dict[str, FakeAgent]:
    """One fake agent a host, by the address that a fleet has for it."""
    return {f"http://{name}:8790": FakeAgent(build_devices(what, host=name)) for name in names}


def ask(kind: Kind, fakes: Mapping[str, FakeAgent], question: Callable[[Any], Any]) -> Any:
    """Returns what `question(fleet)` answers."""
    if kind == "sync":
        with Fleet(list(fakes), connect=lambda url: fakes[url].client(max_retries=1)) as fleet:
            return question(fleet)
    return asyncio.run(_ask_async(fakes, question))


async def _ask_async(fakes: Mapping[str, FakeAgent], question: Callable[[Any], Any]) -> Any:
    async with AsyncFleet(list(fakes), connect=lambda url: fakes[url].async_client(max_retries=1)) as fleet:
        return await question(fleet)
