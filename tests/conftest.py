"""Fixtures that several rooms share."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx._transports import default
from hypothesis import settings

from tests.agents import RunningAgent, start_agent

settings.register_profile("meshwright", deadline=None)  # machines differ, and are shared
settings.load_profile("meshwright")

# The tests write hundreds of thousands of small files: on ext4 that took a third of their time. Scripts among them run.
if (shared := Path("/dev/shm")).is_dir():
    memory = os.statvfs(shared)
    if memory.f_bavail * memory.f_frsize >= 2 * 2**30 and not memory.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(shared))

# Each of thousands of processes would read the entry points of all packages for plugins, a tenth of its imports' time.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs the tests with `&`

# httpx.get reads the certificates of all authorities, in 20 ms; a test that waits for an agent would do little else.
default.create_ssl_context = functools.cache(default.create_ssl_context)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session")
def agent() -> Iterator[RunningAgent]:
    """One real agent on 8 virtual CPU devices for all tests that do not harm it."""
    with start_agent() as running:
        yield running
