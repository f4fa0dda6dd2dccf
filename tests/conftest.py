"""Fixtures that several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.agents import RunningAgent, start_agent

settings.register_profile("meshwright", deadline=None)  # machines differ, and are shared
settings.load_profile("meshwright")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session")
def agent() -> Iterator[RunningAgent]:
    """One real agent on 8 virtual CPU devices for all tests that do not harm it."""
    with start_agent() as running:
        yield running
