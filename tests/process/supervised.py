"""The supervisor of a worker, as its users see it: one child that is started, called and released.

The only file of the net that knows `meshwright_agent.supervisor`: a new supervisor changes this file and
`tests/fakes/faulty_child.py`, and no scenario.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import ProblemError
from meshwright_agent.clock import SystemClock
from meshwright_agent.supervisor.supervisor import CallCancelled as Cancelled
from meshwright_agent.supervisor.supervisor import ChildSpec, ReleaseOutcome, Supervisor

__all__ = ["Cancelled", "Child", "fails", "start_orphan", "supervised"]

Environment = Callable[[], dict[str, str]]
ROOT = Path(__file__).parents[2]
MODULE = "tests.fakes.faulty_child"
DEADLINE_S = 30.0


class Child:
    """A supervised child: what `GET /devices` shows of it, and what the agent does with it."""

    def __init__(self, module: str, environment: Environment, limits: dict[str, float]) -> None:
        spec: Any = {"backoff_initial_s": 0.01, **limits}
        self._supervisor = Supervisor(ChildSpec("faulty", module, environment, **spec), clock=SystemClock())
        self.reset = self._supervisor.reset
        self.close = self._supervisor.close
        self.view = self._supervisor.view

    @property
    def log_tail(self) -> tuple[str, ...]:
        return self._supervisor.log_tail

    async def start(self) -> None:
        """Brings the child to ready by a call that does nothing."""
        await self.call("echo")

    async def call(
        self,
        op: str,
        *,
        deadline_s: float = DEADLINE_S,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        return (await self._supervisor.call(op, arguments, deadline_s=deadline_s, on_progress=on_progress)).result

    async def begin(self, op: str, *, deadline_s: float = DEADLINE_S) -> asyncio.Task[dict[str, Any]]:
        """Starts a call in a task of its own and waits for the first progress of its handler."""
        working = asyncio.Event()
        task = asyncio.create_task(self.call(op, deadline_s=deadline_s, on_progress=lambda _value: working.set()))
        await asyncio.wait_for(working.wait(), DEADLINE_S)
        return task

    async def release(self, reason: str = "released") -> ReleaseOutcome:
        """Ends the process; returns `duration_s`, `killed` and `abandoned_pids`."""
        return await self._supervisor.release(reason=reason)


def build_environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **variables}


@contextlib.asynccontextmanager
async def supervised(
    *,
    fault: str = "",
    module: str = MODULE,
    environment: Environment | None = None,
    **limits: float,
) -> AsyncIterator[Child]:
    """Yields a child that has not started, and closes it; nothing may fail on the event loop.

    Args:
        fault: what the child does wrong when it starts, see `faulty_child.prepare`.
        module: what to run instead of the faulty child.
        environment: builds the variables of each process.
        limits: `start_timeout_s`, `cancel_grace_s`, `idle_release_s`, `backoff_initial_s`, `crash_budget`.
    """
    failed: list[Any] = []
    systemd = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1"}

    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
    child = Child(module, environment or (lambda: build_environment(MESHWRIGHT_FAULT=fault, **systemd)), limits)
    try:
        async with asyncio.timeout(60):
            yield child
    finally:
        await child.close()
    assert not failed


@contextlib.contextmanager
def fails(code: str, match: str) -> Iterator[pytest.ExceptionInfo[ProblemError]]:
    """Expects a problem with this code and these words, and yields it as `.value`."""
    with pytest.raises(ProblemError, match=match) as caught:
        yield caught
    assert caught.value.code == code


def start_orphan() -> subprocess.CompletedProcess[str]:
    """Runs a child as a supervisor does, but one that is gone already: it is not the child's parent."""
    with open(os.devnull, "r+b") as null:  # noqa: PTH123
        command = [sys.executable, "-m", MODULE, f"--fd={null.fileno()}", "--parent=1", "--generation=1"]
        return subprocess.run(command, env=build_environment(), capture_output=True, text=True, timeout=30, check=False)
