"""Whether an agent's event loop is held up, as a probe of Kubernetes would feel it: by /healthz, which does nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import httpx

from tests.agents import RunningAgent


@contextlib.contextmanager
def polling(agent: RunningAgent, *, every_s: float) -> Iterator[list[float]]:
    """Asks /healthz again and again for the length of the block; gives how long each answer took."""
    duration_s: list[float] = []
    begun, ended = threading.Event(), threading.Event()

    def poll() -> None:
        with httpx.Client(base_url=agent.url, timeout=60) as client:
            while not ended.wait(every_s):
                began_s = time.perf_counter()
                client.get("/healthz").raise_for_status()
                duration_s.append(time.perf_counter() - began_s)
                begun.set()

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        assert begun.wait(timeout=60)
        yield duration_s
    finally:
        ended.set()
        poller.join(timeout=60)
