"""A device worker of its own for a test: on 8 virtual CPU devices, under the real supervisor, and ended behind it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final

from meshwright_agent.clock import SystemClock
from meshwright_agent.supervisor.supervisor import ChildSpec, Supervisor

LIMIT_S: Final = 120.0
"""Of a whole test; JAX starts in seconds."""


def supervise(scenario: Callable[[Supervisor], Awaitable[None]], **variables: str) -> None:
    """Plays a scenario with the supervisor of a device worker that has these variables too."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", **variables}

    async def run() -> None:
        spec = ChildSpec("device", "meshwright_agent.children.device", lambda: environment)
        supervisor = Supervisor(spec, clock=SystemClock())
        try:
            await asyncio.wait_for(scenario(supervisor), LIMIT_S)
        finally:
            await supervisor.close()

    asyncio.run(run())
