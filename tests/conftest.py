"""Fixtures that several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agents import RunningAgent, start_agent


@pytest.fixture(scope="session")
def agent() -> Iterator[RunningAgent]:
    """One real agent on 8 virtual CPU devices for all tests that do not harm it."""
    with start_agent() as running:
        yield running
