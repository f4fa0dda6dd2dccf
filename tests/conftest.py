"""Fixtures that several rooms share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from httpx._transports import default
from hypothesis import settings

from tests.agents import RunningAgent, start_agent

settings.register_profile("meshwright", deadline=None)  # machines differ, and are shared
settings.load_profile("meshwright")

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
